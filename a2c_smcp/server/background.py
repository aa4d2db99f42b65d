"""Tasks that belong to a Server and end with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["Background"]

logger = logging.getLogger(__name__)


class Background:
    """Keeps each task until it ends, logs what it failed with, and cancels what is left on close."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def later(self, delay: float, work: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay, lambda: self.spawn(work()))

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.error("a background task failed", exc_info=error)
