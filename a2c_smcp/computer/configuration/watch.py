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
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Self, TypeAlias, TypeVar

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.configuration.consent import Difference, weigh
from a2c_smcp.computer.configuration.files import Configuration, read_all
from a2c_smcp.computer.file_stamps import Stamp, stamp
from a2c_smcp.errors import ConfigError, SMCPError
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.config.servers import MCPServerConfig, source
from a2c_smcp.private_files import PrivateFileUnusable, PrivateJSONFile, default_folder

__all__ = ["Consent", "RefusedChanges", "digest_of_configuration", "read_all", "trusting", "watch"]

logger = logging.getLogger(__name__)

_INTERVAL = 1.0

Consent: TypeAlias = Callable[[Sequence[object]], Awaitable[bool]]
"""Shows the changes to the owner, a line each. Only `True` is a yes."""


async def trusting(differences: Sequence[object]) -> bool:
    """A `Consent` that agrees to every change."""
    return True


async def watch(
    computer: Computer,
    paths: list[Path],
    known: Configuration,
    on_fault: Callable[[str], None],
    consent: Consent | None = None,
    refused: RefusedChanges[Configuration] | None = None,
    interval: float = _INTERVAL,
) -> None:
    """Apply changes of the files until cancelled. While they are wrong, `on_fault` gets the reason and nothing changes.

    `consent` is asked before a change that needs it is applied (see `consent.py`); without it no such change is.
    `refused` keeps changes without a yes for the next start, so the files are read once more at the end.
    """
    stamps: list[Stamp | None] = []  # the files are read first of all: they may have changed since the start
    async with _Changes(computer, known, on_fault, consent, refused) as changes:
        try:
            while True:
                await asyncio.sleep(interval)
                if (now := _stamps(paths)) == stamps:
                    continue
                stamps = now
                try:
                    await changes.consider(read_all(paths))
                except ConfigError as error:
                    on_fault(f"the configuration is not taken: {error.message}")
        finally:
            if _stamps(paths) != stamps:
                with suppress(ConfigError):
                    changes.keep_for_next_start(read_all(paths))


class _Changes:
    """Applies changes of the configuration to a computer, each in a task of its own."""

    def __init__(
        self,
        computer: Computer,
        known: Configuration,
        on_fault: Callable[[str], None],
        consent: Consent | None,
        refused: RefusedChanges[Configuration] | None,
    ) -> None:
        self._refused = refused
        self._computer = computer
        self._known = known
        self._on_fault = on_fault
        self._consent = consent
        self._asking: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_and_wait(*self._under_way)

    async def consider(self, after: Configuration) -> None:
        """Apply the changes that need no consent, and ask for the others. Raises `ConfigError` before any change."""
        if self._asking:
            self._asking.cancel()  # the files have changed again: the question is out of date
        await self._check(after)
        weighed = weigh(self._known, after)
        self._apply(weighed.at_once)
        self._keep(after, weighed.waiting)  # until there is a yes, even if this program is killed
        if not weighed.waiting:
            return
        if self._consent is None:
            logger.warning(
                "a change of the configuration is not applied, since nobody can be asked: %s. "
                "Start again on a terminal, and say yes; --trust-changes applies such changes without asking",
                _joined(weighed.waiting),
            )
            return
        self._asking = self._begin(self._ask(self._consent, after, weighed.waiting))

    async def _ask(self, consent: Consent, after: Configuration, waiting: Sequence[Difference]) -> None:
        """Apply what was shown, whatever is in the files by then."""
        if await consent(waiting) is not True:
            logger.warning("a change of the configuration was declined: %s", _joined(waiting))
            return
        self._apply(after)
        self._keep(after, ())
        logger.warning("a change of the configuration is applied: %s", _joined(waiting))

    def keep_for_next_start(self, after: Configuration) -> None:
        """Keep the changes that would need a yes, for the next start of this program."""
        self._keep(after, weigh(self._known, after).waiting)

    def _keep(self, after: Configuration, waiting: Sequence[Difference]) -> None:
        if self._refused is None:
            return
        if waiting:
            self._refused.note(after, [str(each) for each in waiting])
        else:
            self._refused.clear()

    async def _check(self, after: Configuration) -> None:
        for config in self._changed(after):
            await self._computer.check_server(config)

    def _changed(self, after: Configuration) -> list[MCPServerConfig]:
        known = self._known.servers
        return [config for name, config in after.servers.items() if _differs(known.get(name), config)]

    def _apply(self, after: Configuration) -> None:
        """Begin all changes that lead to this configuration."""
        before, changed = self._known, self._changed(after)
        self._known = after = self._with_scanners(after)
        for words in sorted({*after.unknown} - {*before.unknown}):
            self._on_fault(words)
        if before.inputs != after.inputs:
            self._computer.define_inputs(after.inputs.values())
        for name in before.servers.keys() - after.servers.keys():
            self._begin(self._computer.remove_server(name))
        for config in changed:
            self._begin(self._computer.put_server(config))

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

    def _begin(self, change: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(change)
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, SMCPError):
            self._on_fault(f"a change of the configuration failed: {error.message}")
        else:
            logger.error("a change of the configuration failed", exc_info=error)


def _joined(differences: Sequence[Difference]) -> str:
    return "; ".join(map(str, differences))


def _differs(before: MCPServerConfig | None, after: MCPServerConfig) -> bool:
    return before is None or source(before) != source(after)


def _stamps(paths: list[Path]) -> list[Stamp | None]:
    return [stamp(path) for path in paths]


def digest_of_configuration(configuration: Configuration) -> str:
    """A digest that is the same for files that mean the same, however they are written."""
    servers = {name: source(each) for name, each in configuration.servers.items()}
    inputs = {id_: each.model_dump(mode="json") for id_, each in configuration.inputs.items()}
    parts: list[Any] = [servers, inputs]
    if configuration.scanners:
        parts.append([each.model_dump(mode="json") for each in configuration.scanners])
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


_Content = TypeVar("_Content")


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
