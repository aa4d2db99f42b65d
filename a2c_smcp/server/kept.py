"""Answers that are kept for a while, bounded in number and in bytes, and shared fairly among offices.

When there is no more room, the office that holds the most gives up its oldest answer: nobody can use up the room of
another office by having much kept for himself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from a2c_smcp.server.deadlines import Deadlines

__all__ = ["Kept"]

K = TypeVar("K", bound=tuple[str, ...])
V = TypeVar("V")


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V
    size: int


@dataclass(slots=True)
class _Share(Generic[K, V]):
    """What is kept for one office, the oldest first."""

    entries: OrderedDict[K, _Entry[V]] = field(default_factory=OrderedDict)
    size: int = 0


class Kept(Generic[K, V]):
    """Values by key, which begins with an office, each for at most `seconds`."""

    def __init__(self, seconds: float, most: int, most_bytes: int) -> None:
        self._seconds = seconds
        self._most = most
        self._most_bytes = most_bytes
        self._shares: dict[str, _Share[K, V]] = {}
        self._count = 0
        self._bytes = 0
        self._deadlines: Deadlines[K] = Deadlines(lambda key, seconds: self.drop(key))

    def __len__(self) -> int:
        return self._count

    def get(self, key: K) -> V | None:
        share = self._shares.get(key[0])
        entry = share.entries.get(key) if share else None
        return entry.value if entry else None

    def keep(self, key: K, value: V, size: int) -> None:
        self.drop(key)
        self._deadlines.add(key, self._seconds)
        share = self._shares.setdefault(key[0], _Share())
        share.entries[key] = _Entry(value, size)
        share.size += size
        self._count += 1
        self._bytes += size
        while self._count > self._most:
            self._drop_oldest(max(self._shares.values(), key=lambda each: len(each.entries)))
        while self._bytes > self._most_bytes:
            self._drop_oldest(max(self._shares.values(), key=lambda each: each.size))

    def drop(self, key: K) -> None:
        share = self._shares.get(key[0])
        if share is None or (entry := share.entries.pop(key, None)) is None:
            return
        self._deadlines.discard(key, self._seconds)
        share.size -= entry.size
        self._count -= 1
        self._bytes -= entry.size
        if not share.entries:
            del self._shares[key[0]]

    def drop_all(self, wanted: Callable[[K], bool] = lambda key: True) -> None:
        for key in [key for share in self._shares.values() for key in share.entries if wanted(key)]:
            self.drop(key)

    def _drop_oldest(self, share: _Share[K, V]) -> None:
        self.drop(next(iter(share.entries)))
