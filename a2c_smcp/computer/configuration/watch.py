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
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.consent import weigh
from a2c_smcp.computer.configuration.files import Configuration, read_all
from a2c_smcp.computer.configuration.target import ServersFile
from a2c_smcp.errors import ConfigError, SMCPError
from a2c_smcp.files import PrivateFileUnusable, PrivateJSONFile, Stamp, default_folder, stamp
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.config.servers import MCPServerConfig, source

logger = logging.getLogger(__name__)

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
