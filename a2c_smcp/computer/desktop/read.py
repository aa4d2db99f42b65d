"""Reading the desktop: only as many windows as it takes, several at a time, none of them for long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from a2c_smcp.computer.desktop.organize import Contents, Window, blobs_in, rank
from a2c_smcp.computer.types import ToolCallRecord
from a2c_smcp.errors import SMCPError
from a2c_smcp.types import Desktop

__all__ = ["read_desktop"]

logger = logging.getLogger(__name__)

_AT_ONCE = 8

Read = Callable[[Window], Awaitable[Contents]]


async def read_desktop(
    windows: Iterable[Window], size: int | None, history: Sequence[ToolCallRecord], read: Read
) -> list[Desktop]:
    """The desktop of these windows. One that cannot be read is left out, and costs the others nothing."""
    ranking = rank(windows, size, history)
    reading: dict[asyncio.Task[Contents], Window] = {}
    try:
        while wanted := ranking.wanted():
            for window in [each for each in wanted if each not in reading.values()][: _AT_ONCE - len(reading)]:
                reading[asyncio.ensure_future(_contents(read, window))] = window
            done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                ranking.put(reading.pop(task), task.result())
    finally:
        for task in reading:
            task.cancel()
    return ranking.desktops()


async def _contents(read: Read, window: Window) -> Contents:
    try:
        contents = await read(window)
    except SMCPError as error:
        logger.warning("window %s of %s cannot be read: %s", window.uri, window.server, error)
        return []
    if blobs := blobs_in(contents):
        logger.warning("window %s of %s: %d binary parts are not shown", window.uri, window.server, blobs)
    return contents
