"""Answers that are kept for a while, bounded in number and in bytes: the oldest goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from a2c_smcp.server.deadlines import Deadlines

__all__ = ["Kept"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(slots=True)
class _Entry(Generic[V]):
    value: V
    size: int


class Kept(Generic[K, V]):
    """Values by key, each for at most `seconds`."""

    def __init__(self, seconds: float, most: int, most_bytes: int) -> None:
        self._seconds = seconds
        self._most = most
        self._most_bytes = most_bytes
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._bytes = 0
        self._deadlines: Deadlines[K] = Deadlines(lambda key, seconds: self.drop(key))

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        return entry.value if entry else None

    def keep(self, key: K, value: V, size: int) -> None:
        self.drop(key)
        self._deadlines.add(key, self._seconds)
        self._entries[key] = _Entry(value, size)
        self._bytes += size
        while len(self._entries) > self._most or self._bytes > self._most_bytes:
            self.drop(next(iter(self._entries)))

    def drop(self, key: K) -> None:
        if entry := self._entries.pop(key, None):
            self._deadlines.discard(key, self._seconds)
            self._bytes -= entry.size

    def drop_all(self, wanted: Callable[[K], bool] = lambda key: True) -> None:
        for key in [key for key in self._entries if wanted(key)]:
            self.drop(key)
