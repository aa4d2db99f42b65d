"""Who is told of what happens: one thing after the other, whatever they make of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

__all__ = ["EventDispatcher", "Invoke"]

logger = logging.getLogger(__name__)

Invoke: TypeAlias = Callable[..., Awaitable[Any]]
"""Calls a handler with its arguments, and waits for it."""


class EventDispatcher:
    """Objects with some of the methods of `AgentEvents`."""

    def __init__(self, listeners: Iterable[object]) -> None:
        self._listeners = [*listeners]
        self._waiting: asyncio.Queue[tuple[str, tuple[Any, ...]]] = asyncio.Queue()
        self._telling: asyncio.Task[None] | None = None

    def open(self, invoke: Invoke) -> None:
        self._waiting = asyncio.Queue()
        self._telling = asyncio.create_task(self._tell_all(invoke))

    async def close(self) -> None:
        """What has not been told yet is not told any more."""
        telling, self._telling = self._telling, None
        if telling and telling is not asyncio.current_task():
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    def tell(self, method: str, *arguments: Any) -> None:
        """Calls this method of those who have it, later."""
        self._waiting.put_nowait((method, arguments))

    async def _tell_all(self, invoke: Invoke) -> None:
        waiting = self._waiting
        while self._telling is asyncio.current_task():  # a handler may close, or open again
            method, arguments = await waiting.get()
            for listener in self._listeners:
                if handler := getattr(listener, method, None):
                    try:
                        await invoke(handler, *arguments)
                    except Exception:
                        logger.exception("%s failed", method)
