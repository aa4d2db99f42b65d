"""Reports about tool calls: their progress to listeners, statistics for the owner, and a span for a trace."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from inspect import isawaitable
from statistics import median
from typing import Any, NamedTuple, Protocol, TypeAlias

from a2c_smcp.computer.calls.in_flight import Begin, Work
from a2c_smcp.computer.calls.incoming import IncomingCall
from a2c_smcp.computer.calls.journal import Key
from a2c_smcp.computer.types import AttributedCall
from a2c_smcp.telemetry import conventions, tracing

__all__ = [
    "CallStatistics",
    "CallWatch",
    "OnProgress",
    "ProgressListener",
    "ProgressListeners",
    "ServerStatistics",
    "traced",
]

logger = logging.getLogger(__name__)

OnProgress: TypeAlias = Callable[[float, float | None, str | None], Awaitable[Any] | Any]
"""Called with progress, total and message, in the event loop: a plain function must return at once."""

_MAX_PENDING = 100
_LAST_REPORTS = 0.2  # seconds that a result waits for reports of progress that came before it
_DURATIONS = 100


class ProgressListener(Protocol):
    """Takes reports in order, and returns at once."""

    def report(self, progress: float, total: float | None, message: str | None) -> None: ...


class CallWatch(Protocol):
    """Follows all calls, for the owner. Its methods are called in the event loop, and return at once.

    Everything in a record is masked. A call that ended with `success` false and no error has a result with `isError`.
    """

    def began(self, call: Key, record: AttributedCall) -> None: ...

    def progressed(self, call: Key, progress: float, total: float | None, message: str | None) -> None: ...

    def ended(self, call: Key) -> None: ...


class ProgressListeners:
    """The listeners to the progress of each call, and `watch`, which follows all. A slow one never delays a call."""

    def __init__(self) -> None:
        self.watch: CallWatch | None = None
        self._listeners: dict[Key, list[ProgressListener]] = {}

    def add(self, call: Key, listener: ProgressListener) -> None:
        self._listeners.setdefault(call, []).append(listener)

    def has(self, call: Key) -> bool:
        return call in self._listeners or self.watch is not None

    @contextmanager
    def watched(self, call: Key, record: AttributedCall) -> Iterator[None]:
        """Report the beginning and the end of a call to `watch`."""
        if (watch := self.watch) is None:
            yield
            return
        watch.began(call, record)
        try:
            yield
        finally:
            watch.ended(call)

    def remove(self, call: Key, listener: ProgressListener) -> None:
        self._listeners[call].remove(listener)
        if not self._listeners[call]:
            del self._listeners[call]

    @asynccontextmanager
    async def listening(self, call: Key, listener: OnProgress) -> AsyncGenerator[None, None]:
        """Report the progress of a call to a listener meanwhile. A slow one misses the oldest pending reports."""
        reporting = _Listener(listener)
        self.add(call, reporting)
        try:
            yield
            await reporting.drain()
        finally:
            self.remove(call, reporting)
            await reporting.close()

    def report(
        self, call: Key, progress: float, total: float | None, message: str | None, mask: Callable[[str], str]
    ) -> None:
        """Report the progress of a call, with its message masked. Without listeners this costs nothing."""
        listeners = self._listeners.get(call, ())
        if not listeners and self.watch is None:
            return
        masked = mask(message) if message else message
        for listener in listeners:
            listener.report(progress, total, masked)
        if self.watch:
            self.watch.progressed(call, progress, total, masked)


class _Listener:
    """Calls one listener in order, in a task of its own."""

    def __init__(self, listener: OnProgress) -> None:
        self._listener = listener
        self._pending: deque[tuple[float, float | None, str | None]] = deque(maxlen=_MAX_PENDING)
        self._task: asyncio.Task[None] | None = None

    def report(self, progress: float, total: float | None, message: str | None) -> None:
        self._pending.append((progress, total, message))
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._call())

    async def drain(self) -> None:
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_LAST_REPORTS)

    async def close(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await self.drain()

    async def _call(self) -> None:
        while self._pending:
            try:
                outcome = self._listener(*self._pending.popleft())
                if isawaitable(outcome):
                    await outcome
            except Exception:
                logger.exception("a progress callback failed")


class ServerStatistics(NamedTuple):
    """`p50` is the median duration of the last hundred calls, in seconds."""

    calls: int
    p50: float | None


class CallStatistics:
    """How many calls each server has had, and how long they take. The time for the owner's approval is not counted."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()
        self._durations: dict[str, deque[float]] = {}

    def add(self, server: str, seconds: float) -> None:
        self._calls[server] += 1
        self._durations.setdefault(server, deque(maxlen=_DURATIONS)).append(seconds)

    def of(self, server: str) -> ServerStatistics:
        durations = self._durations.get(server)
        return ServerStatistics(self._calls[server], median(durations) if durations else None)


async def traced(call: IncomingCall, work: Work, begin: Begin) -> dict[str, Any]:
    """The result of a call, as one span of the trace that its agent names."""
    caller, meta = call.caller, call.options.meta if call.options else None
    names = call.name, caller.office, caller.agent
    with tracing.span(conventions.computer_call, meta, *names, req_id=call.req_id) as span:
        result = await work(begin)
        if result.get("isError"):
            span.fail(conventions.TOOL_ERROR)
        return result
