"""Answers that are kept for a while, bounded in number and in bytes, and shared fairly among offices.

When there is no more room, the office that holds the most gives up its oldest answer: nobody can use up the room of
another office by having much kept for himself.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Kept"]

K = TypeVar("K", bound=tuple[str, ...])


class _Share(Generic[K]):
    """What is kept for one office, the oldest first."""

    __slots__ = ("keys", "size")

    def __init__(self) -> None:
        self.keys: OrderedDict[K, None] = OrderedDict()
        self.size = 0


class Kept(Generic[K]):
    """Keys, which begin with an office, each for `seconds`: so the oldest is always the next to go.

    What they stand for is the owner's, who is told by `dropped` of every key that goes.
    """

    def __init__(self, seconds: float, most: int, most_bytes: int, dropped: Callable[[K], None]) -> None:
        self._dropped = dropped
        self._seconds = seconds
        self._most = most
        self._most_bytes = most_bytes
        self._entries: OrderedDict[K, tuple[int, float]] = OrderedDict()
        self._shares: dict[str, _Share[K]] = {}
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, key: K, size: int, now: float) -> None:
        """`size` counts for the bytes; `now` is the event loop's time."""
        self._entries[key] = (size, now + self._seconds)
        share = self._shares.get(key[0])
        if share is None:
            share = self._shares[key[0]] = _Share()
        share.keys[key] = None
        share.size += size
        self._bytes += size
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(now + self._seconds, self._drop_expired)
        while len(self._entries) > self._most:
            self._drop_oldest(max(self._shares.values(), key=lambda each: len(each.keys)))
        while self._bytes > self._most_bytes:
            self._drop_oldest(max(self._shares.values(), key=lambda each: each.size))

    def drop(self, key: K) -> None:
        if key not in self._entries:
            return
        size, _ = self._entries.pop(key)
        share = self._shares[key[0]]
        del share.keys[key]
        share.size -= size
        self._bytes -= size
        if not share.keys:
            del self._shares[key[0]]
        self._dropped(key)

    def drop_office(self, office_id: str, wanted: Callable[[K], bool]) -> None:
        """Those of one office that are wanted."""
        share = self._shares.get(office_id)
        for key in [key for key in share.keys if wanted(key)] if share else ():
            self.drop(key)

    def clear(self) -> None:
        for key in list(self._entries):
            self.drop(key)
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _drop_oldest(self, share: _Share[K]) -> None:
        self.drop(next(iter(share.keys)))

    def _drop_expired(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        now = loop.time()
        while self._entries:
            key, (_, until) = next(iter(self._entries.items()))
            if until > now:
                self._timer = loop.call_at(until, self._drop_expired)
                return
            self.drop(key)
