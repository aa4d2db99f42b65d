"""Progress of a call on its way to the caller's `on_progress`.

A report may come from any thread. It is dropped unless it is larger than the last one. A callback gets one report at a
time. Reports that come together, as those of a server that sends them with its answer, wait for it (`_waiting`), at
most the last `_MOST_WAITING`. While the callback runs, a new report replaces all that wait, so a slow callback delays
nothing and nothing piles up. `_is_delivering` is true from the first report of a burst until the deliverer has found
nothing waiting, both under the lock: so there is one deliverer at a time, and no report stays behind. `_is_calling` is
true from the first callback of the deliverer until then. `_idle` changes under the same lock: the end of the call
clears it if there is a deliverer, which sets it later.

When the call has ended, later reports are dropped, and the reports that wait are still delivered. The caller gets the
result after the callback has returned, or after `_LAST_CALLBACK` seconds.

`_LISTENER` is the callback of the call that this code runs in. It is a context variable: threads and tasks that a tool
starts through `loops.py` or asyncio inherit it, and a call without a callback costs nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeAlias

from a2c_smcp.loops import invoke

__all__ = [
    "OnProgress",
    "ProgressInLoop",
    "ProgressInThread",
    "progress_in_loop",
    "progress_in_thread",
    "progress_listener",
    "report_progress",
]

logger = logging.getLogger(__name__)

OnProgress: TypeAlias = Callable[[float, float | None, str | None], Any]
"""Called with the progress, which grows, the total if it is known, and a message if there is one."""

_Report: TypeAlias = tuple[float, float | None, str | None]

_LAST_CALLBACK = 1.0  # seconds
_MOST_WAITING = 5

_LISTENER: ContextVar[OnProgress | None] = ContextVar("on_progress", default=None)


def report_progress(progress: float, total: float | None = None, message: str | None = None) -> None:
    """Reports the progress of the tool that this code belongs to. No effect if its caller does not want to know.

    Does not block, and may be called in any thread. `progress` must grow with each report; others are dropped.
    """
    if listener := _LISTENER.get():
        listener(progress, total, message)


def progress_listener() -> OnProgress | None:
    """Takes the reports of the call that this code runs in, from any thread; `None` if nobody wants them."""
    return _LISTENER.get()


class _Progress(ABC):
    """The reports that the callback has not got yet."""

    def __init__(self, callback: OnProgress, idle: asyncio.Event | threading.Event) -> None:
        self._callback, self._idle = callback, idle
        self._lock = threading.Lock()
        self._last = float("-inf")
        self._waiting = deque[_Report](maxlen=_MOST_WAITING)
        self._is_delivering = self._is_calling = False
        self._is_over = False

    def report(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        with self._lock:
            if self._is_over or not progress > self._last:
                return
            self._last = progress
            if self._is_calling:
                self._waiting.clear()
            self._waiting.append((progress, total, message))
            if self._is_delivering:
                return
            self._is_delivering = True
        self._start()

    @abstractmethod
    def _start(self) -> None:
        """Starts a deliverer, which calls `_next` until there is nothing."""

    def _next(self) -> _Report | None:
        with self._lock:
            self._is_calling = self._is_delivering = bool(self._waiting)
            if not self._waiting:
                self._idle.set()
                return None
            return self._waiting.popleft()

    def _end(self) -> bool:
        """No later report counts. Returns whether the callback is still to be waited for."""
        with self._lock:
            self._is_over = True
            if self._is_delivering:
                self._idle.clear()
            return self._is_delivering


class ProgressInLoop(_Progress):
    """Calls the callback from a task of the event loop in which this was made. `call` may call it in a thread."""

    def __init__(self, callback: OnProgress, call: Callable[..., Awaitable[Any]] = invoke) -> None:
        self._idle: asyncio.Event = asyncio.Event()
        super().__init__(callback, self._idle)
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    async def finish(self) -> None:
        """Drops later reports and waits for the callback, at most `_LAST_CALLBACK` seconds."""
        if self._end():
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_CALLBACK):
                    await self._idle.wait()
        self.stop()

    def stop(self) -> None:
        """Drops all reports, and cancels the callback if it is async."""
        self._end()
        self._waiting.clear()
        self._is_delivering = self._is_calling = False
        if self._task:
            self._task.cancel()

    def _start(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._deliver())

    async def _deliver(self) -> None:
        while (report := self._next()) is not None:
            try:
                await self._call(self._callback, *report)
            except Exception:
                logger.exception("on_progress failed")


class ProgressInThread(_Progress):
    """Calls the callback in a thread of its own, for callers that block."""

    def __init__(self, callback: OnProgress) -> None:
        """Raises `TypeError` for an async callback."""
        if inspect.iscoroutinefunction(callback):
            raise TypeError("on_progress is async, and this call blocks: await acall instead")
        self._idle: threading.Event = threading.Event()
        super().__init__(callback, self._idle)

    def finish(self) -> None:
        """Drops later reports and waits for the callback, at most `_LAST_CALLBACK` seconds."""
        if self._end():
            self._idle.wait(_LAST_CALLBACK)

    def _start(self) -> None:
        try:
            threading.Thread(target=self._deliver, name="a2c-progress", daemon=True).start()
        except RuntimeError:  # no thread can be started: the next report tries again
            self._is_delivering = False

    def _deliver(self) -> None:
        while (report := self._next()) is not None:
            try:
                self._callback(*report)
            except Exception:
                logger.exception("on_progress failed")


@contextmanager
def progress_in_thread(callback: OnProgress) -> Iterator[None]:
    """Code in this block reports to the callback. Raises `TypeError` for an async callback."""
    progress = ProgressInThread(callback)
    token = _LISTENER.set(progress.report)
    try:
        yield
    finally:
        _LISTENER.reset(token)
        progress.finish()


@asynccontextmanager
async def progress_in_loop(callback: OnProgress) -> AsyncIterator[None]:
    """Code in this block reports to the callback, which is called in this event loop and may be async."""
    progress = ProgressInLoop(callback)
    token = _LISTENER.set(progress.report)
    try:
        yield
    except asyncio.CancelledError:
        progress.stop()
        raise
    finally:
        _LISTENER.reset(token)
        await progress.finish()
