"""Deadlines by the thousand: what may take equally long is due in the order in which it began."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Deadlines"]

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Calls `expire` for what was not discarded within its time, for each by itself: one that fails harms no other."""

    def __init__(self, expire: Callable[[T, float], None]) -> None:
        self._expire = expire
        self._groups: dict[float, OrderedDict[T, float]] = {}

    def add(self, item: T, seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        group = self._groups.get(seconds)
        if group is None:
            group = self._groups[seconds] = OrderedDict()
            self._wait(now + seconds, seconds)
        group[item] = now + seconds

    def discard(self, item: T, seconds: float) -> None:
        if group := self._groups.get(seconds):
            group.pop(item, None)

    def _wait(self, until: float, seconds: float) -> None:
        asyncio.get_running_loop().call_at(until, self._look, seconds)

    def _look(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        group, now = self._groups[seconds], loop.time()
        while group:
            item, due = next(iter(group.items()))
            if due > now:
                self._wait(due, seconds)
                return
            del group[item]
            loop.call_soon(self._expire, item, seconds)
        del self._groups[seconds]
