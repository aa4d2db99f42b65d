"""What can be asked of the event loop around a call."""

from __future__ import annotations

import asyncio
from contextvars import Context, ContextVar, copy_context

__all__ = ["context_of_waiter", "is_cancelled", "is_in_loop"]

_LOOP_IS_BLOCKED = ContextVar("loop_is_blocked", default=False)


def is_in_loop() -> bool:
    """Whether waiting here would stop an event loop: that of this thread, or of one that blocks until this one ends."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _LOOP_IS_BLOCKED.get()
    return True


def context_of_waiter() -> Context:
    """The context for a thread that this one is going to wait for."""
    context = copy_context()
    context.run(_LOOP_IS_BLOCKED.set, is_in_loop())
    return context


def is_cancelled() -> bool:
    """Whether somebody wants this task to end. Else a `CancelledError` is that of something it awaited."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
