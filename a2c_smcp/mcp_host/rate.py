"""A limit on how often something may happen."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Rate"]


class Rate:
    """At most `most` a second on average, and `at_once`, by default as many, at once."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic, *, at_once: int | None = None) -> None:
        self._most, self._at_once = most, at_once or most
        self._clock = clock
        self._left = float(self._at_once)
        self._at = clock()

    def allows(self) -> bool:
        """Whether one more is allowed now. If so, it is counted."""
        now = self._clock()
        self._left = min(self._at_once, self._left + (now - self._at) * self._most)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
