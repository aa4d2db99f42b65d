"""`a2c-smcp add`, `remove`, `list`, `update`: MCP servers of a configuration file, installed once and pinned.

A change is shown before it is made: first the package is resolved, then its owner is asked, then it is installed and
started once in its sandbox; the configuration file is written last.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from a2c_smcp.cli import logs, options
from a2c_smcp.cli.errors import Failed, WrongUse, file_error, sentence, server_names_hint
from a2c_smcp.cli.options import option
from a2c_smcp.cli.setup_files import find_setups
from a2c_smcp.cli.terminal import Terminal, printable, put_json, put_table, put_text, spinning
from a2c_smcp.computer.configuration import packages
from a2c_smcp.computer.configuration.packages import Installed, PackageFault, PackageSpec, Release
from a2c_smcp.computer.configuration.target import ServersFile
from a2c_smcp.errors import ConfigError
from a2c_smcp.loops import run_program
from a2c_smcp.mcp_host.config.sandbox import as_written
from a2c_smcp.mcp_host.config.servers import parse_server
from a2c_smcp.mcp_host.limits import HostLimits
from a2c_smcp.mcp_host.manager import Manager
from a2c_smcp.mcp_host.processes.plan import planned, possible
from a2c_smcp.web import is_loopback

_NEW_FILE = "a2c.json"
_DATA = "{data}"
_RELATIVE = re.compile(r"\.\.?(/|$)")
_START = "a2c-smcp add NAME -- npx -y PACKAGE ARGS…, add NAME -- uvx PACKAGE ARGS…, or add NAME --url URL."
_NETWORK = "Say none, all, or TCP ports, such as 443 or 443,80."

NewName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the MCP server.", show_default=False)]
Config = Annotated[
    Path | None,
    option(None, "--config", "The file of MCP servers.", show_default="a2c.json or mcp.json here, as `up` finds it"),
]
Yes = Annotated[bool, option(None, "--yes", "Do it without a question.")]


@dataclass(frozen=True, kw_only=True)
class SandboxOptions:
    """What an added server may do."""

    read: Annotated[list[Path] | None, option(None, "--read", "File or folder that it may read; repeat for more.")] = (
        None
    )
    write: Annotated[
        list[Path] | None, option(None, "--write", "File or folder that it may change; repeat for more.")
    ] = None
    network: Annotated[str, option(None, "--network", "none, all, or TCP ports such as 443,80.")] = "none"
    no_sandbox: Annotated[bool, option(None, "--no-sandbox", "Run it with all your rights.")] = False

    def settings(self, data: Path) -> dict[str, Any]:
        """The `sandbox` of an entry. Raises `WrongUse`."""
        for path in (*(self.read or ()), *(self.write or ())):
            if not path.expanduser().exists():
                raise WrongUse(f"{path} does not exist", "Make it, or leave it out of --read and --write.")
        connect = _ports(self.network)
        return {
            **({"read": [str(path.expanduser().resolve()) for path in self.read]} if self.read else {}),
            "write": [str(data), *(str(path.expanduser().resolve()) for path in self.write or ())],
            **({"connect": connect} if connect else {}),
        }


def _ports(text: str) -> list[int] | str:
    if text in ("none", "all"):
        return "any" if text == "all" else []
    if re.search(r"[A-Za-z]|:", text):
        raise WrongUse(f"--network {text}: a sandbox does not tell hosts apart", _NETWORK)
    words = text.split(",")
    if not all(word.strip().isdecimal() and 0 < int(word) < 65536 for word in words):
        raise WrongUse(f"--network {text}: not a port", _NETWORK)
    return [int(word) for word in words]


@options.takes_options
def add(
    name: NewName,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- npx|uvx PACKAGE ARGS…", help="The line that starts it.", show_default=False),
    ] = None,
    url: Annotated[str | None, option(None, "--url", "An MCP server that is reached over HTTP.")] = None,
    from_config: Annotated[
        bool, option(None, "--from-config", "Install what an entry starts with npx or uvx until now.")
    ] = False,
    config: Config = None,
    env: Annotated[list[str] | None, option(None, "--env", "NAME=VALUE for its environment; repeat.")] = None,
    scripts: Annotated[
        bool, option(None, "--install-scripts", "Let packages run code while they are installed.")
    ] = False,
    unchecked: Annotated[bool, option(None, "--no-start", "Add it without a first start.")] = False,
    yes: Yes = False,
    sandbox: SandboxOptions = SandboxOptions(),  # noqa: B008  # a frozen value, which Typer fills
) -> None:
    """Add an MCP server: from npm, from PyPI, or at a URL.

    The exact version of a package is installed into a folder of that server, with the checksums that its registry
    states. It is started from there: nothing is downloaded at a start, and nothing changes until `update`. On Linux it
    runs in a sandbox: it reads its own package, writes to its own data folder ({data} in arguments and --env), and has
    no network, unless you allow more. It is shown, and you are asked, before anything is installed.

    Examples:

    \b
    a2c-smcp add everything -- npx -y @modelcontextprotocol/server-everything
    a2c-smcp add notes --write ~/notes -- npx -y @modelcontextprotocol/server-filesystem ~/notes
    a2c-smcp add time --yes -- uvx mcp-server-time --local-timezone Europe/Berlin
    a2c-smcp add web --network 443,80 -- uvx mcp-server-fetch
    a2c-smcp add tracker --url https://tracker.example/mcp
    a2c-smcp add files --from-config
    """
    logs.set_up("error")
    terminal, file = Terminal(), _file(config)
    if (words is not None) + (url is not None) + from_config != 1:
        raise WrongUse("Say where the MCP server comes from, once", _START)
    if name in file.servers and not from_config:
        raise WrongUse(f"{file.path.name} has an MCP server {name!r} already", "Choose another name, or `update` it.")
    if url is not None:
        _add_url(name, url, file, terminal, yes=yes)
        return
    try:
        start = packages.parse_start(words or _command(_entry(file, name)))
    except PackageFault as fault:
        raise WrongUse(fault.what, fault.remedy) from None
    if start is None:
        what = f"{name} starts no package with npx or uvx" if from_config else f"{words and words[0]} is not npx or uvx"
        raise WrongUse(what, f"{_START} A program of your own goes into {file.path.name} by hand.")
    with _reported():
        _Addition(name, *start, file, terminal, sandbox, _variables(env), scripts, yes).carry_out(unchecked=unchecked)


@contextmanager
def _reported() -> Iterator[None]:
    """Report what is wrong with a package. Raises `Failed`."""
    try:
        yield
    except PackageFault as fault:
        raise Failed(printable(fault.what), fault.remedy) from None


def _file(config: Path | None) -> ServersFile:
    path = config or next(iter(find_setups(Path.cwd())), Path(_NEW_FILE))
    if config is not None and not path.expanduser().parent.is_dir():
        raise WrongUse(f"--config: there is no folder {path.parent}", "Make it, or name another file.")
    try:
        return ServersFile.read(path)
    except ConfigError as error:
        raise file_error(error) from None


def _entry(file: ServersFile, name: str) -> dict[str, Any]:
    """Raises `WrongUse` if there is no such entry."""
    entry = file.servers.get(name)
    if not isinstance(entry, dict):
        what = f"There is no MCP server {name!r} in {file.path.name}"
        raise WrongUse(what, server_names_hint(name, [*file.servers]))
    return entry


def _variables(given: Sequence[str] | None) -> dict[str, str]:
    pairs = [each.partition("=") for each in given or ()]
    if wrong := next((name for name, sign, _ in pairs if not (name and sign)), None):
        raise WrongUse(f"--env {wrong}: not NAME=VALUE", "A secret goes into an input: --env 'TOKEN=${input:token}'.")
    return {name: value for name, _, value in pairs}


def _ask(question: str, terminal: Terminal, *, yes: bool) -> bool:
    """Raises `WrongUse` where nobody can be asked."""
    if yes:
        return True
    if not terminal.can_ask:
        raise WrongUse("There is no terminal to ask on, and nothing was done", "--yes does it without a question.")
    return typer.confirm(printable(question), default=False, err=True)


def _show(terminal: Terminal, title: str, facts: Mapping[str, str]) -> None:
    terminal.show(printable(title))
    for what, text in facts.items():
        if text:
            terminal.show(f"  {what + ':':<11}{printable(text)}")


def _save(file: ServersFile, before: ServersFile, name: str) -> None:
    """Write the file, if its entry is a valid one. Raises `Failed`."""
    try:
        parse_server(file.servers[name], name)
        file.write(before)
    except ConfigError as error:
        raise Failed(error.about, "Nothing was changed. Correct that, and try again.") from None


def _add_url(name: str, url: str, file: ServersFile, terminal: Terminal, *, yes: bool) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise WrongUse("--url is not the URL of an MCP server", "Write https://HOST/PATH.")
    if parts.username or parts.password:
        raise WrongUse("--url has a user or a password", "Write it without; `a2c-smcp login` signs in.")
    _parsed({"url": url}, name)
    _show(terminal, f"{name}: {url}", {"sees": "what agents send to its tools", "file": str(file.path)})
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        terminal.show("  not encrypted: others on the way can read and change what is sent", "yellow")
    if not _ask("Add it?", terminal, yes=yes):
        raise Failed("Nothing was added", "Run it again to be asked again.")
    _save(file.with_entry(name, ((), {"url": url})), file, name)
    put_text(f"added {name} to {file.path}; if it wants a sign-in: a2c-smcp login {shlex.quote(name)}")


def _parsed(entry: Mapping[str, Any], name: str) -> Any:
    try:
        return parse_server(entry, name)
    except ConfigError as error:
        raise WrongUse(error.about, "Nothing was done. Correct that, and try again.") from None


@dataclass(frozen=True)
class _Addition:
    """A package that becomes a server of a file."""

    name: str
    spec: PackageSpec
    args: Sequence[str]
    file: ServersFile
    terminal: Terminal
    sandbox: SandboxOptions
    variables: Mapping[str, str]
    scripts: bool
    yes: bool

    def carry_out(self, *, unchecked: bool) -> None:
        is_sandboxed = self._is_sandboxed()
        self.sandbox.settings(Path())  # wrong options are reported before anything is downloaded
        _parsed({"command": "x", "env": dict(self.variables)}, self.name)
        with packages.draft() as draft:
            with spinning(self.terminal, f"looking up {self.spec.package}"):
                release = packages.resolve(self.spec, draft, scripts=self.scripts)
            home = packages.new_home(self.name)
            try:
                self._show(release, home / "data", is_sandboxed=is_sandboxed)
                if not _ask(f"Install it, and add it to {self.file.path.name}?", self.terminal, yes=self.yes):
                    raise Failed("Nothing was added", "Run it again to be asked again.")
                with spinning(self.terminal, f"installing {release.packages} packages"):
                    installed = packages.install(self.spec, release, draft, home, scripts=self.scripts)
                after = self._changed(installed, is_sandboxed=is_sandboxed)
                if not unchecked:
                    _first_start(after, self.name, installed, self.terminal, yes=self.yes)
                _save(after, self.file, self.name)
            except BaseException:
                packages.remove_versions(home)
                raise
        put_text(f"added {self.name} to {self.file.path}: {self.spec.package} {release.version}")

    def _is_sandboxed(self) -> bool:
        """Raises `WrongUse` if there is no sandbox here, and nobody to ask."""
        entry = self.file.servers.get(self.name, {})
        if self.sandbox.no_sandbox or "sandbox" in entry or "sandbox" in entry.get("server_parameters", {}):
            return False
        settings = _parsed({"command": "x", "sandbox": self.sandbox.settings(Path("/"))}, self.name).sandbox
        missing = possible().missing(settings)
        if not missing:
            return True
        self.terminal.show(f"This machine cannot hold it in a sandbox: {'; '.join(missing)}", "yellow")
        if self.yes or not self.terminal.can_ask:
            raise WrongUse("There is no sandbox for it here, and nothing was done", "--no-sandbox adds it without one.")
        if not typer.confirm("Let it run with all your rights?", default=False, err=True):
            raise Failed("Nothing was added", "Add it on a machine that has sandboxes, or in a container.")
        return False

    def _show(self, release: Release, data: Path, *, is_sandboxed: bool) -> None:
        settings = self.sandbox.settings(data)
        limits = {
            "reads": ", ".join(["its package, and what every program needs", *settings.get("read", ())]),
            "writes": ", ".join(settings["write"]),
            "network": _network_in_words(settings.get("connect", [])),
        }
        _show(
            self.terminal,
            f"{self.name}: {self.spec.package} {release.version}, from {self.spec.registry}",
            {
                **_origin(release),
                "command": shlex.join([Path(release.command).name, *self._arguments(data)]),
                **(limits if is_sandboxed else {"sandbox": "as its entry says, or none: it has all your rights"}),
            },
        )
        self._warn(release, settings if is_sandboxed else None)

    def _warn(self, release: Release, settings: Mapping[str, Any] | None) -> None:
        if release.scripts:
            does = "may run code now" if self.scripts else "want to run code now, which is left out (--install-scripts)"
            self.terminal.show(f"  {printable(', '.join(release.scripts))}: {does}", "yellow")
        if settings is None:
            return
        words = self._arguments(Path(settings["write"][0]))
        box = _parsed({"command": "x", "sandbox": settings}, self.name).sandbox
        plan = planned(box, command=sys.executable, args=(), env=os.environ, configured={}, cwd=os.curdir)
        for word in words:
            if Path(word).is_absolute() and Path(word).exists() and not plan.allows("read", word):
                line = f"  it is given {printable(word)}, which it may not read: --read or --write allows it"
                self.terminal.show(line, "yellow")

    def _arguments(self, data: Path) -> list[str]:
        """Arguments that are relative paths become absolute: the server has a working directory of its own."""
        words = [word.replace(_DATA, str(data)) for word in self.args]
        return [
            str(Path(word).resolve()) if re.match(r"\.\.?(/|$)", word) and Path(word).exists() else word
            for word in words
        ]

    def _changed(self, installed: Installed, *, is_sandboxed: bool) -> ServersFile:
        """The file with the entry: a new one, or the known one with another command."""
        data, args = installed.data, [*installed.start[1:], *self._arguments(installed.data)]
        variables = {name: value.replace(_DATA, str(data)) for name, value in self.variables.items()}
        inside = {"HOME": str(data), **variables} if is_sandboxed else variables
        sandbox = as_written(self.sandbox.settings(data))
        entry = self.file.servers.get(self.name)
        if entry is None:
            more: dict[str, Any] = {"cwd": str(data), "sandbox": sandbox} if is_sandboxed else {}
            new = {"command": installed.start[0], "args": args, **({"env": inside} if inside else {}), **more}
            return self.file.with_entry(self.name, ((), new))
        under = ("server_parameters",) if "server_parameters" in entry else ()
        changes: list[tuple[Sequence[str], Any]] = [((*under, "command"), installed.start[0]), ((*under, "args"), args)]
        known = entry.get("server_parameters", entry).get("env") or {}
        changes += [((*under, "env", name), value) for name, value in inside.items() if name not in known]
        changes += [((*under, "cwd"), str(data)), (("sandbox",), sandbox)] if is_sandboxed else []
        return self.file.with_entry(self.name, *changes)


def _origin(release: Release) -> dict[str, str]:
    return {
        "publisher": release.publisher or "not stated by the registry",
        "source": release.source,
        "checksum": release.integrity[:40] + ("…" if len(release.integrity) > 40 else ""),
        "packages": f"{release.packages}, each with its checksum",
    }


def _network_in_words(connect: Sequence[int] | str) -> str:
    if connect == "any":
        return "all"
    return (
        f"TCP ports {', '.join(map(str, connect))}, at any address" if connect else "none (--network 443 allows HTTPS)"
    )


# The first start of an installed version


def _first_start(file: ServersFile, name: str, installed: Installed, terminal: Terminal, *, yes: bool) -> Installed:
    """Start the server once, as it will run, and keep what its tools are. One that wants inputs is not started.

    Raises `Failed` if it does not start, and its owner does not want it all the same.
    """
    entry = _parsed(file.servers[name], name)
    if "${" in json.dumps(file.servers[name]):
        return installed
    with spinning(terminal, f"starting {name} once"):
        tools, reason, warnings = run_program(_started(entry))
    for warning in warnings:
        terminal.show(f"  sandbox: {printable(warning)}", "yellow")
    if tools is not None:
        terminal.show(f"  it started, and has {len(tools)} tool{'' if len(tools) == 1 else 's'}")
        installed = replace(installed, tools={tool["name"]: _digest(tool) for tool in tools})
        installed.keep()
        return installed
    what = f"{name} does not start: {sentence(printable(reason))}"
    if yes or not terminal.can_ask:
        remedy = "Nothing was changed. --read, --write, --network or --env may help; --no-start does it all the same."
        raise Failed(what, remedy)
    terminal.show(what, "red")
    if not typer.confirm("Go on all the same?", default=False, err=True):
        raise Failed("Nothing was changed", "--read, --write, --network or --env may give it what it needs.")
    return installed


async def _started(entry: Any) -> tuple[list[dict[str, Any]] | None, str, Sequence[str]]:
    async with Manager(policy=HostLimits(start_limit=60.0)) as manager:
        manager.add(entry)
        await manager.start(entry.name)
        status = manager.status()[entry.name]
        return (manager[entry.name].tools if status.state == "ready" else None), status.reason, status.warnings


def _digest(tool: Mapping[str, Any]) -> str:
    about = {key: tool.get(key) for key in ("description", "inputSchema", "outputSchema", "annotations")}
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


# `a2c-smcp update`


def update(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="An installed MCP server; without it, all.", show_default=False)
    ] = None,
    to: Annotated[str | None, option(None, "--to", "This version, instead of the newest one.")] = None,
    config: Config = None,
    scripts: Annotated[
        bool, option(None, "--install-scripts", "Let packages run code while they are installed.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Update installed MCP servers: shows what changes, and asks.

    The version, the publisher and, after a first start of the new version, the tools are compared with those of now.
    The version of before stays in its folder until the next update. Options of the entry and its data stay.

    Examples:

    \b
    a2c-smcp update
    a2c-smcp update notes
    a2c-smcp update notes --to 2026.8.31 --yes
    """
    logs.set_up("error")
    terminal, file = Terminal(), _file(config)
    if name is not None:
        _entry(file, name)
    found = {each: _installed(entry) for each, entry in file.servers.items() if name in (None, each)}
    installed = {each: package for each, package in found.items() if package}
    if not installed:
        what = f"{name} is not installed by `add`" if name else f"{file.path.name} has no server that `add` installed"
        raise WrongUse(what, "`add NAME --from-config` installs what an entry starts with npx or uvx.")
    for each, package in installed.items():
        with _reported():
            _update(each, package, file, terminal, to=to, scripts=scripts, yes=yes)
        file = ServersFile.read(file.path)


def _installed(entry: Any) -> Installed | None:
    return packages.installed_for(_command(entry))


def _command(entry: Any) -> list[str]:
    """The command of an entry, with its arguments."""
    held = entry.get("server_parameters", entry) if isinstance(entry, dict) else {}
    args = held.get("args") if isinstance(held, dict) else None
    return [str(held.get("command", "")), *map(str, args if isinstance(args, list) else ())]


def _update(
    name: str, old: Installed, file: ServersFile, terminal: Terminal, *, to: str | None, scripts: bool, yes: bool
) -> None:
    exact = f"=={to}" if to and old.spec.registry == "PyPI" else to or ""
    spec = replace(old.spec, version=exact)
    if tuple(_command(file.servers[name])[: len(old.start)]) != old.start:
        raise Failed(f"The command of {name} was changed by hand", "Remove the server, and add it again.")
    with packages.draft() as draft:
        with spinning(terminal, f"looking up {spec.package}"):
            release = packages.resolve(spec, draft, scripts=scripts)
        if release.version == old.release.version:
            put_text(f"{name}: {spec.package} {release.version} is {'that version' if to else 'the newest one'}")
            return
        was, becomes = _origin(old.release), _origin(release)
        changed = {what: f"{was[what]} → {becomes[what]}" for what in was if was[what] != becomes[what]}
        _show(terminal, f"{name}: {spec.package} {old.release.version} → {release.version}", changed)
        if not _ask("Install it?", terminal, yes=yes):
            raise Failed(f"{name} stays as it is", "Run it again to be asked again.")
        with spinning(terminal, f"installing {release.packages} packages"):
            new = packages.install(spec, release, draft, old.home, scripts=scripts)
    try:
        _use(new, old, name, file, terminal, yes=yes)
    except BaseException:
        packages.remove_versions(old.home, keep=(old.folder,))
        raise
    packages.remove_versions(old.home, keep=(old.folder, new.folder))
    put_text(f"updated {name} to {spec.package} {release.version}")


def _use(new: Installed, old: Installed, name: str, file: ServersFile, terminal: Terminal, *, yes: bool) -> None:
    """Start another version instead of this one, unless its owner does not want what it changes. Raises `Failed`."""
    entry = file.servers[name]
    under = ("server_parameters",) if "server_parameters" in entry else ()
    args = [*new.start[1:], *_command(entry)[len(old.start) :]]
    after = file.with_entry(name, ((*under, "command"), new.start[0]), ((*under, "args"), args))
    new = _first_start(after, name, new, terminal, yes=yes)
    changes = list(_changed_tools(old.tools, new.tools)) if old.tools and new.tools else []
    for line in changes:
        terminal.show(f"  {printable(line)}", "yellow")
    if changes and not _ask("Its tools change. Use it?", terminal, yes=yes):
        raise Failed(f"{name} stays as it is", "Run it again to be asked again.")
    _save(after, file, name)


def _changed_tools(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for what, names in (
        ("new tools", new.keys() - old.keys()),
        ("tools that are gone", old.keys() - new.keys()),
        ("tools with another definition", {name for name in old.keys() & new.keys() if old[name] != new[name]}),
    ):
        if names:
            yield f"{what}: {', '.join(sorted(names))}"


# `a2c-smcp remove` and `a2c-smcp list`


def remove(
    name: NewName,
    config: Config = None,
    data: Annotated[bool, option(None, "--data", "Remove what it has stored in its data folder, too.")] = False,
    yes: Yes = False,
) -> None:
    """Remove an MCP server from its file, and what `add` installed for it.

    Its data folder stays, unless it is empty or --data says otherwise.

    Examples:

    \b
    a2c-smcp remove notes
    a2c-smcp remove notes --data --yes
    """
    terminal, file = Terminal(), _file(config)
    package = _installed(_entry(file, name))
    stored = package.data if package and package.data.is_dir() and any(package.data.iterdir()) else None
    facts = {
        "package": f"{package.spec.package} {package.release.version}" if package else "",
        "data": f"{stored}, which {'is removed' if data else 'stays'}" if stored else "",
        "file": str(file.path),
    }
    _show(terminal, name, facts)
    if not _ask(f"Remove {name}?", terminal, yes=yes):
        raise Failed("Nothing was removed", "Run it again to be asked again.")
    try:
        file.without_entry(name).write(file)
    except ConfigError as error:
        raise Failed(error.about, "Nothing was removed. Try again.") from None
    if package:
        packages.remove_versions(package.home, data=data)
    kept = f"; its data is in {stored}" if stored and not data else ""
    put_text(f"removed {name} from {file.path}{kept}")


def list_(config: Config = None, as_json: options.AsJSON = False) -> None:
    """List the MCP servers of a file: their packages with versions, and their sandboxes.

    Examples:

    \b
    a2c-smcp list
    a2c-smcp list --config servers.json --json
    """
    file = _file(config)
    rows = [_row(name, entry) for name, entry in file.servers.items()]
    if as_json:
        put_json({"file": str(file.path), "servers": rows})
        return
    if not rows:
        raise Failed(f"There are no MCP servers in {file.path}", f"Add one: {_START}")
    columns = ("name", "package", "version", "from", "sandbox")
    put_table(
        [each.upper() for each in columns], ([str(row[each] or "") for each in columns] for row in rows), cut="PACKAGE"
    )


def _row(name: str, entry: Any) -> dict[str, Any]:
    package = _installed(entry)
    held = entry.get("server_parameters", entry) if isinstance(entry, dict) else {}
    sandbox = isinstance(entry, dict) and (entry.get("sandbox") or held.get("sandbox"))
    place = held.get("url") or Path(str(held.get("command", ""))).name
    return {
        "name": name,
        "package": package.spec.package if package else place,
        "version": package.release.version if package else None,
        "from": package.spec.registry if package else ("URL" if "url" in held else "command"),
        "sandbox": ("any" if "any" in json.dumps(sandbox) else "yes") if sandbox else "",
    }
