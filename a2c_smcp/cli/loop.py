"""The event loop of a program: a fast one where there is one, and signals that end it in order."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import typer

__all__ = ["on_hangup", "run", "stop_on_signals"]

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a program to its end. One that was stopped at once, by a second signal, has failed."""
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
        raise typer.Exit(1) from None


def stop_on_signals() -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM; the second one cancels the current task."""
    loop, task, stop = asyncio.get_running_loop(), asyncio.current_task(), asyncio.Event()
    assert task

    def on_signal() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows
            loop.add_signal_handler(number, on_signal)
    return stop


def on_hangup(action: Callable[[], None]) -> None:
    """Calls `action` on SIGHUP, where there is one."""
    if hasattr(signal, "SIGHUP"):
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, action)
