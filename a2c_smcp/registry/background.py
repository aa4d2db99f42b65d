"""An event loop in a thread of its own, for connections that outlive the call that opened them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from threading import Lock, Thread
from typing import Any, TypeVar

from a2c_smcp.registry.entrances import LoopIsRunning
from a2c_smcp.registry.loops import is_in_loop

__all__ = ["Background", "is_in_loop"]

Result = TypeVar("Result")


class Background:
    """The thread starts with the first work. It is a daemon: who needs an orderly end calls `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._thread: Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Work to be done there. Cancelling the future cancels the work."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._started())
        except RuntimeError:  # closed, as the program ends
            work.close()
            raise

    def wait(self, work: Coroutine[Any, Any, Result], what: str) -> Result:
        """What comes of the work, for those who can block. Raises `LoopIsRunning` where an event loop would be."""
        if is_in_loop():
            work.close()
            raise LoopIsRunning(f"an event loop is running in this thread: {what}")
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def done(self, work: Coroutine[Any, Any, Result]) -> Result:
        """What comes of the work, from any event loop. Who is cancelled here cancels it there."""
        return await asyncio.wrap_future(self.submit(work))

    def close(self, farewell: Coroutine[Any, Any, None], limit: float) -> None:
        """Does one last thing and ends the thread."""
        with self._lock:
            thread, loop, over = self._thread, self._loop, self._over
        if thread is None or loop is None or over is None:
            farewell.close()
            return
        with suppress(TimeoutError, CancelledError):
            asyncio.run_coroutine_threadsafe(farewell, loop).result(limit)
        loop.call_soon_threadsafe(over.set)
        thread.join(limit)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                started: Future[asyncio.AbstractEventLoop] = Future()
                self._thread = Thread(target=self._run, args=(started,), name=self._name, daemon=True)
                self._thread.start()
                self._loop = started.result()
            return self._loop

    def _run(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        async def until_over() -> None:
            over = self._over = asyncio.Event()
            started.set_result(asyncio.get_running_loop())
            await over.wait()

        try:
            with asyncio.Runner() as runner:
                runner.run(until_over())
        except OSError as error:  # no descriptor is left for a loop
            started.set_exception(error)
