"""How far calls have got: told to whoever follows one, in order, and never at the cost of the call."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from statistics import median
from typing import Any, NamedTuple, TypeAlias

from a2c_smcp.computer.calls.journal import Key

__all__ = ["CallStatistics", "Figures", "Followers", "OnProgress"]

logger = logging.getLogger(__name__)

OnProgress: TypeAlias = Callable[[float, float | None, str | None], Awaitable[Any] | Any]
"""Progress, total and message. Called in the event loop: a plain function must return at once."""

_PENDING = 100
_LAST_WORDS = 0.2  # seconds that a result waits for callbacks of progress that came before it


class Followers:
    """Who follows which call."""

    def __init__(self) -> None:
        self._following: dict[Key, list[_Follower]] = {}

    @asynccontextmanager
    async def follow(self, call: Key, listener: OnProgress) -> AsyncGenerator[None, None]:
        """Tells the listener of the call meanwhile. One that is slow misses the oldest of what it has not heard."""
        follower = _Follower(listener)
        self._following.setdefault(call, []).append(follower)
        try:
            yield
            await follower.catch_up()
        finally:
            self._following[call].remove(follower)
            if not self._following[call]:
                del self._following[call]
            await follower.close()

    def tell(self, call: Key, progress: float, total: float | None, message: str | None) -> None:
        for follower in self._following.get(call, ()):
            follower.hear(progress, total, message)


class _Follower:
    def __init__(self, listener: OnProgress) -> None:
        self._listener = listener
        self._pending: deque[tuple[float, float | None, str | None]] = deque(maxlen=_PENDING)
        self._telling: asyncio.Task[None] | None = None

    def hear(self, *news: Any) -> None:
        self._pending.append(news)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.ensure_future(self._tell())

    async def catch_up(self) -> None:
        if self._telling is not None:
            await asyncio.wait([self._telling], timeout=_LAST_WORDS)

    async def close(self) -> None:
        if self._telling is not None and not self._telling.done():
            self._telling.cancel()
            await self.catch_up()

    async def _tell(self) -> None:
        while self._pending:
            try:
                outcome = self._listener(*self._pending.popleft())
                if isawaitable(outcome):
                    await outcome
            except Exception:
                logger.exception("a progress callback failed")


_KEPT = 100


class Figures(NamedTuple):
    """`p50` is the median of the last hundred, in seconds."""

    calls: int
    p50: float | None


class CallStatistics:
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
