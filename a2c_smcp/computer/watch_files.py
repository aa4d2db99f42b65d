"""Configuration files that are watched: only what has changed is restarted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Self

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.config_files import Configuration, read_configuration
from a2c_smcp.computer.mcp_clients.model import MCPServerConfig, source
from a2c_smcp.errors import ConfigError, SMCPError

__all__ = ["read_all", "watch"]

logger = logging.getLogger(__name__)

_INTERVAL = 1.0


def read_all(paths: Iterable[Path]) -> Configuration:
    """All files as one. Raises `ConfigError`, also for a name that stands in two of them."""
    merged = Configuration()
    unknown: list[str] = []
    for path in paths:
        found = read_configuration(path)
        for kind, known, new in (("server", merged.servers, found.servers), ("input", merged.inputs, found.inputs)):
            if twice := sorted(known.keys() & new.keys()):
                raise ConfigError(f"{path}: {kind} {twice[0]!r} stands in another file too")
        merged.servers.update(found.servers)
        merged.inputs.update(found.inputs)
        unknown += [f"{path}: {field}" for field in found.unknown]
    return Configuration(merged.servers, merged.inputs, tuple(unknown))


async def watch(
    computer: Computer,
    paths: list[Path],
    known: Configuration,
    on_fault: Callable[[str], None],
    interval: float = _INTERVAL,
) -> None:
    """Follows the files for ever. While they are wrong, nothing changes and the owner is told why."""
    stamps: list[tuple[int, int] | None] = []  # the first look is at the contents: they may have changed since
    async with _Changes(computer, known, on_fault) as changes:
        while True:
            await asyncio.sleep(interval)
            if (now := _stamps(paths)) == stamps:
                continue
            stamps = now
            try:
                await changes.make(read_all(paths))
            except ConfigError as error:
                on_fault(f"the configuration is not taken: {error.message}")


class _Changes:
    """Makes a computer what its files say. No change waits for another: a server may be slow, its owner away."""

    def __init__(self, computer: Computer, known: Configuration, on_fault: Callable[[str], None]) -> None:
        self._computer = computer
        self._known = known
        self._on_fault = on_fault
        self._under_way: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for change in self._under_way:
            change.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def make(self, after: Configuration) -> None:
        """Begins what is to be done. Raises `ConfigError` before anything is."""
        before = self._known
        changed = [config for name, config in after.servers.items() if _differs(before.servers.get(name), config)]
        for config in changed:
            await self._computer.check_server(config)
        self._known = after
        for field in sorted({*after.unknown} - {*before.unknown}):
            self._on_fault(f"{field} means nothing here")
        if before.inputs != after.inputs:
            self._computer.define_inputs(after.inputs.values())
        for name in before.servers.keys() - after.servers.keys():
            self._begin(self._computer.remove_server(name))
        for config in changed:
            self._begin(self._computer.put_server(config))

    def _begin(self, change: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(change)
        self._under_way.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, SMCPError):
            self._on_fault(f"a change of the configuration failed: {error.message}")
        else:
            logger.error("a change of the configuration failed", exc_info=error)


def _differs(before: MCPServerConfig | None, after: MCPServerConfig) -> bool:
    return before is None or source(before) != source(after)


def _stamps(paths: list[Path]) -> list[tuple[int, int] | None]:
    return [_stamp(path) for path in paths]


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        known = path.stat()
    except OSError:
        return None
    return known.st_mtime_ns, known.st_size
