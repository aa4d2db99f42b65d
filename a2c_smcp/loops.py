"""Event loops and threads: a loop in a thread of its own, tasks with an owner, blocking calls beside a loop, signals.

Three rules hold everywhere in the package:

- A thread that runs an event loop never blocks. Blocking functions of ours ask `is_in_loop` first and raise
  `LoopIsRunning`. A thread that a loop waits for counts as part of that loop: if it blocked on work of the loop, both
  would wait for ever. `start_in_thread` marks such threads in their context.
- A blocking function runs in a daemon thread of its own, not in the loop's pool. The pool has few threads, shares them
  with name lookups, and keeps a program from ending.
- Every task has an owner that keeps a reference to it, logs its failure and cancels it (`OwnedTasks`).
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from threading import Lock, Thread
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_LOOP_IS_BLOCKED = ContextVar("loop_is_blocked", default=False)


class LoopIsRunning(RuntimeError):
    """A blocking function was called where an event loop runs: it would block the loop that its work may need."""


def is_in_loop() -> bool:
    """True if blocking here would stop an event loop: the loop of this thread, or one that waits for this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _LOOP_IS_BLOCKED.get()
    return True


def is_cancelled() -> bool:
    """True if the current task itself is being cancelled. Otherwise a `CancelledError` comes from an awaited thing."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def invoke(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function that may be async, and returns its result."""
    result = function(*arguments)
    return await result if inspect.isawaitable(result) else result


async def invoke_in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """As `invoke`, but a function that is not async runs in a thread, so it may block."""
    result = await in_thread(function, *arguments)
    return await result if inspect.isawaitable(result) else result


async def in_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Returns or raises what the function does. A cancel does not stop the thread: its result is dropped."""
    return await start_in_thread_async(function, *arguments)


def start_in_thread_async(function: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
    """Starts the function in a daemon thread. The running loop awaits the future.

    Raises `RuntimeError` if no thread can be started.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def run() -> None:
        settle: Callable[[Any], None] = done.set_result
        try:
            outcome: Any = function(*arguments)
        except BaseException as error:
            settle, outcome = done.set_exception, error
            if isinstance(error, StopIteration):
                # A future refuses StopIteration, and its waiter would wait for ever. Coroutines turn it into this.
                outcome = RuntimeError("a function in a thread raised StopIteration")
                outcome.__cause__ = error
        with suppress(RuntimeError):  # the loop was closed: nothing waits for the result
            loop.call_soon_threadsafe(_settle_once, done, settle, outcome)
        del outcome  # an error and this frame would refer to each other

    _start(run, function, copy_context())
    return done


def start_in_thread(function: Callable[..., Result], *arguments: Any) -> Future[Result]:
    """Starts the function in a daemon thread, for a caller that blocks on the future.

    Raises `RuntimeError` if no thread can be started.
    """
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(function(*arguments))
        except BaseException as error:
            done.set_exception(error)

    context = copy_context()
    context.run(_LOOP_IS_BLOCKED.set, is_in_loop())
    _start(run, function, context)
    return done


def _start(run: Callable[[], None], function: Callable[..., Any], context: Context) -> None:
    name = f"a2c-{getattr(function, '__qualname__', 'call')}"
    Thread(target=context.run, args=(run,), name=name, daemon=True).start()


def _settle_once(done: asyncio.Future[Any], settle: Callable[[Any], None], outcome: Any) -> None:
    if not done.done():
        settle(outcome)


def wait_blocking(
    submit: Callable[[Coroutine[Any, Any, Result]], Future[Result]], work: Coroutine[Any, Any, Result], instead: str
) -> Result:
    """Blocks until work that `submit` starts in another thread's loop is done. A caller that stops waiting cancels it.

    Raises `LoopIsRunning` in an event loop, and says what to do `instead`.
    """
    if is_in_loop():
        work.close()
        raise LoopIsRunning(f"an event loop is running in this thread: {instead}")
    future = submit(work)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class BackgroundLoop:
    """An event loop in a thread of its own, for connections that outlive the call that opened them.

    The thread starts with the first work. It is a daemon: call `close` for an orderly end.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = Lock()
        self._thread: Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Starts the work in that loop. Cancelling the future cancels the work."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._started())
        except RuntimeError:  # closed, as the program ends
            work.close()
            raise

    def wait(self, work: Coroutine[Any, Any, Result], instead: str) -> Result:
        """Blocks until the work is done. Raises `LoopIsRunning` in an event loop, and says what to do `instead`."""
        return wait_blocking(self.submit, work, instead)

    async def done(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Awaits the work from any other event loop. Cancelling this cancels the work."""
        return await asyncio.wrap_future(self.submit(work))

    def close(self, last: Coroutine[Any, Any, None], limit: float) -> None:
        """Runs one last coroutine and ends the thread, each within `limit` seconds."""
        with self._lock:
            thread, loop, over = self._thread, self._loop, self._over
        if thread is None or loop is None or over is None:
            last.close()
            return
        with suppress(TimeoutError, CancelledError):
            asyncio.run_coroutine_threadsafe(last, loop).result(limit)
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
        except OSError as error:  # no file descriptor is left for a loop
            started.set_exception(error)


class OwnedTasks:
    """Tasks that end with their owner: kept until they end, logged if they fail, cancelled by `close`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def later(self, delay: float, work: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay, lambda: self.spawn(work()))

    async def finish(self, timeout: float) -> None:
        """Waits until the tasks have ended, at most so many seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)

    async def close(self) -> None:
        await cancel_and_wait(*self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("a background task failed", exc_info=error)


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancels tasks and waits until they have ended. Their results and errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def first_of(task: asyncio.Future[Any], event: asyncio.Event) -> None:
    """Wait until the task is done or the event is set."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


async def cancel_once(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs work that cleans up after a cancel: the first cancel reaches it, further ones wait until it has ended.

    Without this a second cancel interrupts the clean-up. The work must end soon after its cancel.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.cancel()
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio logs it
        raise


def run_program(work: Coroutine[Any, Any, Result]) -> Result:
    """Runs the main coroutine of a program, in uvloop's loop if that is installed.

    Raises `SystemExit(1)` if a second signal cancelled it.
    """
    try:
        import uvloop
    except ModuleNotFoundError:
        factory = None
    else:
        factory = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(work)
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise SystemExit(1) from None


def stop_on_signals() -> asyncio.Event:
    """Returns an event that the first SIGINT or SIGTERM sets. The second one cancels the current task."""
    task, stop = asyncio.current_task(), asyncio.Event()
    assert task

    def on_signal() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        handle_signal(number, on_signal)
    return stop


def handle_signal(number: int, action: Callable[[], None]) -> Callable[[], None]:
    """Calls `action` in the running loop at a signal. Returns a function that restores the handler of before.

    Windows raises SIGINT for Ctrl-C, and SIGBREAK for Ctrl-Break and a closed window, which is SIGINT here as well.
    """
    loop, before = asyncio.get_running_loop(), signal.getsignal(number)
    ctrl_break = getattr(signal, "SIGBREAK", None)
    if ctrl_break is None:
        loop.add_signal_handler(number, action)

        def restore() -> None:
            loop.remove_signal_handler(number)
            signal.signal(number, before)

        return restore

    def on_signal(*_: object) -> None:
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(action)

    numbers = [number, ctrl_break] if number == signal.SIGINT else [number]
    befores = [signal.signal(each, on_signal) for each in numbers]

    def restore_all() -> None:
        for each, handler in zip(numbers, befores, strict=True):
            signal.signal(each, handler)

    return restore_all


def on_hangup(action: Callable[[], None]) -> None:
    """Calls `action` on SIGHUP, on systems that have it."""
    if hasattr(signal, "SIGHUP"):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, action)


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """The first SIGINT cancels the block and ends it without an error, if the current task is the whole program.

    SIGINT stays with the program if other tasks run, outside the main thread, and if it has a handler of its own.
    """
    task = asyncio.current_task()
    if task is None or asyncio.all_tasks() != {task} or not _has_default_interrupt():
        yield
        return
    was_interrupted = False

    def on_interrupt() -> None:
        nonlocal was_interrupted
        was_interrupted = True
        task.cancel()

    restore = handle_signal(signal.SIGINT, on_interrupt)
    try:
        yield
    except asyncio.CancelledError:
        if not was_interrupted:
            raise
        task.uncancel()
    finally:
        restore()


def _has_default_interrupt() -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGINT)
    of_asyncio = isinstance(handler, functools.partial) and isinstance(
        getattr(handler.func, "__self__", None), asyncio.Runner
    )
    return of_asyncio or handler is signal.default_int_handler
