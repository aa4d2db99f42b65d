"""Blocking calls beside an event loop, each in a thread of its own.

The loop's own pool would do, but has few threads and shares them with name lookups: some slow tools, and nothing
connects any more. Its threads also keep a program from ending, which daemons do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, copy_context
from threading import Thread
from typing import Any, TypeAlias, TypeVar

from a2c_smcp.registry.loops import context_of_waiter

__all__ = ["begin", "begin_async", "in_thread"]

Argument = TypeVar("Argument")
Result = TypeVar("Result")

Settle: TypeAlias = "Callable[[asyncio.Future[Result]], None]"


async def in_thread(function: Callable[[Argument], Result], argument: Argument) -> Result:
    """What the function returns or raises. A thread cannot be stopped: after a cancel it ends unheard."""
    return await begin_async(function, argument)


def begin_async(function: Callable[[Argument], Result], argument: Argument) -> asyncio.Future[Result]:
    """Starts the function in a thread, for the running loop to wait for. Raises `RuntimeError` if none can start."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def run() -> None:
        settle = _outcome(function, argument)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle, done, settle)

    _start(run, function, copy_context())
    return done


def begin(function: Callable[[Argument], Result], argument: Argument) -> Future[Result]:
    """Starts the function in a thread, for this one to wait for."""
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(function(argument))
        except BaseException as error:
            done.set_exception(error)

    _start(run, function, context_of_waiter())
    return done


def _start(run: Callable[[], None], function: Callable[..., Any], context: Context) -> None:
    name = f"tool-{getattr(function, '__qualname__', 'call')}"
    Thread(target=context.run, args=(run,), name=name, daemon=True).start()


def _outcome(function: Callable[[Argument], Result], argument: Argument) -> Settle[Result]:
    try:
        result = function(argument)
    except StopIteration as error:
        # A future refuses it, and whoever awaits would wait for ever. Coroutines turn it into the same.
        failure = RuntimeError("tool raised StopIteration")
        failure.__cause__ = error
        return _failing(failure)
    except BaseException as error:
        return _failing(error)
    return lambda done: done.set_result(result)


def _failing(error: BaseException) -> Settle[Result]:
    return lambda done: done.set_exception(error)


def _settle(done: asyncio.Future[Result], settle: Settle[Result]) -> None:
    if not done.done():
        settle(done)
