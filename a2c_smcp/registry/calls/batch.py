"""Several calls from async code, a limited number at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias

from a2c_smcp.loops import is_cancelled

__all__ = ["CallSpec", "call_each"]

CallSpec: TypeAlias = tuple[str, dict[str, Any]] | Mapping[str, Any]
"""A call to make: `(name, arguments)`, or an object with `name` and `arguments` like a plan's step."""


async def call_each(
    acall: Callable[[str, dict[str, Any]], Awaitable[Any]], calls: Iterable[CallSpec], *, at_once: int
) -> list[Any]:
    """Results in the order of the calls; the exception of a failed call is in the place of its result."""
    if at_once < 1:
        raise ValueError("call_many needs at least one call at once")
    queue = [_name_and_arguments(call) for call in calls]
    outcomes: list[Any] = [None] * len(queue)
    waiting = iter(enumerate(queue))

    async def work() -> None:
        for place, (name, arguments) in waiting:
            try:
                outcomes[place] = await acall(name, arguments)
            except asyncio.CancelledError as error:
                if is_cancelled():
                    raise
                outcomes[place] = error
            except Exception as error:
                outcomes[place] = error

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(at_once, len(queue))):
            workers.create_task(work())
    return outcomes


def _name_and_arguments(call: CallSpec) -> tuple[str, dict[str, Any]]:
    name, arguments = (call["name"], call.get("arguments")) if isinstance(call, Mapping) else call
    return name, {} if arguments is None else arguments
