"""How often a computer may send something."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Rate"]


class Rate:
    """At most `most` a second, on average and at once."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._left = float(most)
        self._at = clock()

    def allows(self) -> bool:
        """Whether one more may be sent now. If so, it is counted."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._at) * self._most)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
