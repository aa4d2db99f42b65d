"""Calls at a steady pace, whatever becomes of those before, and the account of each: made, run, answered."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from itertools import count, cycle

from a2c_smcp.errors import SMCPError

__all__ = ["Call", "Load", "Tally"]

Call = Callable[[int], Awaitable[str]]
"""Calls a tool with a number, on which it answers with the same number."""


class Tally:
    """By their numbers. What has run is counted inside the tool, where a second run cannot hide."""

    def __init__(self) -> None:
        self.made = 0
        self.runs: Counter[int] = Counter()
        self.waits: dict[int, float] = {}
        self.failures: dict[int, str] = {}

    @property
    def lost(self) -> int:
        return self.made - len(self.waits)

    @property
    def doubled(self) -> int:
        return sum(1 for runs in self.runs.values() if runs > 1)

    @property
    def longest(self) -> float:
        return max(self.waits.values(), default=0.0)


class Load:
    """Callers take turns, so many times a second, until it is ended."""

    def __init__(self, callers: Sequence[Call], rate: float, tally: Tally) -> None:
        self.tally = tally
        self._callers = callers
        self._rate = rate
        self._calling: set[asyncio.Task[None]] = set()
        self._pacing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._pacing = asyncio.create_task(self._pace())

    async def end(self) -> None:
        """No more are made; those in flight are waited for, each as long as it takes."""
        if self._pacing:
            self._pacing.cancel()
            await asyncio.gather(self._pacing, return_exceptions=True)
        await asyncio.gather(*self._calling)

    async def abandon(self) -> None:
        """Nobody waits any longer."""
        tasks = [*self._calling, *([self._pacing] if self._pacing else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pace(self) -> None:
        began = time.monotonic()
        for number, call in zip(count(), cycle(self._callers)):
            await asyncio.sleep(max(0.0, began + number / self._rate - time.monotonic()))
            self.tally.made += 1
            calling = asyncio.create_task(self._make(number, call))
            self._calling.add(calling)
            calling.add_done_callback(self._calling.discard)

    async def _make(self, number: int, call: Call) -> None:
        began = time.monotonic()
        try:
            answer = await call(number)
        except SMCPError as error:
            self.tally.failures[number] = str(error)
            return
        if answer == str(number):
            self.tally.waits[number] = time.monotonic() - began
        else:
            self.tally.failures[number] = f"{answer!r} came back"
