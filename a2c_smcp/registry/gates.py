"""How many calls of one tool run at once, and how many may wait for their turn. Threads and loops wait in one queue."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

from a2c_smcp.errors import RateLimited

__all__ = ["Gate", "Limit", "QueueFull"]


class QueueFull(RateLimited):
    """As many calls of the tool as may wait are waiting already."""

    title = "Too many calls of this tool are waiting"


@dataclass(frozen=True, slots=True)
class Limit:
    """Calls of one tool that run at once, and those that may wait in line; more are refused (429)."""

    at_once: int
    waiting: int = 100

    def __post_init__(self) -> None:
        if self.at_once < 1 or self.waiting < 0:
            raise ValueError("Limit needs at least one call at once, and a line that is not negative")


class Gate:
    """First come, first served. Whoever went in must `leave`, from whatever thread."""

    def __init__(self, name: str, limit: Limit) -> None:
        self._name, self._limit = name, limit
        self._lock = Lock()
        self._inside = 0
        self._line: deque[Future[None]] = deque()

    def enter(self, timeout: float | None = None) -> None:
        """Raises `QueueFull`, or `TimeoutError` if its turn does not come in time."""
        if (turn := self._come()) is not None:
            try:
                turn.result(timeout)
            except BaseException:
                self._give_up(turn)
                raise

    async def enter_async(self) -> None:
        if (turn := self._come()) is not None:
            try:
                await asyncio.wrap_future(turn)
            except BaseException:
                self._give_up(turn)
                raise

    def leave(self) -> None:
        """The place goes to the first in line who still wants it."""
        with self._lock:
            while self._line:
                turn = self._line.popleft()
                if turn.set_running_or_notify_cancel():
                    break
            else:
                self._inside -= 1
                return
        turn.set_result(None)

    def _come(self) -> Future[None] | None:
        with self._lock:
            if self._inside < self._limit.at_once:
                self._inside += 1
                return None
            if len(self._line) >= self._limit.waiting:
                raise QueueFull(repr(self._name), toolId=self._name, at_once=self._limit.at_once)
            turn: Future[None] = Future()
            self._line.append(turn)
            return turn

    def _give_up(self, turn: Future[None]) -> None:
        """A place that came too late is passed on."""
        if not turn.cancel():
            self.leave()
        with self._lock, suppress(ValueError):
            self._line.remove(turn)
