"""Coroutines that are begun at once, in the task that wants them, and become a task only where they have to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from types import coroutine
from typing import Any

__all__ = ["begin"]


def begin(awaitable: Awaitable[None]) -> asyncio.Task[None] | None:
    """Runs it as far as it gets without waiting. The task that does the rest, or `None` if it came to its end."""
    work = awaitable if isinstance(awaitable, Coroutine) else _awaited(awaitable)
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_go_on(work, waits_for))


async def _awaited(awaitable: Awaitable[None]) -> None:
    await awaitable


async def _go_on(work: Coroutine[Any, Any, None], waits_for: Any) -> None:
    await _rest_of(work, waits_for)


@coroutine
def _rest_of(work: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    """What `await` does, from the second step on."""
    try:
        while True:
            try:
                value = yield waits_for
            except BaseException as error:
                waits_for = work.throw(error)
            else:
                waits_for = work.send(value)
    except StopIteration:
        return
