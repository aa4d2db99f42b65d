"""How many calls each server has had, and how long they usually take. What its owner thinks about counts for nobody."""

from __future__ import annotations

from collections import Counter, deque
from statistics import median
from typing import NamedTuple

__all__ = ["Figures", "Tally"]

_KEPT = 100


class Figures(NamedTuple):
    """`p50` is the median of the last hundred, in seconds."""

    calls: int
    p50: float | None


class Tally:
    """The clock runs from the owner's yes to the answer, whatever that is."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._durations: dict[str, deque[float]] = {}

    def add(self, server: str, seconds: float) -> None:
        self._calls[server] += 1
        self._durations.setdefault(server, deque(maxlen=_KEPT)).append(seconds)

    def of(self, server: str) -> Figures:
        durations = self._durations.get(server)
        return Figures(self._calls[server], median(durations) if durations else None)
