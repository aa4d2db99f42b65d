"""The two ways into a tool, from sync and from async code, whichever of them its author has written."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from a2c_smcp.loops import LoopIsRunning, is_in_loop, start_in_thread_async

__all__ = [
    "Arguments",
    "AsyncCall",
    "Entrance",
    "SyncCall",
    "entrance_of",
    "in_own_thread",
    "run_to_its_end",
    "settled",
]

Arguments: TypeAlias = dict[str, Any]
SyncCall: TypeAlias = Callable[[Arguments], Any]
AsyncCall: TypeAlias = Callable[[Arguments], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Entrance:
    """What the tool's author wrote: `call`, `acall`, or both."""

    call: SyncCall | None
    acall: AsyncCall | None


def entrance_of(tool: Any) -> Entrance:
    """An `acall` beside `call` is for async code, and `call` then stays as it is; else `call` may be either."""
    call, acall = tool.call, getattr(tool, "acall", None)
    if _is_async(acall):
        return Entrance(None if _is_async(call) else call, acall)
    return Entrance(None, call) if _is_async(call) else Entrance(call, None)


async def in_own_thread(call: SyncCall, arguments: Arguments) -> Any:
    return await settled(start_in_thread_async(call, arguments))


async def settled(outcome: Awaitable[Any]) -> Any:
    """A sync call that gives an awaitable back is awaited, in the caller's loop."""
    result = await outcome
    return await result if inspect.isawaitable(result) else result


def run_to_its_end(name: str, acall: AsyncCall) -> SyncCall:
    """Runs an async call in an event loop of its own."""

    async def awaited(arguments: Arguments) -> Any:
        return await acall(arguments)

    def call(arguments: Arguments) -> Any:
        if is_in_loop():
            raise LoopIsRunning(f"tool {name!r} is async, and an event loop runs in this thread: await acall instead")
        return asyncio.run(awaited(arguments))

    return call


def _is_async(call: Any) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(type(call), "__call__", None))  # noqa: B004
