"""What the operator's pages show: lists of all nodes, read at most a few times a second however many pages are open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from a2c_smcp.console.live import Changes
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.server.admin.history import Snapshot
from a2c_smcp.server.admin.operations import Operations
from a2c_smcp.server.admin.other_nodes import Missing
from a2c_smcp.server.admin.rows import MemberRow, NodeRow

__all__ = ["TOPIC", "OperatorState"]

TOPIC = frozenset(["server"])
"""All pages show the same thing: the Server, as it is."""

_TICK = 0.6
_FRESH = 0.4

T = TypeVar("T")


class OperatorState:
    """Wakes the pages that are open, regularly: what they show changes all the time, on any node."""

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self.changes = Changes()
        self._members = _Recent(operations.all_members)
        self._past = _Recent(operations.past)
        self._nodes = _Recent(operations.nodes)
        self._tasks = OwnedTasks()
        self._is_ticking = False

    async def members(self) -> tuple[list[MemberRow], list[Missing]]:
        return await self._members.get()

    async def past(self) -> tuple[Snapshot, list[Missing]]:
        return await self._past.get()

    async def nodes(self) -> tuple[list[NodeRow], list[Missing]]:
        return await self._nodes.get()

    def changed(self) -> None:
        """Wakes all pages, and lets them read anew. A read that is under way is still used."""
        for recent in (self._members, self._past, self._nodes):
            recent.forget()
        self.changes.changed(*TOPIC)

    def keep_ticking(self) -> None:
        """From now on open pages are woken, until none is open any more."""
        if not self._is_ticking:
            self._is_ticking = True
            self._tasks.spawn(self._tick())

    async def close(self) -> None:
        await self._tasks.close()

    async def _tick(self) -> None:
        try:
            await asyncio.sleep(_TICK)
            while self.changes.has_readers:
                self.changed()  # a slow read would still be fresh, and hide for one more tick what came after it
                await asyncio.sleep(_TICK)
        finally:
            self._is_ticking = False


class _Recent(Generic[T]):
    """A value that is read again only when it is no longer fresh, once for all that wait for it."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._known: T | None = None
        self._until = 0.0
        self._lock = asyncio.Lock()

    async def get(self) -> T:
        async with self._lock:
            if self._known is None or time.monotonic() > self._until:
                self._known = await self._read()
                self._until = time.monotonic() + _FRESH
            return self._known

    def forget(self) -> None:
        self._until = 0.0
