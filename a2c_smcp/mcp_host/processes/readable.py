"""Files that every sandboxed server may read: the system, interpreters, installed packages, and its own program.

No folder here holds documents or keys of the owner: of the home folder only those into which programs are installed.
Nothing of it may be written: what a server changes there, other programs would run. What belongs to a program is found
by links and files, such as `pyvenv.cfg`. Those in a folder that the server may write to are not followed: it could have
made them, to be allowed more when it starts again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/gnu/store", "/snap",
    "/etc/alternatives", "/etc/ca-certificates", "/etc/crypto-policies", "/etc/debian_version", "/etc/fonts",
    "/etc/gai.conf", "/etc/group", "/etc/host.conf", "/etc/hostname", "/etc/hosts", "/etc/ld.so.cache",
    "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload", "/etc/locale.alias", "/etc/locale.conf",
    "/etc/localtime", "/etc/lsb-release", "/etc/magic", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/os-release",
    "/etc/passwd", "/etc/pki", "/etc/protocols", "/etc/resolv.conf", "/etc/services", "/etc/ssl", "/etc/terminfo",
    "/etc/timezone",
    "/proc/cpuinfo", "/proc/filesystems", "/proc/loadavg", "/proc/meminfo", "/proc/self", "/proc/stat", "/proc/sys",
    "/proc/uptime", "/proc/version", "/proc/vmstat",
    "/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage",
)  # fmt: skip
"""Files and folders of the system, as far as they exist. `/proc/self` is that of the server, not of its children."""

DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
"""These may be written, too."""

IN_HOME = (
    ".asdf", ".bun", ".cache/deno", ".cache/node", ".cache/uv", ".cargo/bin", ".conda", ".deno", ".fnm", ".gem/ruby",
    ".local/bin", ".local/lib", ".local/pipx", ".local/share/fnm", ".local/share/mise", ".local/share/pipx",
    ".local/share/pnpm", ".local/share/pypoetry", ".local/share/uv", ".local/share/virtualenvs", ".local/state/fnm",
    ".npm/_cacache", ".npm/_npx", ".npm-global", ".nvm", ".pyenv", ".rbenv", ".rustup/toolchains", ".sdkman",
    ".virtualenvs", ".volta", "go/bin", "miniconda3", "miniforge3",
)  # fmt: skip
"""Where interpreters and packages are installed, and the caches of npx and uvx."""

_PREFIX_SIGNS = ("pyvenv.cfg", "conda-meta", "lib/node_modules", "include/node")
_PACKAGE_SIGNS = ("package.json", "pyproject.toml", "setup.py", "deno.json")
_MOST_LINKS = 10
_MOST_LINKS_OF_A_PATH = 40  # as the kernel
_PACKAGE_VARIABLES = ("PYTHONPATH", "NODE_PATH")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def of_program(
    command: str, args: Sequence[str], env: Mapping[str, str], cwd: str, writable: Collection[Path]
) -> list[str]:
    """Return the files that a server needs of its own program: command, script, their packages, certificates.

    `command` is an absolute path. The script is the first argument that is a file. Nothing is found by way of the
    `writable` folders, which are paths without links.
    """
    homes = homes_of(env)
    words = (os.path.join(cwd, word) for word in args)  # noqa: PTH118
    script = [Path(word) for word in words if os.path.isfile(word)][:1]  # noqa: PTH113  # no error for any text
    paths: list[Path] = []
    for file in (Path(command), *script):
        if not any(_is_in(at, writable) for at, _ in _steps(file)):
            paths += _program(file, homes)
    paths += [path for path in _of_variables(env, cwd) if not follows_link_in(path, writable)]
    return [str(path) for path in dict.fromkeys(paths) if path.exists()]


def _of_variables(env: Mapping[str, str], cwd: str) -> Iterator[Path]:
    """Yield the packages and certificates that the environment of a server names."""
    for name in _PACKAGE_VARIABLES:
        yield from (Path(cwd, part) for part in env.get(name, "").split(os.pathsep) if part)
    yield from (Path(env[name]) for name in _CERTIFICATES if env.get(name))


def homes_of(env: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the home folder of the owner, and the one in the environment of a server."""
    home = env.get("HOME")
    return tuple(dict.fromkeys((Path.home(), *([Path(home)] if home else ()))))


def is_private(folder: Path, homes: Sequence[Path]) -> bool:
    """True if a folder holds more than programs: a home folder, one above it, or the root of all folders."""
    return folder == folder.parent or any(
        home == folder or folder in home.parents or folder == home / ".local" for home in homes
    )


def follows_link_in(path: Path, folders: Collection[Path]) -> bool:
    """True if a path leads over a link in one of these folders, which are paths without links."""
    return any(is_link and _is_in(at, folders) for at, is_link in _steps(path))


def _is_in(path: Path, folders: Collection[Path]) -> bool:
    return any(folder == path or folder in path.parents for folder in folders)


def _steps(path: Path) -> Iterator[tuple[Path, bool]]:
    """Yield each folder on the way to a file, and True if its entry is a link; links are followed one by one."""
    at, left, links = Path(os.path.sep), [*reversed(Path(os.path.abspath(path)).parts[1:])], 0  # noqa: PTH100
    while left and links < _MOST_LINKS_OF_A_PATH:
        name = left.pop()
        is_link = name != os.pardir and (at / name).is_symlink()
        yield at, is_link
        if is_link:
            target, links = (at / name).readlink(), links + 1
            left += reversed([part for part in target.parts if part != os.path.sep])
            at = Path(os.path.sep) if target.is_absolute() else at
        else:
            at = at.parent if name == os.pardir else at / name


def _program(file: Path, homes: Sequence[Path]) -> Iterator[Path]:
    """Yield a file, the files that it links to, and the installation or package of each."""
    for path in _links(file):
        yield path
        prefix = path.parent.parent
        if path.parent.name == "bin" and (_has(prefix, _PREFIX_SIGNS) or any((prefix / "lib").glob("python3*"))):
            yield from (folder for folder in (prefix, *_base(prefix)) if not is_private(folder, homes))
        yield from _package(path, homes)


def _links(file: Path) -> Iterator[Path]:
    """Yield a file and its links, one after the other: a virtual environment is between two links."""
    for _ in range(_MOST_LINKS):
        yield Path(os.path.abspath(file))  # noqa: PTH100  # links stay
        if not file.is_symlink():
            break
        file = file.parent / file.readlink()
    yield file.resolve()


def _base(environment: Path) -> Iterator[Path]:
    """Yield the installation of Python that a virtual environment stands on."""
    try:
        lines = (environment / "pyvenv.cfg").read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return
    pairs = (line.partition("=") for line in lines)
    yield from (Path(value.strip()).parent for name, _, value in pairs if name.strip() == "home")


def _package(file: Path, homes: Sequence[Path]) -> Iterator[Path]:
    """Yield the nearest folder above a file that is a package, and the folders of packages beside and above it."""
    is_found = False
    for folder in file.parents:
        if is_private(folder, homes):
            return
        if folder.name == "node_modules":
            yield folder
        if (folder / "node_modules").is_dir():
            yield folder / "node_modules"
        if not is_found and _has(folder, _PACKAGE_SIGNS):
            is_found = True
            yield folder


def _has(folder: Path, signs: Sequence[str]) -> bool:
    return any((folder / sign).exists() for sign in signs)
