"""Which answers are kept for a while, for agents that come back: bounded in number and bytes, fairly among offices.

When there are too many, the oldest entry is dropped among those whose office holds an average share or more: an office
with many kept answers never costs another one its few.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["KeptAnswers"]

K = TypeVar("K", bound=tuple[str, ...])


class _Share:
    """What one office has kept."""

    __slots__ = ("count", "size")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0


class KeptAnswers(Generic[K]):
    """Keys of calls, which begin with an office, each kept for `seconds`: the oldest is always the next to expire.

    The answers themselves are the owner's, who is told of every key that is dropped (`dropped`).
    """

    def __init__(self, seconds: float, most: int, most_bytes: int, dropped: Callable[[K], None]) -> None:
        self._dropped = dropped
        self._seconds = seconds
        self._most = most
        self._most_bytes = most_bytes
        self._entries: OrderedDict[K, tuple[int, float]] = OrderedDict()
        self._shares: dict[str, _Share] = {}
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, key: K, size: int, now: float) -> None:
        """`size` is what the answer takes in bytes, `now` the event loop's time."""
        self._entries[key] = (size, now + self._seconds)
        share = self._shares.get(key[0])
        if share is None:
            share = self._shares[key[0]] = _Share()
        share.count += 1
        share.size += size
        self._bytes += size
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(now + self._seconds, self._drop_expired)
        while len(self._entries) > self._most:
            self._drop_one_of_many()
        while self._bytes > self._most_bytes:
            self._drop_one_of_large()

    def drop(self, key: K) -> None:
        size, _ = self._entries.pop(key)
        share = self._shares[key[0]]
        share.count -= 1
        share.size -= size
        self._bytes -= size
        if not share.count:
            del self._shares[key[0]]
        self._dropped(key)

    def discard(self, key: K) -> None:
        """Drops a key, if it is kept."""
        if key in self._entries:
            self.drop(key)

    def drop_office(self, office_id: str, wanted: Callable[[K], bool]) -> None:
        """Drops those keys of one office that are `wanted`."""
        if office_id in self._shares:
            for key in [key for key in self._entries if key[0] == office_id and wanted(key)]:
                self.drop(key)

    def clear(self) -> None:
        for key in list(self._entries):
            self.drop(key)
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _drop_one_of_many(self) -> None:
        count, offices, shares = len(self._entries), len(self._shares), self._shares
        for key in self._entries:
            if shares[key[0]].count * offices >= count:
                self.drop(key)
                return

    def _drop_one_of_large(self) -> None:
        offices, shares = len(self._shares), self._shares
        for key in self._entries:
            if shares[key[0]].size * offices >= self._bytes:
                self.drop(key)
                return

    def _drop_expired(self) -> None:
        loop, self._timer = asyncio.get_running_loop(), None
        now = loop.time()
        while self._entries:
            key, (_, until) = next(iter(self._entries.items()))
            if until > now:
                self._timer = loop.call_at(until, self._drop_expired)
                return
            self.drop(key)
