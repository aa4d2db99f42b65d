"""Calls functions that ask the owner. They may be async, or block in a thread of their own, never in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from inspect import isawaitable, iscoroutinefunction
from typing import Any, get_origin, get_type_hints

from a2c_smcp.loops import in_thread

__all__ = ["ask"]

_NO_LOOP = ("no running event loop", "no current event loop")
_UNREADABLE = (NameError, AttributeError, SyntaxError, TypeError)


async def ask(question: Callable[..., Any], *about: Any) -> Any:
    """The answer of a function that may block or be async.

    A plain function is called in a thread of its own, where it may block. One that is annotated to return an awaitable
    is called in the event loop; so is one that fails in its thread because it needs the event loop.
    """
    if _is_asynchronous(question):
        return await _awaited(question(*about))
    try:
        answer = await in_thread(question, *about)
    except RuntimeError as error:
        if not any(sign in str(error) for sign in _NO_LOOP):
            raise
        answer = question(*about)
    return await _awaited(answer)


async def _awaited(answer: Any) -> Any:
    if isinstance(answer, Future):
        answer = asyncio.wrap_future(answer)
    return await answer if isawaitable(answer) else answer


def _is_asynchronous(question: Callable[..., Any]) -> bool:
    written = (question, getattr(type(question), "__call__", None))  # noqa: B004
    return any(iscoroutinefunction(each) or _returns_awaitable(each) for each in written)


def _returns_awaitable(function: Any) -> bool:
    try:
        returned = get_type_hints(function).get("return")
    except _UNREADABLE:
        return False
    kind = get_origin(returned) or returned
    return isinstance(kind, type) and issubclass(kind, Awaitable)
