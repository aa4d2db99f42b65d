"""Whether this process stood still a moment ago: what it reads then may be old, and its cancel may not be read yet."""

from __future__ import annotations

import asyncio
import weakref

__all__ = ["Stalls"]

_TICK = 0.5
_STALL = 1.0
_CATCH_UP = 0.5


class Stalls:
    """Looks at the clock from its first use on.

    Depending on the event loop, timers run before or after sockets are read: both a tick that is overdue and one that
    came late mean that the process stood still.
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


def _keep_ticking(loop: asyncio.AbstractEventLoop, reference: weakref.ref[Stalls]) -> None:
    def tick() -> None:
        if stalls := reference():
            stalls._tick(loop.time())
            loop.call_later(_TICK, tick)

    loop.call_later(_TICK, tick)
