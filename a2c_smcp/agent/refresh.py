"""Keeps values current that are fetched over the network: one fetch at a time for each, no change missed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

from a2c_smcp.endpoint import Reconnect
from a2c_smcp.errors import SMCPError

logger = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)


class Refresher(Generic[Key]):
    """Fetches each requested key, one fetch of a key at a time.

    A key that is requested during its fetch is fetched once more. A fetch that fails is repeated after a pause. So the
    last successful fetch of a key always began after its last request.
    """

    def __init__(self, fetch: Callable[[Key], Awaitable[None]], pauses: Reconnect) -> None:
        self._fetch = fetch
        self._pauses = pauses
        self._requested: set[Key] = set()
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._tried: dict[Key, asyncio.Event] = {}
        self._is_open = False

    def open(self) -> None:
        self._is_open = True

    def request(self, key: Key) -> None:
        """Fetch this key, again if it is being fetched. Ignored after `close`."""
        self._requested.add(key)
        if key not in self._tasks and self._is_open:
            self._tried[key] = asyncio.Event()
            self._tasks[key] = asyncio.create_task(self._work(key, self._tried[key]))

    def drop(self, key: Key) -> None:
        """Stop fetching a key."""
        self._requested.discard(key)
        if task := self._tasks.pop(key, None):
            self._tried.pop(key).set()
            task.cancel()

    async def settle(self, keys: Iterable[Key], timeout: float) -> None:
        """Wait until each of these keys was tried once, at most `timeout` seconds."""
        tried = [self._tried[key].wait() for key in keys if key in self._tried]
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await asyncio.gather(*tried)

    async def close(self) -> None:
        self._is_open = False
        self._requested.clear()
        tasks = list(self._tasks.values())
        for key in list(self._tasks):
            self.drop(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, key: Key, tried: asyncio.Event) -> None:
        attempt = 0
        while key in self._requested:
            self._requested.discard(key)
            try:
                await self._fetch(key)
                attempt = 0
            except Exception as error:  # what was fetched may be anything
                is_ours = isinstance(error, SMCPError)
                logger.warning("%s cannot be fetched: %s", key, error, exc_info=not is_ours)
                self._requested.add(key)
                tried.set()
                await asyncio.sleep(self._pauses.delay(attempt))
                attempt += 1
        tried.set()
        if self._tasks.get(key) is asyncio.current_task():
            del self._tasks[key], self._tried[key]
