"""The owner adds, updates and removes an MCP server of a configuration file: on the command line, prompt and console.

A change is shown before it is made: first the package is resolved, then its owner is asked, then it is installed and
started once in its sandbox; the configuration file is written last. A no, a failure or a cancel leaves all as it was.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from a2c_smcp.computer.configuration import packages
from a2c_smcp.computer.configuration.packages import Installed, NotDone, PackageSpec, Release
from a2c_smcp.computer.configuration.target import ServersFile
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.config.inputs import did_you_mean
from a2c_smcp.mcp_host.config.sandbox import as_written
from a2c_smcp.mcp_host.config.servers import MCPServerConfig, parse_server
from a2c_smcp.mcp_host.limits import HostLimits
from a2c_smcp.mcp_host.manager import Manager
from a2c_smcp.mcp_host.processes.plan import planned, possible
from a2c_smcp.web import is_loopback

START = "npx -y PACKAGE ARGS…, uvx PACKAGE ARGS…, or the URL of an MCP server"
_DATA = "{data}"
_NETWORK = "Say none, all, or TCP ports, such as 443 or 443,80."
_CORRECT = "Nothing was done. Correct that, and try again."
_AGAIN = "Begin again to be asked again."


class Said(str):
    """An English sentence that knows its parts: `english` with `values` is said in other languages by a console."""

    english: str
    values: Mapping[str, object]

    def __new__(cls, english: str, **values: object) -> Said:
        made = super().__new__(cls, english.format(**values) if values else english)
        made.english, made.values = english, values
        return made


class Dialog(Protocol):
    """The owner, who is shown a change and asked. Sentences may be `Said`."""

    def show(self, line: str, style: str = "", facts: Mapping[str, str] | None = None) -> None:
        """Show a line, or a title with facts by English names."""

    def working(self, what: str) -> AbstractContextManager[object]:
        """Show that this goes on."""

    async def agrees(self, question: str, *, is_risk: bool = False) -> bool:
        """Ask. A yes that was given beforehand is none to a risk. Raises `NotDone` if nobody can be asked."""

    async def written(self, name: str, config: MCPServerConfig | None) -> None:
        """Called when the file has another entry, or none, with the owner's consent."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A server to add, in the words of its owner: a line that starts it, a URL, or what its entry starts until now.

    `scripts`: packages may run code while they are installed. `unchecked`: it is not started once.
    """

    name: str
    words: Sequence[str] | None = None
    url: str | None = None
    from_config: bool = False
    read: Sequence[Path] = ()
    write: Sequence[Path] = ()
    network: str = "none"
    no_sandbox: bool = False
    env: Sequence[str] = ()
    scripts: bool = False
    unchecked: bool = False

    def variables(self) -> dict[str, str]:
        pairs = [each.partition("=") for each in self.env]
        if wrong := next((name for name, sign, _ in pairs if not (name and sign)), None):
            remedy = "A secret goes into an input: TOKEN=${input:token}."
            raise NotDone(f"{wrong}: not NAME=VALUE, as its environment needs", remedy, is_wrong=True)
        return {name: value for name, _, value in pairs}

    def typed(self) -> dict[str, Any]:
        """The words that may hold secrets, as a configuration."""
        env = dict(each.partition("=")[::2] for each in self.env)
        command = {"command": "x", "args": [*(self.words or ())], "env": env}
        return {"servers": {self.name: {"server_parameters": {"url": self.url} if self.url else command}}}

    def sandbox(self, data: Path) -> dict[str, Any]:
        """The `sandbox` of its entry. Raises `NotDone`."""
        for path in (*self.read, *self.write):
            if not path.expanduser().exists():
                remedy = "Make it, or leave it out of what it may read and write."
                raise NotDone(f"{path} does not exist", remedy, is_wrong=True)
        read, write = ([str(path.expanduser().resolve()) for path in paths] for paths in (self.read, self.write))
        connect = _ports(self.network)
        return {
            **({"read": read} if read else {}),
            "write": [str(data), *write],
            **({"connect": connect} if connect else {}),
        }

    def arguments(self, given: Sequence[str], data: Path) -> list[str]:
        """Arguments that are relative paths become absolute: the server has a working directory of its own."""
        words = [word.replace(_DATA, str(data)) for word in given]
        return [
            str(Path(word).resolve()) if re.match(r"\.\.?(/|$)", word) and Path(word).exists() else word
            for word in words
        ]


def _ports(text: str) -> list[int] | str:
    if text in ("none", "all"):
        return "any" if text == "all" else []
    if re.search(r"[A-Za-z]|:", text):
        raise NotDone(f"network {text}: a sandbox does not tell hosts apart", _NETWORK, is_wrong=True)
    words = text.split(",")
    if not all(word.strip().isdecimal() and 0 < int(word) < 65536 for word in words):
        raise NotDone(f"network {text}: not a port", _NETWORK, is_wrong=True)
    return [int(word) for word in words]


async def add(wanted: Wanted, file: ServersFile, dialog: Dialog) -> Said:
    """Add a server. Returns what was done. Raises `NotDone`, also for a no."""
    name = wanted.name
    if (wanted.words is not None) + (wanted.url is not None) + wanted.from_config != 1:
        raise NotDone("Say where the MCP server comes from, once", f"Give {START}.", is_wrong=True)
    if name in file.servers and not wanted.from_config:
        what = f"{file.path.name} has an MCP server {name!r} already"
        raise NotDone(what, "Choose another name, or `update` it.", is_wrong=True)
    if wanted.url is not None:
        return await _add_url(name, wanted.url, file, dialog)
    start = packages.parse_start(wanted.words or command_of(entry_of(file, name)))
    if start is None:
        first = wanted.words and wanted.words[0]
        what = f"{name} starts no package with npx or uvx" if wanted.from_config else f"{first} is not npx or uvx"
        remedy = f"Give {START}. A program of your own goes into {file.path.name} by hand."
        raise NotDone(what, remedy, is_wrong=True)
    return await _Addition(wanted, *start, file, dialog).carry_out()


def entry_of(file: ServersFile, name: str) -> dict[str, Any]:
    """The entry of a server. Raises `NotDone` if there is none."""
    entry = file.servers.get(name)
    if not isinstance(entry, dict):
        what = f"There is no MCP server {name!r} in {file.path.name}{did_you_mean(name, [*file.servers])}"
        raise NotDone(what, "Name one that `list` shows.", is_wrong=True)
    return entry


def command_of(entry: Any) -> list[str]:
    """The command of an entry, with its arguments."""
    held = entry.get("server_parameters", entry) if isinstance(entry, dict) else {}
    args = held.get("args") if isinstance(held, dict) else None
    return [str(held.get("command", "")), *map(str, args if isinstance(args, list) else ())]


def installed_in(entry: Any) -> Installed | None:
    """The package that `add` installed for an entry."""
    return packages.installed_for(command_of(entry))


def _parsed(entry: Mapping[str, Any], name: str) -> Any:
    try:
        return parse_server(entry, name)
    except ConfigError as error:
        raise NotDone(error.about, _CORRECT, is_wrong=True) from None


def _save(file: ServersFile, before: ServersFile, name: str) -> MCPServerConfig | None:
    """Write the file, if its entry is a valid one, or is gone. Raises `NotDone`.

    The result is for `Dialog.written`, which is awaited next, where a cancel undoes nothing any more.
    """
    try:
        config = parse_server(file.servers[name], name) if name in file.servers else None
        file.write(before)
    except ConfigError as error:
        raise NotDone(error.about, "Nothing was changed. Correct that, and try again.") from None
    return config


async def _add_url(name: str, url: str, file: ServersFile, dialog: Dialog) -> Said:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise NotDone("That is not the URL of an MCP server", "Write https://HOST/PATH.", is_wrong=True)
    if parts.username or parts.password:
        raise NotDone("The URL has a user or a password", "Write it without, and sign in later.", is_wrong=True)
    _parsed({"url": url}, name)
    dialog.show(f"{name}: {url}", facts={"sees": Said("what agents send to its tools"), "file": str(file.path)})
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        dialog.show(Said("not encrypted: others on the way can read and change what is sent"), "yellow")
    if not await dialog.agrees(Said("Add it?")):
        raise NotDone("Nothing was added", _AGAIN)
    await dialog.written(name, _save(file.with_entry(name, ((), {"url": url})), file, name))
    command = f"a2c-smcp login {shlex.quote(name)}"
    return Said("added {name} to {file}; if it wants a sign-in: {command}", name=name, file=file.path, command=command)


@dataclass(frozen=True)
class _Addition:
    """A package that becomes a server of a file."""

    wanted: Wanted
    spec: PackageSpec
    args: Sequence[str]
    file: ServersFile
    dialog: Dialog

    async def carry_out(self) -> Said:
        wanted, spec, dialog, name = self.wanted, self.spec, self.dialog, self.wanted.name
        wanted.sandbox(Path())  # wrong words are reported before anything is downloaded
        _parsed({"command": "x", "env": wanted.variables()}, name)
        is_sandboxed = await self._is_sandboxed()
        async with packages.draft() as draft:
            with dialog.working(Said("looking up {package}", package=spec.package)):
                release = await packages.resolve(spec, draft, scripts=wanted.scripts)
            home = packages.new_home(name)
            try:
                self._show(release, home / "data", is_sandboxed=is_sandboxed)
                if not await dialog.agrees(Said("Install it, and add it to {file}?", file=self.file.path.name)):
                    raise NotDone("Nothing was added", _AGAIN)
                installed = await _install(spec, release, draft, home, dialog, scripts=wanted.scripts)
                after = self._changed(installed, is_sandboxed=is_sandboxed)
                if not wanted.unchecked:
                    await _first_start(after, name, installed, dialog)
                config = _save(after, self.file, name)
            except BaseException:
                await packages.remove_versions(home)
                raise
            await dialog.written(name, config)
        done = {"name": name, "file": self.file.path, "package": spec.package, "version": release.version}
        return Said("added {name} to {file}: {package} {version}", **done)

    async def _is_sandboxed(self) -> bool:
        """Raises `NotDone` if there is no sandbox here, and its owner does not want it without one."""
        entry = self.file.servers.get(self.wanted.name, {})
        if self.wanted.no_sandbox or "sandbox" in entry or "sandbox" in entry.get("server_parameters", {}):
            return False
        settings = _parsed({"command": "x", "sandbox": self.wanted.sandbox(Path("/"))}, self.wanted.name).sandbox
        if not (missing := possible().missing(settings)):
            return True
        self.dialog.show(Said("This machine cannot hold it in a sandbox: {why}", why="; ".join(missing)), "yellow")
        if not await self.dialog.agrees(Said("Let it run with all your rights?"), is_risk=True):
            remedy = "Add it without a sandbox (--no-sandbox), or where there is one."
            raise NotDone("There is no sandbox for it here, and nothing was done", remedy, is_wrong=True)
        return False

    def _show(self, release: Release, data: Path, *, is_sandboxed: bool) -> None:
        settings = self.wanted.sandbox(data)
        words = self.wanted.arguments(self.args, data)
        limits: dict[str, str] = {"sandbox": Said("as its entry says, or none: it has all your rights")}
        if is_sandboxed:
            others = ", ".join(settings.get("read", ()))
            own = Said("its package, and what every program needs, {others}", others=others)
            limits = {
                "reads": own if others else Said("its package, and what every program needs"),
                "writes": ", ".join(settings["write"]),
                "network": _network_in_words(settings.get("connect", [])),
            }
        command = shlex.join([Path(release.command).name, *words])
        named = {**vars(self.spec), "name": self.wanted.name, "version": release.version}
        title = Said("{name}: {package} {version}, from {registry}", **named)
        self.dialog.show(title, facts={**_origin(release), "command": command, **limits})
        if release.scripts:
            names = ", ".join(release.scripts)
            left_out = Said("{names}: want to run code now, which is left out (--install-scripts)", names=names)
            may_run = Said("{names}: may run code now", names=names)
            self.dialog.show(may_run if self.wanted.scripts else left_out, "yellow")
        if not is_sandboxed:
            return
        box = _parsed({"command": "x", "sandbox": settings}, self.wanted.name).sandbox
        plan = planned(box, command=sys.executable, args=(), env=os.environ, configured={}, cwd=os.curdir)
        for word in words:
            if Path(word).is_absolute() and Path(word).exists() and not plan.allows("read", word):
                self.dialog.show(Said("it is given {path}, which it may neither read nor write", path=word), "yellow")

    def _changed(self, installed: Installed, *, is_sandboxed: bool) -> ServersFile:
        """The file with the entry: a new one, or the known one with another command."""
        name, data = self.wanted.name, installed.data
        args = [*installed.start[1:], *self.wanted.arguments(self.args, data)]
        variables = {key: value.replace(_DATA, str(data)) for key, value in self.wanted.variables().items()}
        inside = {"HOME": str(data), **variables} if is_sandboxed else variables
        sandbox = as_written(self.wanted.sandbox(data))
        entry = self.file.servers.get(name)
        if entry is None:
            more: dict[str, Any] = {"cwd": str(data), "sandbox": sandbox} if is_sandboxed else {}
            new = {"command": installed.start[0], "args": args, **({"env": inside} if inside else {}), **more}
            return self.file.with_entry(name, ((), new))
        under = _under(entry)
        known = entry.get("server_parameters", entry).get("env") or {}
        changes: list[tuple[Sequence[str], Any]] = [((*under, "command"), installed.start[0]), ((*under, "args"), args)]
        changes += [((*under, "env", key), value) for key, value in inside.items() if key not in known]
        changes += [((*under, "cwd"), str(data)), (("sandbox",), sandbox)] if is_sandboxed else []
        return self.file.with_entry(name, *changes)


def _under(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return ("server_parameters",) if "server_parameters" in entry else ()


def _origin(release: Release) -> dict[str, str]:
    return {
        "publisher": release.publisher or Said("not stated by the registry"),
        "source": release.source,
        "checksum": release.integrity[:40] + ("…" if len(release.integrity) > 40 else ""),
        "packages": Said("{count}, each with its checksum", count=release.packages),
    }


def _network_in_words(connect: Sequence[int] | str) -> Said:
    if connect == "any":
        return Said("all")
    if connect:
        return Said("TCP ports {ports}, at any address", ports=", ".join(map(str, connect)))
    return Said("none (443 would allow HTTPS)")


async def _install(
    spec: PackageSpec, release: Release, draft: Path, home: Path, dialog: Dialog, *, scripts: bool
) -> Installed:
    with dialog.working(Said("installing {count} packages", count=release.packages)):
        return await packages.install(spec, release, draft, home, scripts=scripts)


# The first start of an installed version


async def _first_start(file: ServersFile, name: str, installed: Installed, dialog: Dialog) -> Installed:
    """Start the server once, as it will run, and keep what its tools are. One that wants inputs is not started.

    Raises `NotDone` if it does not start, and its owner does not want it all the same.
    """
    entry = _parsed(file.servers[name], name)
    if "${" in json.dumps(file.servers[name]):
        return installed
    with dialog.working(Said("starting {name} once", name=name)):
        async with Manager(policy=HostLimits(start_limit=60.0)) as manager:
            manager.add(entry)
            await manager.start(name)
            status = manager.status()[name]
            tools = manager[name].tools if status.state == "ready" else None
    for warning in status.warnings:
        dialog.show(Said("sandbox: {warning}", warning=warning), "yellow")
    if tools is not None:
        dialog.show(Said("it started; tools: {count}", count=len(tools)))
        installed = replace(installed, tools={tool["name"]: _digest(tool) for tool in tools})
        installed.keep()
        return installed
    dialog.show(Said("{name} does not start: {reason}", name=name, reason=status.reason), "red")
    if not await dialog.agrees(Said("Go on all the same?"), is_risk=True):
        remedy = "It may need more to read, write or connect to, or variables; it can be added without a first start."
        raise NotDone(f"{name} does not start, and nothing was changed", remedy)
    return installed


def _digest(tool: Mapping[str, Any]) -> str:
    about = {key: tool.get(key) for key in ("description", "inputSchema", "outputSchema", "annotations")}
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


# Updates


async def update(
    name: str | None, file: ServersFile, dialog: Dialog, *, to: str | None = None, scripts: bool = False
) -> str:
    """Update an installed server, or all, to the newest or another version. Returns what was done. Raises `NotDone`."""
    entries = {name: entry_of(file, name)} if name else file.servers
    installed = {each: package for each, entry in entries.items() if (package := installed_in(entry))}
    if not installed:
        what = f"{name} is not installed by `add`" if name else f"{file.path.name} has no server that `add` installed"
        remedy = "`add NAME --from-config` installs what an entry starts with npx or uvx."
        raise NotDone(what, remedy, is_wrong=True)
    done = []
    for each, package in installed.items():
        done.append(await _update(each, package, file, dialog, to=to, scripts=scripts))
        file = ServersFile.read(file.path)
    return done[0] if name else "\n".join(done)


async def _update(
    name: str, old: Installed, file: ServersFile, dialog: Dialog, *, to: str | None, scripts: bool
) -> Said:
    entry = file.servers[name]
    if tuple(command_of(entry)[: len(old.start)]) != old.start:
        raise NotDone(f"The command of {name} was changed by hand", "Remove the server, and add it again.")
    spec = replace(old.spec, version=f"=={to}" if to and old.spec.registry == "PyPI" else to or "")
    async with packages.draft() as draft:
        with dialog.working(Said("looking up {package}", package=spec.package)):
            release = await packages.resolve(spec, draft, scripts=scripts)
        done = {"name": name, "package": spec.package, "version": release.version}
        if release.version == old.release.version:
            return Said("{name}: {package} {version} is installed already", **done)
        was, becomes = _origin(old.release), _origin(release)
        changed = {what: f"{was[what]} → {becomes[what]}" for what in was if was[what] != becomes[what]}
        dialog.show(f"{name}: {spec.package} {old.release.version} → {release.version}", facts=changed)
        if not await dialog.agrees(Said("Install it?")):
            raise NotDone(f"{name} stays as it is", _AGAIN)
        new = await _install(spec, release, draft, old.home, dialog, scripts=scripts)
    try:
        config = await _use(new, old, name, file, dialog)
    except BaseException:
        await packages.remove_versions(old.home, keep=(old.folder,))
        raise
    await dialog.written(name, config)
    await packages.remove_versions(old.home, keep=(old.folder, new.folder))
    return Said("updated {name} to {package} {version}", **done)


async def _use(new: Installed, old: Installed, name: str, file: ServersFile, dialog: Dialog) -> MCPServerConfig | None:
    """Start another version instead of this one, unless its owner does not want what it changes. Raises `NotDone`."""
    under, args = _under(file.servers[name]), [*new.start[1:], *command_of(file.servers[name])[len(old.start) :]]
    after = file.with_entry(name, ((*under, "command"), new.start[0]), ((*under, "args"), args))
    new = await _first_start(after, name, new, dialog)
    changes = list(_changed_tools(old.tools, new.tools)) if old.tools and new.tools else []
    for line in changes:
        dialog.show(line, "yellow")
    if changes and not await dialog.agrees(Said("Its tools change. Use it?")):
        raise NotDone(f"{name} stays as it is", _AGAIN)
    return _save(after, file, name)


def _changed_tools(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[Said]:
    other = {name for name in old.keys() & new.keys() if old[name] != new[name]}
    if names := ", ".join(sorted(new.keys() - old.keys())):
        yield Said("new tools: {names}", names=names)
    if names := ", ".join(sorted(old.keys() - new.keys())):
        yield Said("tools that are gone: {names}", names=names)
    if names := ", ".join(sorted(other)):
        yield Said("tools with another definition: {names}", names=names)


# Removal, and the list


async def remove(name: str, file: ServersFile, dialog: Dialog, *, data: bool = False) -> Said:
    """Remove a server, with its installed package; with `data`, what it has stored, too. Raises `NotDone`."""
    package = installed_in(entry_of(file, name))
    stored = package.data if package and package.data.is_dir() and any(package.data.iterdir()) else None
    facts: dict[str, str] = {"file": str(file.path)}
    if stored:
        gone = Said("{folder}, which is removed", folder=stored)
        facts["data"] = gone if data else Said("{folder}, which stays", folder=stored)
    dialog.show(f"{name}: {package.spec.package} {package.release.version}" if package else name, facts=facts)
    if not await dialog.agrees(Said("Remove {name}?", name=name)):
        raise NotDone("Nothing was removed", _AGAIN)
    await dialog.written(name, _save(file.without_entry(name), file, name))
    if package:
        await packages.remove_versions(package.home, data=data)
    if stored and not data:
        return Said("removed {name} from {file}; its data is in {folder}", name=name, file=file.path, folder=stored)
    return Said("removed {name} from {file}", name=name, file=file.path)


def row_of(name: str, entry: Any) -> dict[str, Any]:
    """A server of a file in the list."""
    package = installed_in(entry)
    held = entry.get("server_parameters", entry) if isinstance(entry, dict) else {}
    sandbox = isinstance(entry, dict) and (entry.get("sandbox") or held.get("sandbox"))
    place = held.get("url") or Path(str(held.get("command", ""))).name
    return {
        "name": name,
        "package": package.spec.package if package else place,
        "version": package.release.version if package else None,
        "from": package.spec.registry if package else ("URL" if "url" in held else "command"),
        "sandbox": ("any" if isinstance(sandbox, dict) and "any" in sandbox.values() else "yes") if sandbox else "",
    }
