"""Computers that were there when the connection was lost and may come back soon, as they do when a Server restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from a2c_smcp.agent.types import Seat

__all__ = ["ReturningComputers"]

_GRACE = 5.0  # as long as a Server keeps the seats of who was lost (WIRE §4)


class ReturningComputers:
    """While a computer is expected its tools stay known, and calls to it wait."""

    def __init__(self) -> None:
        self._lost: set[Seat] = set()
        self._until: dict[Seat, float] = {}
        self._ends: dict[str, asyncio.TimerHandle] = {}

    def lose(self, seats: Iterable[Seat]) -> None:
        """The connection is lost: nothing is known of these until there is another one."""
        self._lost.update(seats)

    def expect(self, office: str, when_over: Callable[[], None]) -> None:
        """Connected again: those of this office have from now on. Who is still away is found out `when_over`."""
        seats = {seat for seat in self._lost if seat.office == office}
        self._lost -= seats
        if not seats:
            return
        loop = asyncio.get_running_loop()
        self._until |= dict.fromkeys(seats, loop.time() + _GRACE)
        if end := self._ends.get(office):
            end.cancel()
        self._ends[office] = loop.call_later(_GRACE, self._end, office, when_over)

    def until(self, seat: Seat) -> float:
        """On the loop's clock; 0 if it is not expected."""
        return self._until.get(seat, 0.0)

    def discard(self, seat: Seat) -> None:
        """It is back, or gone for good."""
        self._lost.discard(seat)
        self._until.pop(seat, None)

    def clear(self) -> None:
        self._lost.clear()
        self._until.clear()
        for end in self._ends.values():
            end.cancel()
        self._ends.clear()

    def _end(self, office: str, when_over: Callable[[], None]) -> None:
        del self._ends[office]
        missing = [seat for seat in self._until if seat.office == office]
        for seat in missing:
            del self._until[seat]
        if missing:
            when_over()
