"""What one connection has not read yet: counted in bytes, bounded, and handed out in small batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from a2c_smcp.errors import RateLimited
from a2c_smcp.server.packets import size_of

__all__ = ["Outbox"]

_BATCH_PACKETS = 16  # more in one polling response disconnect a published Python client
_BATCH_BYTES = 64 * 1024


class Outbox(asyncio.Queue[Any]):
    """The queue of an Engine.IO connection, in the place of the library's unbounded one.

    A batch counts as unread until its reader asks for the next one: only then has the transport taken it. An `outlet`
    is offered every packet first. It may take one while the queue `is_idle`.
    """

    def __init__(self, budget: int) -> None:
        super().__init__()
        self.last_used = asyncio.get_running_loop().time()
        self.overflowed = False
        self.outlet: Callable[[Any], bool] | None = None
        self._budget = budget
        self._queued = 0
        self._batch_bytes = 0
        self._batch_packets = 0

    @property
    def unread(self) -> int:
        return self._queued + self._batch_bytes

    @property
    def is_idle(self) -> bool:
        """Whether everything has been handed to the transport, so that the next packet may go there by itself."""
        return not (self._queued or self._batch_packets or self._queue)  # type: ignore[attr-defined]

    def check_room(self, size: int) -> None:
        """Raises `RateLimited` if a call of this size does not fit any more."""
        if self.overflowed or self.unread + size > self._budget:
            raise RateLimited("this computer reads too slowly, try again later")

    def put_nowait(self, item: Any) -> None:
        if not (self.outlet and item is not None and self.outlet(item)):
            super().put_nowait(item)

    async def get(self) -> Any:
        self._batch_bytes = self._batch_packets = 0
        return await super().get()

    def get_nowait(self) -> Any:
        if self._batch_packets >= _BATCH_PACKETS or self._batch_bytes >= _BATCH_BYTES:
            raise asyncio.QueueEmpty
        return super().get_nowait()

    async def join(self) -> None:
        """Returns at once: closing a connection never waits for its reader."""

    def _put(self, item: Any) -> None:
        size = _size(item)
        if self.overflowed and item is not None:
            return
        if self.unread + size > self._budget:
            self.overflowed = True
            return
        self._queued += size
        super()._put(item)

    def _get(self) -> Any:
        item = super()._get()
        size = _size(item)
        self._queued -= size
        self._batch_bytes += size
        self._batch_packets += 1
        return item


def _size(item: Any) -> int:
    data = getattr(item, "data", None)
    return size_of(data) if isinstance(data, str | bytes) else 0
