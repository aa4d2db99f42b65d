"""Many calls from async code, some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias

from a2c_smcp.loops import is_cancelled

__all__ = ["Planned", "call_each"]

Planned: TypeAlias = tuple[str, dict[str, Any]] | Mapping[str, Any]
"""A call to come: `(name, arguments)`, or an object with `name` and `arguments` as a plan's step has them."""


async def call_each(
    acall: Callable[[str, dict[str, Any]], Awaitable[Any]], calls: Iterable[Planned], *, at_once: int
) -> list[Any]:
    """Results in the order of the calls; what a call raises stands in the place of its result."""
    if at_once < 1:
        raise ValueError("call_many needs at least one call at once")
    queue = [_planned(call) for call in calls]
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


def _planned(call: Planned) -> tuple[str, dict[str, Any]]:
    name, arguments = (call["name"], call.get("arguments")) if isinstance(call, Mapping) else call
    return name, {} if arguments is None else arguments
