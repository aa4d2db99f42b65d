"""The sync and the async way to call a tool, of which its author may have written either or both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

from a2c_smcp.loops import LoopIsRunning, is_in_loop, start_in_thread_async

__all__ = [
    "Arguments",
    "AsyncCall",
    "SyncCall",
    "ToolMethods",
    "call_in_thread",
    "result_of",
    "run_blocking",
    "tool_methods",
]

Arguments: TypeAlias = dict[str, Any]
SyncCall: TypeAlias = Callable[[Arguments], Any]
AsyncCall: TypeAlias = Callable[[Arguments], Awaitable[Any]]


class ToolMethods(NamedTuple):
    """What the tool's author wrote: `call`, `acall`, or both."""

    call: SyncCall | None
    acall: AsyncCall | None


def tool_methods(tool: Any) -> ToolMethods:
    """An async `call` counts as `acall`, unless the tool has an `acall` too."""
    call, acall = tool.call, getattr(tool, "acall", None)
    if _is_async(acall):
        return ToolMethods(None if _is_async(call) else call, acall)
    return ToolMethods(None, call) if _is_async(call) else ToolMethods(call, None)


async def call_in_thread(call: SyncCall, arguments: Arguments) -> Any:
    return await result_of(start_in_thread_async(call, arguments))


async def result_of(outcome: Awaitable[Any]) -> Any:
    """The result of a sync call. If that is an awaitable, it is awaited in the caller's loop."""
    result = await outcome
    return await result if inspect.isawaitable(result) else result


def run_blocking(name: str, acall: AsyncCall) -> SyncCall:
    """A sync call that runs an async one in an event loop of its own."""

    async def awaited(arguments: Arguments) -> Any:
        return await acall(arguments)

    def call(arguments: Arguments) -> Any:
        if is_in_loop():
            raise LoopIsRunning(f"tool {name!r} is async, and an event loop runs in this thread: await acall instead")
        return asyncio.run(awaited(arguments))

    return call


def _is_async(call: Any) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(type(call), "__call__", None))  # noqa: B004
