"""Calls that go on while something hostile happens beside them, and how long each of them waited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.computer.pace import slowdown

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
    """Calls again and again while the block runs. Fails if one call fails or takes more than two seconds.

    On a busy machine, where any work takes longer, a call may take as much longer.
    """
    loop, stop, waits = asyncio.get_running_loop(), asyncio.Event(), Waits()

    async def run() -> None:
        while not stop.is_set():
            began = loop.time()
            await call()
            waits.append(loop.time() - began)
            await asyncio.sleep(pause)

    task = asyncio.create_task(run())
    with slowdown() as found:
        try:
            yield waits
        finally:
            stop.set()
            async with asyncio.timeout(60):
                await task
    said = f"the longest of {len(waits)} calls took {waits.longest:.2f} s, other work {found.factor:.1f} times as long"
    assert waits.longest <= LONGEST_WAIT * found.factor, said
