"""Deadlines of calls, thousands of them on one timer, and whether the process stood still a moment ago."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Deadlines", "StallDetector"]

T = TypeVar("T")

_PER_SECOND = 4
_TICK = 0.5
_STALL = 1.0
_CATCH_UP = 0.5


class Deadlines(Generic[T]):
    """Calls `expire` for every item that was not discarded in time, at most a quarter of a second late, never early.

    Items that are due within the same quarter of a second share a bucket, and one timer serves all buckets. A failure
    of one item does not affect the others. The caller keeps the bucket that `add` returns, and passes it to `discard`.
    """

    def __init__(self, expire: Callable[[T], None]) -> None:
        self._expire = expire
        self._buckets: dict[int, set[T]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, item: T, until: float) -> int:
        """`until` is in the event loop's time. Returns the item's bucket, for `discard`."""
        bucket = int(until * _PER_SECOND) + 1
        items = self._buckets.get(bucket)
        if items is not None:
            items.add(item)
        else:
            self._buckets[bucket] = {item}
            if self._timer is None or bucket < self._armed:
                self._arm(bucket)
        return bucket

    def discard(self, item: T, bucket: int) -> None:
        items = self._buckets.get(bucket)
        if items is not None:
            items.discard(item)
            if not items:
                del self._buckets[bucket]

    def _arm(self, bucket: int) -> None:
        if self._timer:
            self._timer.cancel()
        self._armed = bucket
        self._timer = asyncio.get_running_loop().call_at(bucket / _PER_SECOND, self._expire_due)

    def _expire_due(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        now = loop.time()
        for bucket in sorted(bucket for bucket in self._buckets if bucket / _PER_SECOND <= now):
            for item in self._buckets.pop(bucket):
                loop.call_soon(self._expire, item)
        if self._buckets:
            self._arm(min(self._buckets))


class StallDetector:
    """Tells whether this process stood still a moment ago.

    Messages read after a pause may be old, and their cancels may not have been read yet.

    It reads the clock regularly from its first use on. Depending on the event loop, timers run before or after sockets
    are read: both a tick that is overdue and one that came late mean that the process stood still.
    """

    def __init__(self) -> None:
        self._ticked: float | None = None
        self._until = 0.0

    def is_recent(self, now: float) -> bool:
        """`now` is the event loop's time."""
        if self._ticked is None:
            self._ticked = now
            _keep_ticking(asyncio.get_running_loop(), weakref.ref(self))
        return now < self._until or now - self._ticked > _TICK + _STALL

    def _tick(self, now: float) -> None:
        if self._ticked is not None and now - self._ticked > _TICK + _STALL:
            self._until = now + _CATCH_UP
        self._ticked = now


def _keep_ticking(loop: asyncio.AbstractEventLoop, reference: weakref.ref[StallDetector]) -> None:
    """Ticks as long as the detector is in use, without keeping it alive."""

    def tick() -> None:
        if detector := reference():
            detector._tick(loop.time())
            loop.call_later(_TICK, tick)

    loop.call_later(_TICK, tick)
