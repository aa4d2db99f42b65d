"""Watches configuration files, and applies their changes: those that need consent after the owner's yes.

The task that watches never waits for a change: a server may be slow to stop, and the owner may be away. Changes and the
question to the owner are tasks of their own. There is one question at a time; when the files change again it is
cancelled, and the new difference is asked about, if there still is one. What is applied after a yes is what the owner
was shown, even if the files have changed meanwhile; the next look at them finds the new change.

A change without a yes must not take effect by a restart of the program either. So it is kept (`RefusedChanges`) before
the owner is asked and when the program ends, and the next start asks about it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.files import Configuration, read_all
from a2c_smcp.computer.configuration.target import ServersFile
from a2c_smcp.computer.consent.programs import shown_scanner
from a2c_smcp.computer.secrets.mask import MASKED
from a2c_smcp.computer.secrets.replace import PAIRS, masked_server
from a2c_smcp.errors import ConfigError, SMCPError
from a2c_smcp.files import PrivateFileUnusable, PrivateJSONFile, Stamp, default_folder, stamp
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.config.sandbox import as_written
from a2c_smcp.mcp_host.config.sandbox import loosens as loosens_sandbox
from a2c_smcp.mcp_host.config.servers import CommandInput, MCPServerConfig, MCPServerInput, input_to_wire, source
from a2c_smcp.protocol.escaping import one_line

logger = logging.getLogger(__name__)

# Decides which changes of a configuration need the consent of the owner. Pure: two configurations in, a decision out.
#
# Why: the files are watched, and a change of a file restarts servers. An agent with a tool that writes files could
# otherwise have any program run, send secrets to any address, or let its tools run without approval. So a change needs
# consent if it decides which program is run, with which arguments and variables, which URL is used, which name means
# which tool, which tools run without approval, what is no longer masked, whether a changed tool is asked about, what
# scanners check, or what a sandbox allows. A change that only restricts, removes or describes is applied at once.
#
# How: `weigh` compares the configuration that is in use with the one in the files. Each server and each input is
# applied as a whole or not at all: if one of its fields needs consent, the whole server stays as it is in use, and its
# changes are `waiting`. With the owner's yes the new configuration is applied whole (`watch.py`). The check fails
# closed: a field needs consent unless a rule here calls its change harmless, so a field that is added to the models
# later does. What the owner is shown is masked; a change that cannot be shown without a secret is shown as "changed".

_MOST = 400
_Loosens: TypeAlias = Callable[[Any, Any], bool]
"""True if a change of a field, from the first value to the second, allows more than before."""


@dataclass(frozen=True)
class Difference:
    """A change of one field as the owner is shown it, with secrets masked. `None` stands for no such field."""

    place: str
    before: Any = None
    after: Any = None

    def __str__(self) -> str:
        def shown(value: Any) -> str:
            return "nothing" if value is None else one_line(value, _MOST)

        if self.before == self.after:
            return f"{self.place}: changed, and not shown, since it may hold a secret"
        return f"{self.place}: {shown(self.after)}" + (
            "" if self.before is None else f" instead of {shown(self.before)}"
        )


@dataclass(frozen=True)
class Weighed:
    """The configuration that may be applied at once, and the changes that wait for the owner's yes."""

    at_once: Configuration
    waiting: tuple[Difference, ...] = ()


def weigh(before: Configuration, after: Configuration) -> Weighed:
    """Compare two configurations. Servers and inputs that need consent stay as before; all others are as after."""
    servers, inputs = dict(after.servers), dict(after.inputs)
    waiting: list[Difference] = []
    for name, config in after.servers.items():
        if found := [*_server(before.servers.get(name), config)]:
            waiting += found
            _leave(servers, before.servers, name)
    for id_, definition in after.inputs.items():
        if found := [*_input(before.inputs.get(id_), definition)]:
            waiting += found
            _leave(inputs, before.inputs, id_)
    waiting += _scanners(before, after)
    at_once = replace(after, servers=servers, inputs=inputs, scanners=before.scanners)
    return Weighed(at_once, tuple(waiting))


def _leave(entries: dict[str, Any], before: Mapping[str, Any], name: str) -> None:
    if name in before:
        entries[name] = before[name]
    else:
        del entries[name]


def _server(before: MCPServerConfig | None, after: MCPServerConfig) -> Iterator[Difference]:
    place, new = f"servers.{after.name}", source(after)
    old = source(before) if before else {}
    change = _Change(place, old, new, masked_server(old), masked_server(new))
    for name in dict.fromkeys((*type(after).model_fields, "type")):
        if old.get(name) == new.get(name):
            continue
        if name == "server_parameters":
            yield from _parameters(change.inside(name, place))
        elif (loosens := _LOOSENS.get(name)) is None or loosens(old.get(name), new.get(name)):
            yield change.difference(name, _SHOWN.get(name, _as_it_is))
    for tool in _loosened_tools(old, new):
        yield Difference(f"{place}: {tool}", None if before is None else "asks", "runs without asking")


def _scanners(before: Configuration, after: Configuration) -> Iterator[Difference]:
    """Scanners are compared as a whole: their order counts, a new one is a program that runs, one less checks less."""
    if before.scanners != after.scanners:
        old, new = ([*map(shown_scanner, configuration.scanners)] for configuration in (before, after))
        yield Difference("scanners", old or None, new or None)


def _as_it_is(value: Any) -> Any:
    return value


class _Change(NamedTuple):
    """An object before and after a change, as it is and with secrets masked."""

    place: str
    old: Mapping[str, Any]
    new: Mapping[str, Any]
    shown_old: Mapping[str, Any]
    shown_new: Mapping[str, Any]

    @property
    def fields(self) -> list[str]:
        """The fields that differ. An empty value counts as none."""
        names = dict.fromkeys((*self.old, *self.new))
        return [name for name in names if (self.old.get(name) or None) != (self.new.get(name) or None)]

    def is_of_objects(self, name: str) -> bool:
        return all(isinstance(shown.get(name), Mapping | None) for shown in (self.shown_old, self.shown_new))

    def inside(self, name: str, place: str) -> _Change:
        """The change of the object in a field."""
        old, new, shown_old, shown_new = (side.get(name) or {} for side in self[1:])
        return _Change(place, old, new, shown_old, shown_new)

    def difference(self, name: str, show: Callable[[Any], Any] = _as_it_is) -> Difference:
        return Difference(f"{self.place}.{name}", show(self.shown_old.get(name)), show(self.shown_new.get(name)))


def _parameters(change: _Change) -> Iterator[Difference]:
    """Each variable and each header is a line of its own."""
    for name in change.fields:
        if name in _HARMLESS_PARAMETERS:
            continue
        if name in PAIRS and change.is_of_objects(name):
            pairs = change.inside(name, f"{change.place}.{name}")
            for pair in dict.fromkeys((*pairs.old, *pairs.new)):
                if pairs.old.get(pair) != pairs.new.get(pair):
                    yield pairs.difference(pair)
        else:
            yield change.difference(name)


def _unmasks(before: Any, after: Any) -> bool:
    """True if agents may see a former secret, declared or detected."""
    old: Mapping[str, Any] = before or {}
    new: Mapping[str, Any] = after or {}
    was_secret = (name for name, is_secret in old.items() if is_secret)
    is_none = (name for name, is_secret in new.items() if is_secret is not True)
    return any(new.get(name) is not True for name in was_secret) or any(old.get(name) is not False for name in is_none)


def _pins_less(before: Any, after: Any) -> bool:
    """True if a changed tool may run where it had to ask. Without a value of its own the program's option holds."""
    modes = ("off", "warn", "ask")
    return after != "ask" and (None in (before, after) or modes.index(after) < modes.index(before))


_LOOSENS: dict[str, _Loosens] = {
    **dict.fromkeys(("name", "start", "idle_stop"), lambda before, after: False),
    "disabled": lambda before, after: before is not None and after is not True,
    "forbidden_tools": lambda before, after: before is not None and not set(before) <= set(after or ()),
    "tool_meta": lambda before, after: _aliases(before) != _aliases(after),
    "default_tool_meta": lambda before, after: _field(before, "alias") != _field(after, "alias"),
    "vrl": lambda before, after: after is not None,
    "desktop": lambda before, after: after == "any",
    "sandbox": loosens_sandbox,
    "secrets": _unmasks,
    "pin": _pins_less,
    "questions_for_agents": lambda before, after: not set(after or ()) <= set(before or ()),
}
"""By field of a server. Which tools run without approval is compared apart from this, in `_loosened_tools`."""

_HARMLESS_PARAMETERS = frozenset(
    ("timeout", "sse_read_timeout", "terminate_on_close", "encoding", "encoding_error_handler")
)


def _aliases(tools: Any) -> dict[str, Any]:
    """Aliases by tool: they decide which tool a name means, even a name that is forbidden."""
    known = tools if isinstance(tools, Mapping) else {}
    return {tool: alias for tool, meta in known.items() if (alias := _field(meta, "alias")) is not None}


_SHOWN: dict[str, Callable[[Any], Any]] = {"tool_meta": _aliases, "sandbox": as_written}
"""Functions that show a field, where it is not shown unchanged."""


def _loosened_tools(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """The tools that run without approval after the change, and did not before."""
    metas = [data.get("tool_meta") for data in (old, new)]
    named = dict.fromkeys(tool for tools in metas if isinstance(tools, Mapping) for tool in tools)
    if _runs_unasked(new, None) and not _runs_unasked(old, None):
        yield "every tool without a setting of its own"
    for tool in named:
        if _runs_unasked(new, tool) and not _runs_unasked(old, tool):
            yield f"tool {tool}"


def _runs_unasked(server: Mapping[str, Any], tool: str | None) -> bool:
    """True if a tool, or any tool without a rule of its own, runs without approval.

    A placeholder for `auto_apply` counts as a yes, whatever the value of its input is.
    """
    tools = server.get("tool_meta")
    own = _field(tools.get(tool), "auto_apply") if isinstance(tools, Mapping) and tool is not None else None
    decides = own if own is not None else _field(server.get("default_tool_meta"), "auto_apply")
    return decides not in (None, False)


def _field(meta: Any, name: str) -> Any:
    return meta.get(name) if isinstance(meta, Mapping) else None


def _input(before: MCPServerInput | None, after: MCPServerInput) -> Iterator[Difference]:
    place, old, new = f"inputs.{after.id}", _wire(before), _wire(after)
    hides = isinstance(after, CommandInput) or bool(new.get("password")) or bool(old.get("password"))
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) == new.get(name) or name in ("id", "description"):
            continue
        if name == "password" and new.get(name):
            continue
        is_hidden = name == "default" and hides
        known = [MASKED if is_hidden and value.get(name) is not None else value.get(name) for value in (old, new)]
        yield Difference(f"{place}.{name}", *known)


def _wire(definition: MCPServerInput | None) -> dict[str, Any]:
    return dict(input_to_wire(definition)) if definition else {}


_INTERVAL = 1.0

Consent: TypeAlias = Callable[[Sequence[object]], Awaitable[bool]]
"""Shows the changes to the owner, a line each. Only `True` is a yes."""


async def trusting(differences: Sequence[object]) -> bool:
    """A `Consent` that agrees to every change."""
    return True


_Content = TypeVar("_Content")


class WatchedChanges(Generic[_Content]):
    """Changes of watched files, and the one question to the owner about those that need consent.

    `what` the files hold is named in the log; `fault` begins the message about files that are wrong.
    """

    what: ClassVar[str]
    fault: ClassVar[str]

    def __init__(
        self,
        computer: Computer,
        known: _Content,
        on_fault: Callable[[str], None],
        consent: Consent | None,
        refused: RefusedChanges[_Content] | None,
    ) -> None:
        self._computer, self._known = computer, known
        self._on_fault, self._consent, self._refused = on_fault, consent, refused
        self._asking: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    async def consider(self, after: _Content) -> None:
        """Apply the changes that need no consent, and ask for the others. Raises `ConfigError` before any change."""
        raise NotImplementedError

    def lines(self, after: _Content) -> Sequence[object]:
        """The changes that need consent, a line each."""
        raise NotImplementedError

    def apply(self, after: _Content) -> None:
        raise NotImplementedError

    async def follow(self, paths: Sequence[Path], read: Callable[[], _Content], interval: float) -> None:
        """Consider changes of the files until cancelled. At the end, keep those without a yes for the next start."""
        stamps: list[Stamp | None] = []  # the files are read first of all: they may have changed since the start
        try:
            while True:
                await asyncio.sleep(interval)
                if (now := [*map(stamp, paths)]) == stamps:
                    continue
                stamps = now
                try:
                    await self.consider(read())
                except ConfigError as error:
                    self._on_fault(f"{self.fault}: {error.message}")
        finally:
            if [*map(stamp, paths)] != stamps:
                with suppress(ConfigError):
                    after = read()
                    self.keep(after, self.lines(after))
            await cancel_and_wait(*self._under_way)

    def withdraw(self) -> None:
        """Cancel the question to the owner: the files have changed again, and it is out of date."""
        if self._asking:
            self._asking.cancel()

    def ask(self, after: _Content, lines: Sequence[object]) -> None:
        """Ask for consent, and then apply what was shown, whatever is in the files by then."""
        if self._consent is None:
            logger.warning(
                "a change of the %s is not applied, since nobody can be asked: %s. "
                "Start again on a terminal, and say yes; --trust-changes applies such changes without asking",
                self.what,
                "; ".join(map(str, lines)),
            )
        else:
            self._asking = self.begin(self._ask(self._consent, after, lines))

    async def _ask(self, consent: Consent, after: _Content, lines: Sequence[object]) -> None:
        is_agreed = await consent(lines) is True
        if is_agreed:
            self.apply(after)
            self.keep(after, ())
        done = "is applied" if is_agreed else "was declined"
        logger.warning("a change of the %s %s: %s", self.what, done, "; ".join(map(str, lines)))

    def keep(self, after: _Content, lines: Sequence[object]) -> None:
        """Keep changes without a yes for the next start of this program, even if it is killed."""
        if self._refused and lines:
            self._refused.note(after, [*map(str, lines)])
        elif self._refused:
            self._refused.clear()

    def begin(self, change: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Make a change in a task of its own."""
        task = asyncio.create_task(change)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, SMCPError):
            self._on_fault(f"a change of the {self.what} failed: {error.message}")
        else:
            logger.error("a change of the %s failed", self.what, exc_info=error)


class ConfigurationChanges(WatchedChanges[Configuration]):
    """The configuration files, which their owner may also change through this program: `agreed` needs no consent."""

    what = "configuration"
    fault = "the configuration is not taken"

    def __init__(self, computer: Computer, paths: Sequence[Path], known: Configuration, *more: Any) -> None:
        super().__init__(computer, known, *more)
        self._paths = paths
        self._agreed = 0

    async def watch(self, interval: float = _INTERVAL) -> None:
        """Apply changes of the files until cancelled. While they are wrong, `on_fault` gets the reason.

        `consent` is asked before a change that needs it is applied (see `consent.py`); without it no such change is.
        `refused` keeps changes without a yes for the next start, so the files are read once more at the end.
        """
        await self.follow(self._paths, lambda: read_all(self._paths), interval)

    @property
    def servers(self) -> Mapping[str, MCPServerConfig]:
        """The servers that are in use."""
        return self._known.servers

    def file_of(self, name: str) -> ServersFile:
        """The file with this server; for a new one, the first that can be edited. Raises `ConfigError`."""
        editable = []
        for path in self._paths:
            with suppress(ConfigError):
                editable.append(ServersFile.read(path))
        with_it = [file for file in editable if name in file.servers]
        if not editable:
            raise ConfigError("this computer was started without a file of MCP servers in JSON, which could be edited")
        if name in self._computer.status() and not with_it:
            raise ConfigError(f"{name} is in no file that can be edited")
        return (with_it or editable)[0]

    async def agreed(self, name: str, config: MCPServerConfig | None) -> None:
        """Apply an entry that the owner has just written, or removed, through this program.

        Must be awaited at once: the watching task would ask for consent if it found the new entry before.
        """
        self.withdraw()
        self._agreed += 1
        others = {key: each for key, each in self._known.servers.items() if key != name}
        self.apply(replace(self._known, servers={**others, name: config} if config else others))
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def consider(self, after: Configuration) -> None:
        self.withdraw()
        agreed = self._agreed
        for config in self._changed(after):
            await self._computer.owner.host.check(config)
        if agreed != self._agreed:
            return  # the files have changed since they were read, which the next look finds
        weighed = weigh(self._known, after)
        self._reserve_names(weighed.at_once)
        self.apply(weighed.at_once)
        self.keep(after, weighed.waiting)  # until there is a yes
        if weighed.waiting:
            self.ask(after, weighed.waiting)

    def lines(self, after: Configuration) -> Sequence[object]:
        return weigh(self._known, after).waiting

    def _reserve_names(self, after: Configuration) -> None:
        """Let no other server take over what a tool was called by: nobody has agreed to that."""
        changed = {config.name for config in self._changed(after)}
        self._computer.owner.catalog.reserve((self._known.servers.keys() - after.servers.keys()) | changed)

    def _changed(self, after: Configuration) -> list[MCPServerConfig]:
        known = self._known.servers
        return [
            config
            for name, config in after.servers.items()
            if name not in known or source(known[name]) != source(config)
        ]

    def apply(self, after: Configuration) -> None:
        """Begin all changes that lead to this configuration."""
        before, changed = self._known, self._changed(after)
        self._known = after = self._with_scanners(after)
        for words in sorted({*after.unknown} - {*before.unknown}):
            self._on_fault(words)
        if before.inputs != after.inputs:
            self._computer.define_inputs(after.inputs.values())
        for name in before.servers.keys() - after.servers.keys():
            self.begin(self._computer.remove_server(name))
        for config in changed:
            self.begin(self._computer.put_server(config))

    def _with_scanners(self, after: Configuration) -> Configuration:
        """Use its scanners. They are not tried out before: to import one runs it, which needs the owner's yes."""
        if after.scanners == self._known.scanners:
            return after
        try:
            self._computer.scanners.configure(after.scanners)
        except ConfigError as error:
            self._on_fault(f"the scanners stay as they were: {error.message}")
            return replace(after, scanners=self._known.scanners)
        return after


def digest_of_configuration(configuration: Configuration) -> str:
    """A digest that is the same for files that mean the same, however they are written."""
    servers = {name: source(each) for name, each in configuration.servers.items()}
    inputs = {id_: each.model_dump(mode="json") for id_, each in configuration.inputs.items()}
    parts: list[Any] = [servers, inputs]
    if configuration.scanners:
        parts.append([scanner.model_dump(mode="json") for scanner in configuration.scanners])
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class RefusedChanges(Generic[_Content]):
    """Changes of one set of files that have no yes: a digest of what is in them, and lines without secrets."""

    def __init__(self, files: Iterable[Path], digest_of: Callable[[_Content], str], folder: Path | None = None) -> None:
        self._digest_of = digest_of
        # links are not followed: a file that is replaced by a link to another is the same file to its owner
        names = "\0".join(sorted(os.path.abspath(path) for path in files))  # noqa: PTH100
        digest = hashlib.sha256(os.fsencode(names)).hexdigest()[:32]
        self._store = PrivateJSONFile((folder or default_folder()) / "changes" / f"{digest}.json")

    def note(self, content: _Content, lines: Sequence[str]) -> None:
        """From now on a start with this content needs a yes. Replaces an earlier note."""
        self._save({"configuration": self._digest_of(content), "lines": [*lines]})

    def clear(self) -> None:
        """The owner has agreed to what the files have now."""
        if self._load():
            self._save({})

    def lines_of(self, content: _Content) -> list[str]:
        """The changes in this content that have no yes. Empty for any other content."""
        kept = self._load()
        return [*map(str, kept["lines"])] if kept.get("configuration") == self._digest_of(content) else []

    def _load(self) -> dict[str, Any]:
        try:
            kept = self._store.load()
        except PrivateFileUnusable as error:
            logger.warning("%s", error)
            return {}
        return kept if isinstance(kept.get("lines"), list) else {}

    def _save(self, kept: dict[str, object]) -> None:
        try:
            self._store.save(kept)
        except PrivateFileUnusable as error:
            logger.warning("a refused change is forgotten when this program ends: %s", error)
