"""Questions to the owner. Who asks may be a coroutine function or a plain one; the event loop waits for neither."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from inspect import isawaitable, iscoroutinefunction
from typing import Any

__all__ = ["ask", "in_thread"]


async def ask(question: Callable[..., Any], *about: Any) -> Any:
    """The answer of a callable that may block or be asynchronous."""
    if iscoroutinefunction(question) or iscoroutinefunction(type(question).__call__):
        return await question(*about)
    answer = await in_thread(question, *about)
    return await answer if isawaitable(answer) else answer


async def in_thread(work: Callable[..., Any], *about: Any) -> Any:
    """Runs in a thread that nobody waits for at exit: a person may never answer."""
    outcome: Future[Any] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            outcome.set_result(work(*about))
        except BaseException as error:  # whatever it is, it belongs to the one who waits
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(outcome)
