"""Things to be fetched again: one fetch at a time for each, a change during a fetch is never missed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Generic, TypeVar

from a2c_smcp.errors import SMCPError
from a2c_smcp.link import Reconnect

__all__ = ["Refreshes"]

logger = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)


class Refreshes(Generic[Key]):
    """Fetches what is wanted until it has been fetched after the last time it was wanted."""

    def __init__(self, fetch: Callable[[Key], Awaitable[None]], pauses: Reconnect) -> None:
        self._fetch = fetch
        self._pauses = pauses
        self._wanted: set[Key] = set()
        self._tasks: dict[Key, asyncio.Task[None]] = {}

    def want(self, key: Key) -> None:
        self._wanted.add(key)
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._work(key))

    def drop(self, key: Key) -> None:
        """What is gone need not be fetched."""
        self._wanted.discard(key)
        if task := self._tasks.pop(key, None):
            task.cancel()

    async def settle(self, keys: Iterable[Key], patience: float) -> None:
        """Waits until these have been fetched, but not for long."""
        if tasks := [self._tasks[key] for key in keys if key in self._tasks]:
            await asyncio.wait(tasks, timeout=patience)

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for key in list(self._tasks):
            self.drop(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, key: Key) -> None:
        attempt = 0
        while key in self._wanted:
            self._wanted.discard(key)
            try:
                await self._fetch(key)
                attempt = 0
            except SMCPError as error:
                logger.warning("%s cannot be fetched: %s", key, error)
                self._wanted.add(key)
                await asyncio.sleep(self._pauses.delay(attempt))
                attempt += 1
        if self._tasks.get(key) is asyncio.current_task():
            del self._tasks[key]
