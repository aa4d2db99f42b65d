"""Calls that go on while something hostile happens beside them, and how long each of them waited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

__all__ = ["Waits", "calling_meanwhile"]

LONGEST_WAIT = 2.0


class Waits(list[float]):
    """Seconds that each call took, in the order in which they ended."""

    @property
    def longest(self) -> float:
        return max(self)

    @property
    def p99(self) -> float:
        return sorted(self)[int(len(self) * 0.99)]


@asynccontextmanager
async def calling_meanwhile(call: Callable[[], Awaitable[Any]], pause: float = 0.02) -> AsyncIterator[Waits]:
    """Calls again and again while the block runs. Fails if one call fails or takes more than two seconds."""
    loop, stop, waits = asyncio.get_running_loop(), asyncio.Event(), Waits()

    async def run() -> None:
        while not stop.is_set():
            began = loop.time()
            await call()
            waits.append(loop.time() - began)
            await asyncio.sleep(pause)

    task = asyncio.create_task(run())
    try:
        yield waits
    finally:
        stop.set()
        async with asyncio.timeout(30):
            await task
    assert waits.longest <= LONGEST_WAIT, f"the longest of {len(waits)} calls took {waits.longest:.2f} s"
