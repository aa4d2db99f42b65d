"""Deadlines by the thousand: what is due within the same quarter of a second is one set, and one timer serves all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Deadlines"]

T = TypeVar("T")

_PER_SECOND = 4


class Deadlines(Generic[T]):
    """Calls `expire` for what was not discarded in time, at most a quarter of a second late and never early.

    Each is called by itself: one that fails harms no other. An item has to remember the number of its bucket.
    """

    def __init__(self, expire: Callable[[T], None]) -> None:
        self._expire = expire
        self._buckets: dict[int, set[T]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, item: T, until: float) -> int:
        """`until` is in the event loop's time. Returns the number by which the item is discarded."""
        number = int(until * _PER_SECOND) + 1
        bucket = self._buckets.get(number)
        if bucket is not None:
            bucket.add(item)
        else:
            self._buckets[number] = {item}
            if self._timer is None or number < self._armed:
                self._arm(number)
        return number

    def discard(self, item: T, number: int) -> None:
        bucket = self._buckets.get(number)
        if bucket is not None:
            bucket.discard(item)
            if not bucket:
                del self._buckets[number]

    def _arm(self, number: int) -> None:
        if self._timer:
            self._timer.cancel()
        self._armed = number
        self._timer = asyncio.get_running_loop().call_at(number / _PER_SECOND, self._look)

    def _look(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        now = loop.time()
        for number in sorted(number for number in self._buckets if number / _PER_SECOND <= now):
            for item in self._buckets.pop(number):
                loop.call_soon(self._expire, item)
        if self._buckets:
            self._arm(min(self._buckets))
