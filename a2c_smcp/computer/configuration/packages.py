"""Packages of MCP servers from npm and PyPI: the line that starts one, its exact version with checksums, its folder.

A server has a folder below `servers_folder()`: one folder for each version, which nothing changes later, and `data`,
the only one that the server may write to. A version is installed in a draft beside them, and moved into its place as a
whole: an installation that is interrupted leaves nothing. No code of it runs meanwhile: npm's install scripts are left
out, and of PyPI only wheels are taken, unless the owner allows these scripts. Two servers never share a folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE, create_subprocess_exec
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import Distribution
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote

from a2c_smcp.files import data_folder, private_folder, replace_file
from a2c_smcp.loops import in_thread
from a2c_smcp.mcp_host.config.inputs import did_you_mean

Registry: TypeAlias = Literal["npm", "PyPI"]

_RECORD = "installed.json"
_DRAFT, _STALE = ".draft-", 24 * 3600.0
_KNOWN: dict[Registry, tuple[str, ...]] = {
    "npm": (
        *(
            f"@modelcontextprotocol/server-{each}"
            for each in ("everything", "filesystem", "memory", "sequential-thinking")
        ),
        *("@playwright/mcp", "@upstash/context7-mcp", "@notionhq/notion-mcp-server", "chrome-devtools-mcp"),
        *("mongodb-mcp-server", "mcp-server-kubernetes"),
    ),
    "PyPI": (
        *(f"mcp-server-{each}" for each in ("calculator", "fetch", "git", "sqlite", "time")),
        *("duckduckgo-mcp-server", "excel-mcp-server", "mcp-simple-arxiv"),
    ),
}
"""Packages that many people use, to suggest for a misspelt name: not every registry can be searched."""


class NotDone(Exception):
    """An MCP server is not added or changed: the reason, and the remedy. `is_wrong`: what was asked for is wrong."""

    def __init__(self, what: str, remedy: str, *, is_wrong: bool = False) -> None:
        self.what, self.remedy, self.is_wrong = what, remedy, is_wrong
        super().__init__(f"{what}. {remedy}")


@dataclass(frozen=True)
class PackageSpec:
    """A package as it is asked for. No `version` means the newest one, no `program` that of the package's name.

    `also` are requirements beside it, such as an older version of what it needs.
    """

    registry: Registry
    package: str
    version: str = ""
    extras: str = ""
    program: str = ""
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Release:
    """An exact version, as its registry states it. `scripts` are the packages that want to run code when installed."""

    version: str
    publisher: str
    source: str
    integrity: str
    packages: int
    scripts: tuple[str, ...] = ()
    command: str = ""
    """The program in the package, as far as it is known before the installation."""


# The line that starts a server, as its README gives it

_STARTERS: dict[tuple[str, ...], Registry] = {
    ("npx",): "npm",
    ("npm", "exec"): "npm",
    ("uvx",): "PyPI",
    ("uv", "tool", "run"): "PyPI",
    ("pipx", "run"): "PyPI",
}
_WITHOUT_VALUE = ("-y", "--yes", "-q", "--quiet", "--")
_WITH_VALUE = {**dict.fromkeys(("-p", "--package", "--from", "--spec"), "package"), "--with": "with"}
_NPM_SPEC = re.compile(r"((?:@[a-z0-9~][\w.~-]*/)?[A-Za-z0-9~][\w.~-]*)(?:@([\w.^~<>=*|+-]+))?")
_PYPI_SPEC = re.compile(
    r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)(\[[\w,.-]+\])?(?:@([\w.!+*-]+)|((?:[=<>~!]=?|===)[\w.!+*,<>=~-]+))?"
)
_HOW = "Write it as its README does: -- npx -y PACKAGE ARGS…, or -- uvx PACKAGE ARGS…"


def parse_start(words: Sequence[str]) -> tuple[PackageSpec, list[str]] | None:
    """The package that a line such as `npx -y PACKAGE ARGS…` starts, and the arguments; `None` for any other program.

    Raises `NotDone` for an option or a package that cannot be installed so.
    """
    command = [re.sub(r"\.(cmd|exe)$", "", Path(words[0]).name), *words[1:]]
    starter = next((each for each in _STARTERS if tuple(command[: len(each)]) == each), None)
    if starter is None:
        return None
    registry, name = _STARTERS[starter], " ".join(starter)
    values, rest = _without_options(name, command[len(starter) :])
    named, also = values.get("package", ()), values.get("with", ())
    if not rest:
        raise NotDone(f"{name} names no package", _HOW, is_wrong=True)
    for text in also:
        _spec("PyPI", text)
    first, *args = rest
    spec = replace(_spec(registry, named[-1] if named else first), also=tuple(also))
    return (replace(spec, program=first) if named else spec), args


def _without_options(starter: str, words: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The values of the options, by what they mean, and the words after the options."""
    rest, values = list(words), defaultdict[str, list[str]](list)
    while rest and rest[0].startswith("-"):
        option, _, value = rest.pop(0).partition("=")
        if meaning := _WITH_VALUE.get(option):
            values[meaning].append(value or (rest.pop(0) if rest else ""))
        elif option not in _WITHOUT_VALUE:
            raise NotDone(f"{starter} {option} means nothing to an installed server", _HOW, is_wrong=True)
    return values, rest


def _spec(registry: Registry, text: str) -> PackageSpec:
    match = (_NPM_SPEC if registry == "npm" else _PYPI_SPEC).fullmatch(text)
    if match is None:
        raise NotDone(
            f"{text!r} is not the name of a package of {registry}",
            "Folders, files, URLs and git are not installed here.",
            is_wrong=True,
        )
    if registry == "npm":
        return PackageSpec(registry, match[1], "" if match[2] in (None, "latest") else match[2])
    exact = f"=={match[3]}" if match[3] and match[3] != "latest" else ""
    return PackageSpec(registry, match[1], exact or match[4] or "", match[2] or "")


# Programs that install, and what they say if they fail


def _tool(name: str, provider: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise NotDone(f"{name} is not on the PATH", f"Install {provider}, and try again.")
    return os.path.abspath(path)  # noqa: PTH100  # links stay


async def _run(words: Sequence[str | Path], folder: Path) -> tuple[int | None, str, str]:
    """Run a tool: its exit code, stdout and stderr. A cancel ends it."""
    process = await create_subprocess_exec(*map(str, words), cwd=folder, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    try:
        out, err = await process.communicate()
    except BaseException:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise
    return process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


_ABSENT = ("E404", "No matching distribution found", "ETARGET", "ENOVERSIONS")
_OFFLINE = re.compile(
    r"ECONN|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET|NewConnectionError|ConnectTimeout"
    r"|Connection(?:Reset)?Error|Name or service|Failed to establish|Max retries|ProxyError"
)
_CHECKSUM = re.compile(r"EINTEGRITY|DO NOT MATCH THE HASHES|Hashes are required")


def _fault(spec: PackageSpec, said: str) -> NotDone:
    """The reason why a tool failed, of what it said."""
    wanted = f"{spec.package}{spec.extras}"
    if _CHECKSUM.search(said):
        return NotDone(
            f"A package that came for {wanted} has another checksum than {spec.registry} states",
            "It was not installed. Try again; if that lasts, the registry or a proxy on the way has changed it.",
        )
    if _OFFLINE.search(said):
        return NotDone(f"{spec.registry} cannot be reached", "Check the network and its proxy, and try again.")
    if any(sign in said for sign in _ABSENT) and spec.package in unquote(said):
        return _absent(spec)
    return NotDone(f"{wanted} cannot be installed: {_last_error(said)}", "Correct that, and try again.")


def _absent(spec: PackageSpec) -> NotDone:
    what = f"{spec.registry} has no {spec.package} {spec.version}".rstrip()
    if spec.registry == "PyPI":
        what += f" that runs on Python {sys.version_info[0]}.{sys.version_info[1]}"
    near = did_you_mean(spec.package, [each for each in _KNOWN[spec.registry] if each != spec.package])
    return NotDone(what, near.removeprefix(", ").capitalize() or "Check its name and version.")


def _last_error(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["no reason was given"]
    errors = [line for line in lines if re.match(r"(?i)(npm )?err(or)?\b", line)]
    return (errors or lines)[-1][:300]


# npm


async def _npm(spec: PackageSpec, folder: Path, *words: str) -> Any:
    """The answer of npm, read from JSON."""
    options = ("--json", "--no-audit", "--no-fund", "--no-update-notifier", "--fetch-retries=1", "--loglevel=error")
    code, out, err = await _run([_tool("npm", "Node.js with npm"), *words, *options], folder)
    with suppress(ValueError):
        answer = json.loads(out)
        if code == 0:
            return answer
        error = answer.get("error", {}) if isinstance(answer, dict) else {}
        raise _fault(spec, f"{error.get('code')} error: {error.get('summary')}\n{error.get('summary')}")
    if code:
        raise _fault(spec, err)
    return None


async def _npm_resolve(spec: PackageSpec, draft: Path, *, scripts: bool) -> Release:
    """Write `package-lock.json`, in which every package has the checksum that its registry states."""
    _tool("node", "Node.js with npm")
    wanted = {"private": True, "dependencies": {spec.package: spec.version or "latest"}}
    (draft / "package.json").write_text(json.dumps(wanted), "utf-8")
    await _npm(spec, draft, "install", "--package-lock-only", "--ignore-scripts")
    packages = _locked(spec, draft)
    found = packages[spec.package]
    stated = await _npm(spec, draft, "view", f"{spec.package}@{found['version']}")
    stated = stated[-1] if isinstance(stated, list) else stated
    if stated.get("dist", {}).get("integrity") != found["integrity"]:
        raise _fault(spec, "EINTEGRITY")
    repository = stated.get("repository") or ""
    programs = _bins(spec, found.get("bin") or {})
    return Release(
        version=found["version"],
        publisher=_npm_publisher(stated),
        source=str(repository.get("url") if isinstance(repository, dict) else repository),
        integrity=found["integrity"],
        packages=len(packages),
        scripts=tuple(name for name, each in packages.items() if each.get("hasInstallScript")),
        command=programs[_program(spec, programs)],
    )


def _locked(spec: PackageSpec, draft: Path) -> dict[str, Any]:
    """The packages of `package-lock.json`: by name that of the server, by place those that it needs."""
    lock = json.loads((draft / "package-lock.json").read_text("utf-8"))["packages"]
    packages = {place.removeprefix("node_modules/"): each for place, each in lock.items() if place}
    for name, each in packages.items():
        wanted = {**each.get("optionalDependencies", {}), **each.get("dependencies", {})}
        if elsewhere := next((other for other, version in wanted.items() if _ELSEWHERE.match(version)), None):
            raise _without_checksum(spec, elsewhere)
        if not (each.get("integrity") or each.get("inBundle")):
            raise _without_checksum(spec, name)
    return packages


_ELSEWHERE = re.compile(r"(?!npm:).*[:/]")
"""A version that is a URL, a folder or a repository: npm makes a checksum of what it finds there itself."""


def _without_checksum(spec: PackageSpec, name: str) -> NotDone:
    what = f"{spec.package} needs {name} from outside of {spec.registry}, where no checksum is stated"
    return NotDone(what, "Such a package is not installed here.")


def _npm_publisher(stated: Mapping[str, Any]) -> str:
    """The account that published the version; else those that may, if the registry states them."""
    people = [stated["_npmUser"]] if stated.get("_npmUser") else stated.get("maintainers") or []
    return ", ".join(str(each.get("name") if isinstance(each, dict) else each).partition(" <")[0] for each in people)


async def _npm_install(spec: PackageSpec, draft: Path, *, scripts: bool) -> None:
    await _npm(spec, draft, "ci", "--omit=dev", *([] if scripts else ["--ignore-scripts"]))


def _npm_start(spec: PackageSpec, folder: Path) -> list[str]:
    home = folder / "node_modules" / spec.package
    programs = _bins(spec, json.loads((home / "package.json").read_text("utf-8")).get("bin") or {})
    file = home / programs[_program(spec, programs)]
    if not file.resolve().is_relative_to(home.resolve()) or not file.is_file():
        raise NotDone(f"{spec.package} names a program that it does not have", "Its makers can correct that.")
    with file.open("rb") as opened:
        is_script = b"node" in opened.readline(200) or file.suffix in (".js", ".mjs", ".cjs")
    return [_tool("node", "Node.js"), str(file)] if is_script else [str(file)]


def _bins(spec: PackageSpec, stated: Mapping[str, str] | str) -> Mapping[str, str]:
    return {spec.package.rpartition("/")[2]: stated} if isinstance(stated, str) else stated


def _program(spec: PackageSpec, names: Mapping[str, Any]) -> str:
    """The name of the program to start, as npx and uvx choose it: that of the package, or the only one."""
    wanted = spec.program or spec.package.rpartition("/")[2]
    if wanted in names:
        return wanted
    if len(set(names.values())) == 1 and not spec.program:
        return next(iter(names))
    there = (
        f"It has {', '.join(sorted(names))}: npx -p PACKAGE NAME, uvx --from PACKAGE NAME."
        if names
        else "It is no server."
    )
    raise NotDone(f"{spec.package} has no program {wanted!r}", there)


# PyPI

_HAS_PIP = find_spec("pip") is not None
"""A virtual environment that gets a pip of its own takes some seconds more."""


def _python(folder: Path) -> Path:
    return folder / "venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


async def _pip(spec: PackageSpec, draft: Path, *words: str, scripts: bool) -> None:
    wheels = [] if scripts else ["--only-binary", ":all:"]
    common = ("install", "--quiet", "--no-input", "--disable-pip-version-check", "--retries", "1")
    python = str(_python(draft))
    pip = [sys.executable, "-m", "pip", "--python", python] if _HAS_PIP else [python, "-m", "pip"]
    code, _, err = await _run([*pip, *common, *wheels, *words], draft)
    if code:
        raise _fault(spec, err)


async def _pypi_resolve(spec: PackageSpec, draft: Path, *, scripts: bool) -> Release:
    """Write `requirements.txt`, in which every package has its exact version and checksum."""
    made = await _run([sys.executable, "-m", "venv", *(["--without-pip"] if _HAS_PIP else []), draft / "venv"], draft)
    if made[0]:
        raise NotDone("Python cannot make a virtual environment", "Install its package venv (python3-venv).")
    report = draft / "report.json"
    wanted = f"{spec.package}{spec.extras}{spec.version}"
    options = ("--dry-run", "--ignore-installed", "--report", str(report))
    await _pip(spec, draft, *options, wanted, *spec.also, scripts=scripts)
    packages = json.loads(report.read_text("utf-8"))["install"]
    lines = [_hashed(spec, each) for each in packages]
    (draft / "requirements.txt").write_text("\n".join([*lines, ""]), "utf-8")
    stated = next(each for each in packages if _plain(each["metadata"]["name"]) == _plain(spec.package))
    about = stated["metadata"]
    files = {each["metadata"]["name"]: each["download_info"]["url"] for each in packages}
    return Release(
        version=about["version"],
        publisher=_pypi_publisher(about),
        source=_pypi_source(about),
        integrity=lines[packages.index(stated)].partition("--hash=")[2],
        packages=len(packages),
        scripts=tuple(name for name, file in files.items() if not file.endswith(".whl")),
        command=spec.program or spec.package,
    )


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _pypi_publisher(about: Mapping[str, Any]) -> str:
    """The author in the package itself: an index states no account."""
    people = (about.get(key) for key in ("author", "author_email", "maintainer", "maintainer_email"))
    return next((f"{each} (as the package says)" for each in people if each), "")


def _pypi_source(about: Mapping[str, Any]) -> str:
    urls = (url.rpartition(", ")[2] for url in (*about.get("project_url", ()), about.get("home_page") or ""))
    return next((url for url in urls if url.startswith("http")), "")


def _hashed(spec: PackageSpec, package: Mapping[str, Any]) -> str:
    about = package["metadata"]
    checksum = package["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
    if not checksum or package["is_direct"]:  # pip has made the checksum of a URL itself
        raise _without_checksum(spec, about["name"])
    return f"{about['name']}=={about['version']} --hash=sha256:{checksum}"


async def _pypi_install(spec: PackageSpec, draft: Path, *, scripts: bool) -> None:
    await _pip(spec, draft, "--require-hashes", "--no-deps", "--requirement", "requirements.txt", scripts=scripts)


def _pypi_start(spec: PackageSpec, folder: Path) -> list[str]:
    """The script is an argument of Python: its own first line names the folder where it was installed."""
    python = _python(folder)
    inside = "Lib/site-packages" if os.name == "nt" else "lib/python*/site-packages"
    places = [str(each) for each in (folder / "venv").glob(inside)]
    found = next(iter(Distribution.discover(name=spec.package, path=places)))
    programs = {each.name: each.name for each in found.entry_points if each.group == "console_scripts"}
    name = _program(spec, programs)
    return [str(python), str(python.with_name(f"{name}.exe" if os.name == "nt" else name))]


_INSTALLERS: dict[
    Registry, tuple[Callable[..., Awaitable[Release]], Callable[..., Awaitable[None]], Callable[..., list[str]]]
] = {
    "npm": (_npm_resolve, _npm_install, _npm_start),
    "PyPI": (_pypi_resolve, _pypi_install, _pypi_start),
}
"""Resolve a package in a draft, install what was resolved, and say how it is started from a folder."""


# Folders

_DELETE = partial(shutil.rmtree, ignore_errors=True)


@dataclass(frozen=True)
class Installed:
    """A package in its folder. `tools` are those of its first start: name, and a digest of the definition."""

    folder: Path
    spec: PackageSpec
    release: Release
    start: tuple[str, ...]
    tools: Mapping[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder.parent

    @property
    def data(self) -> Path:
        return self.home / "data"

    def keep(self) -> None:
        values = {key: value for key, value in asdict(self).items() if key != "folder"}
        replace_file(self.folder / _RECORD, json.dumps(values, indent=2).encode())


def servers_folder() -> Path:
    return data_folder() / "servers"


@asynccontextmanager
async def draft() -> AsyncIterator[Path]:
    """A folder beside those of the servers, which is removed at the end unless it has been moved. Raises `OSError`."""
    folder = private_folder(data_folder(), "servers")
    for old in folder.glob(f"{_DRAFT}*"):  # of a program that was killed
        if old.stat().st_mtime < time.time() - _STALE:
            await in_thread(_DELETE, old)
    made = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=folder))
    try:
        yield made
    finally:
        await in_thread(_DELETE, made)


async def resolve(spec: PackageSpec, folder: Path, *, scripts: bool) -> Release:
    """The exact version that would be installed in this draft. Raises `NotDone`."""
    with _described(spec):
        return await _INSTALLERS[spec.registry][0](spec, folder, scripts=scripts)


@contextmanager
def _described(spec: PackageSpec) -> Iterator[None]:
    """Encloses the use of what a registry and a package say of themselves, which may be of any form."""
    try:
        yield
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
        raise NotDone(f"{spec.package} is not described as packages are", "Its makers can correct that.") from None


async def install(spec: PackageSpec, release: Release, draft: Path, home: Path, *, scripts: bool) -> Installed:
    """Install what was resolved in the draft, and move it into the folder of its server. Raises `NotDone`."""
    _, install_in, start = _INSTALLERS[spec.registry]
    await install_in(spec, draft, scripts=scripts)

    folder = home / re.sub(r"[^\w.+-]", "_", release.version)
    await in_thread(_DELETE, folder)  # of the same version once: no configuration names it
    # Not in a thread: no cancel comes between the move and the record of it.
    with _described(spec):
        start(spec, draft)  # raises if there is no program
        draft.rename(folder)  # noqa: ASYNC240
        installed = Installed(folder, spec, release, tuple(start(spec, folder)))
        installed.keep()
    return installed


def new_home(name: str) -> Path:
    """A new folder for a server of this name: what a former one has left is not given to another. Raises `OSError`."""
    slug = re.sub(r"[^\w.-]", "_", name).lstrip(".")[:40] or "server"
    for number in count(1):
        home = servers_folder() / (slug if number == 1 else f"{slug}-{number}")
        with suppress(FileExistsError):
            home.mkdir(mode=0o700)
            (home / "data").mkdir(mode=0o700)
            return home
    raise AssertionError


def installed_for(words: Sequence[str]) -> Installed | None:
    """The installed package that a command with arguments starts; `None` if it starts none."""
    root = servers_folder()
    inside = next((Path(word).relative_to(root).parts for word in words if Path(word).is_relative_to(root)), ())
    if len(inside) < 2 or ".." in inside:
        return None
    folder = root.joinpath(*inside[:2])
    with suppress(OSError, ValueError, TypeError, KeyError):
        kept = json.loads((folder / _RECORD).read_text("utf-8"))
        release = {**kept["release"], "scripts": tuple(kept["release"]["scripts"])}
        spec, start = PackageSpec(**{**kept["spec"], "also": tuple(kept["spec"]["also"])}), tuple(kept["start"])
        return Installed(folder, spec, Release(**release), start, dict(kept["tools"]))
    return None


async def remove_versions(home: Path, *, keep: Sequence[Path] = (), data: bool = False) -> None:
    """Remove installed versions of a server, and its folder if nothing is left. Stored data stays, unless `data`."""

    def remove() -> None:
        for folder in home.iterdir():
            if folder not in keep and (data or folder.name != "data"):
                _DELETE(folder)
        with suppress(OSError):
            if not keep:
                (home / "data").rmdir()
        with suppress(OSError):
            home.rmdir()

    await in_thread(remove)
