"""Reads the windows of the desktop: only as many as needed, several at a time, each within a time limit."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence

from a2c_smcp.computer.desktop.organize import Contents, Window, blobs_in, rank
from a2c_smcp.computer.types import ToolCallRecord
from a2c_smcp.errors import CallTimeout, SMCPError
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.types import Desktop

__all__ = ["read_desktop"]

logger = logging.getLogger(__name__)

_AT_ONCE = 64
_AT_ONCE_OF_ONE_SERVER = 8  # a server may answer one by one, and the last answer must not seem slow
_ONE = 10.0
_ALL = 15.0  # the agent gets its answer within 20 s (WIRE §5)

Read = Callable[[Window, float], Awaitable[Contents]]
"""Reads a window within so many seconds."""


async def read_desktop(
    windows: Iterable[Window], size: int | None, history: Sequence[ToolCallRecord], read: Read
) -> list[Desktop]:
    """The desktop of these windows. A window that cannot be read is left out."""
    ranking, limits = rank(windows, size, history), _TimeLimits()
    reading: dict[asyncio.Task[Contents], Window] = {}
    try:
        while not ranking.is_known:
            for window in ranking.take(_AT_ONCE - len(reading)):
                reading[asyncio.ensure_future(_contents(read, window, limits))] = window
            done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                ranking.put(reading.pop(task), task.result())
    finally:
        await cancel_and_wait(*reading)
    return ranking.desktops()


class _TimeLimits:
    """How long a window may take to read. After a timeout, other windows of the same server are not read."""

    def __init__(self) -> None:
        self.turns: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_AT_ONCE_OF_ONE_SERVER))
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + _ALL
        self._slow: set[str] = set()

    def left(self, server: str) -> float:
        left = min(_ONE, self._deadline - self._loop.time())
        if left <= 0:
            raise CallTimeout(f"{server!r} is too slow")
        return left

    def add_slow(self, server: str) -> None:
        self._slow.add(server)

    def is_slow(self, server: str) -> bool:
        return server in self._slow


async def _contents(read: Read, window: Window, limits: _TimeLimits) -> Contents:
    try:
        async with limits.turns[window.server]:
            if limits.is_slow(window.server):
                return []
            contents = await read(window, limits.left(window.server))
    except SMCPError as error:
        if isinstance(error, CallTimeout):
            limits.add_slow(window.server)
        logger.warning("window %s of %s cannot be read: %s", window.uri, window.server, error)
        return []
    if blobs := blobs_in(contents):
        logger.warning("window %s of %s: %d binary parts are not shown", window.uri, window.server, blobs)
    return contents
