"""Messages to other nodes: gathered, and no more of them unread than the store holds for a subscriber.

Valkey and Redis disconnect a subscriber for which more than 32 MB wait. Small messages never come to that. A large one
asks for a receipt, and other messages to the same node wait in order until it has come.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from a2c_smcp.engine.packets import Json
from a2c_smcp.errors import Unavailable
from a2c_smcp.server.calls.call import Call
from a2c_smcp.server.directory.interface import NodeMessenger

__all__ = ["OnPosted", "Outbox", "frame", "frames"]

_SIZES = struct.Struct(">II")
_LARGE = 256 * 1024
_WINDOW = 4 * 1024 * 1024
_STUCK = 5.0  # a receipt that takes longer was lost

OnPosted: TypeAlias = Callable[[Sequence[int | Call], int | Exception], None]
"""Is told how many processes read some messages, or why none does: requests by number, answers by their call."""


@dataclass(slots=True)
class _Batch:
    parts: list[Json] = field(default_factory=list)
    sent: list[int | Call] = field(default_factory=list)
    size: int = 0

    @property
    def is_large(self) -> bool:
        return self.size >= _LARGE


@dataclass(slots=True)
class _Flow:
    """Towards one node: how many bytes have no receipt yet, and what waits for it."""

    unread: int = 0
    waiting: deque[_Batch] = field(default_factory=deque)
    timer: asyncio.TimerHandle | None = None

    def has_room_for(self, batch: _Batch) -> bool:
        return self.unread == 0 or self.unread + batch.size <= _WINDOW


class Outbox:
    """Publishes all messages to one node in one turn of the event loop together.

    `asks_receipt` is the message that asks for a receipt; it goes before a large batch.
    """

    def __init__(self, directory: NodeMessenger, on_posted: OnPosted, asks_receipt: bytes) -> None:
        self._directory = directory
        self._on_posted = on_posted
        self._asks_receipt = asks_receipt
        self._gathered: dict[str, _Batch] = {}
        self._flows: dict[str, _Flow] = {}

    def send(self, node: str, head: bytes, body: Json, sent: int | Call | None = None) -> None:
        batch = self._gathered.get(node)
        if batch is None or batch.size + len(body) > _LARGE:
            batch = self._next(node, batch)
        batch.parts += (_SIZES.pack(len(head), len(body)), head, body)
        batch.size += _SIZES.size + len(head) + len(body)
        if sent is not None:
            batch.sent.append(sent)

    def send_at_once(self, node: str, head: bytes) -> None:
        """Sends a message ahead of those that wait."""
        self._post(node, _Batch([frame(head)]))

    def receive_receipt(self, node: str, size: int) -> None:
        if flow := self._flows.get(node):
            flow.unread = max(0, flow.unread - size)
            self._post_waiting(node, flow)

    def forget(self, node: str) -> None:
        """Drops everything to a node that was out of reach: it has missed some of it, and all is sent again."""
        flow = self._flows.pop(node, None)
        if flow and flow.timer:
            flow.timer.cancel()

    def clear(self) -> None:
        """Drops everything to all nodes."""
        self._gathered.clear()
        for node in list(self._flows):
            self.forget(node)

    def _next(self, node: str, full: _Batch | None) -> _Batch:
        if full:
            self._enqueue(node, full)
        elif not self._gathered:
            asyncio.get_running_loop().call_soon(self._flush)
        batch = self._gathered[node] = _Batch()
        return batch

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for node, batch in gathered.items():
            self._enqueue(node, batch)

    def _enqueue(self, node: str, batch: _Batch) -> None:
        flow = self._flows.get(node)
        if flow is None and not batch.is_large:
            self._post(node, batch)
            return
        if flow is None:
            flow = self._flows[node] = _Flow()
        flow.waiting.append(batch)
        self._post_waiting(node, flow)

    def _post_waiting(self, node: str, flow: _Flow) -> None:
        while flow.waiting and flow.has_room_for(flow.waiting[0]):
            batch = flow.waiting.popleft()
            if batch.is_large:
                batch.parts.insert(0, self._asks_receipt)
                flow.unread += batch.size + len(self._asks_receipt)
            self._post(node, batch)
        if flow.timer:
            flow.timer.cancel()
        if flow.unread:
            flow.timer = asyncio.get_running_loop().call_later(_STUCK, self._give_up_receipts, node, flow)
        elif self._flows.get(node) is flow:
            del self._flows[node]

    def _give_up_receipts(self, node: str, flow: _Flow) -> None:
        flow.unread = 0
        self._post_waiting(node, flow)

    def _post(self, node: str, batch: _Batch) -> None:
        posted = partial(self._on_posted, batch.sent)
        try:
            self._directory.post(node, b"".join(batch.parts), posted)
        except Unavailable as error:
            posted(error)


def frame(head: bytes, body: Json = b"") -> bytes:
    return b"".join((_SIZES.pack(len(head), len(body)), head, body))


def frames(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The heads and bodies in a published message. All writers are nodes of this program, so it is not checked."""
    at = 0
    while at < len(data):
        head_size, body_size = _SIZES.unpack_from(data, at)
        head = at + _SIZES.size
        body = head + head_size
        at = body + body_size
        yield data[head:body], data[body:at]
