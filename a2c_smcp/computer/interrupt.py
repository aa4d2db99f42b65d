"""Ctrl-C in a program that is nothing but a computer: it ends in order and without a traceback."""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ended_by_interrupt"]


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """The first SIGINT cancels the block and ends it without an error, if the current task is the whole program.

    Where other tasks run beside it, in other threads, and where the program has a handler of its own, SIGINT stays
    theirs.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is None or asyncio.all_tasks() != {task} or not _is_ours_to_handle():
        yield
        return
    before, was_interrupted = signal.getsignal(signal.SIGINT), False

    def on_interrupt() -> None:
        nonlocal was_interrupted
        was_interrupted = True
        task.cancel()

    try:
        loop.add_signal_handler(signal.SIGINT, on_interrupt)
    except NotImplementedError:  # Windows
        yield
        return
    try:
        yield
    except asyncio.CancelledError:
        if not was_interrupted:
            raise
        task.uncancel()
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


def _is_ours_to_handle() -> bool:
    if threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(signal.SIGINT)
    of_asyncio = isinstance(handler, functools.partial) and isinstance(
        getattr(handler.func, "__self__", None), asyncio.Runner
    )
    return of_asyncio or handler is signal.default_int_handler
