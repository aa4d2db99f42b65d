"""Requests of agents on their way to computers: where each goes, whether it fits, and how it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from a2c_smcp.errors import TooLarge
from a2c_smcp.protocol import routing
from a2c_smcp.protocol.codec import timeout_of
from a2c_smcp.protocol.events import Event
from a2c_smcp.protocol.offices import Member, Office
from a2c_smcp.protocol.routing import Forward
from a2c_smcp.server.background import Background
from a2c_smcp.server.calls import Calls, Reply
from a2c_smcp.server.connections import Connection
from a2c_smcp.server.directory import Directory
from a2c_smcp.server.metrics import Metrics
from a2c_smcp.server.packets import HEAD_ROOM, Payload
from a2c_smcp.server.settings import Limits

__all__ = ["CheckRoom", "Emit", "Post", "Relay", "check_size"]

_GRACE = 1.0  # WIRE §5: the Server waits a second longer than the MCP call, the agent another

CheckRoom: TypeAlias = Callable[[str, int], None]
"""Raises `RateLimited` if a message of this size does not fit among what a connection has not read yet."""

Post: TypeAlias = Callable[[Connection, str, Payload, Callable[..., None]], None]
"""Sends an event to a connection at once, as text, and gives its ack to a callback."""

Emit: TypeAlias = Callable[..., Awaitable[None]]


class Relay:
    """Decides and sends. `post` is the fast way, where there is one; `emit` is the library's."""

    def __init__(
        self,
        directory: Directory,
        emit: Emit,
        connection: Callable[[str], Connection | None],
        background: Background,
        metrics: Metrics,
        limits: Limits,
        check_room: CheckRoom,
    ) -> None:
        self.calls = Calls(self._deliver, lambda sid: connection(sid) is not None, background, limits)
        self.post: Post | None = None
        self._directory = directory
        self._connection = connection
        self._emit = emit
        self._background = background
        self._metrics = metrics
        self._limits = limits
        self._check_room = check_room

    async def request(self, sid: str, event: Event, data: dict[str, Any]) -> asyncio.Future[Any]:
        """What will be answered. Raises what refuses the request at once."""
        seats = await self._directory.seats(sid)
        offices = [await self._directory.office(seat.office_id) for seat in seats]
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._begin(event, seats, offices, data, partial(_settle, answered))
        return answered

    def request_at_once(self, sid: str, event: Event, data: dict[str, Any], reply: Reply) -> bool:
        """The same without waiting. `False`, and nothing done, where the directory has to be waited for."""
        seats = self._directory.seats_at_hand(sid)
        if seats is None:
            return False
        offices: list[Office] = []
        for seat in seats:
            office = self._directory.office_at_hand(seat.office_id)
            if office is None:
                return False
            offices.append(office)
        self._begin(event, seats, offices, data, reply)
        return True

    def _begin(
        self, event: Event, seats: Sequence[Member], offices: Sequence[Office], data: dict[str, Any], reply: Reply
    ) -> None:
        timeout = timeout_of(event, data, self._limits.max_timeout)
        forward = routing.forward(event, seats, offices, data)
        self._metrics.count("calls_total")
        self.calls.begin(forward, timeout + _GRACE if timeout else self._limits.request_timeout, reply)

    def _deliver(self, sid: str, forward: Forward, reply: Callable[..., None]) -> None:
        payload = forward.data
        size = payload.size if isinstance(payload, Payload) else 0
        check_size(size + len(forward.event), self._limits)
        self._check_room(sid, size)
        connection = self._connection(sid)
        if self.post and connection and isinstance(payload, Payload) and payload.json:
            self.post(connection, forward.event, payload, reply)
        else:
            self._background.spawn(self._emitted(sid, forward, reply))

    async def _emitted(self, sid: str, forward: Forward, reply: Callable[..., None]) -> None:
        await self._emit(forward.event, forward.data, to=sid, callback=reply)


def check_size(size: int, limits: Limits) -> None:
    """Whether a message still fits when it is passed on under another head: some clients break at the limit."""
    if size + HEAD_ROOM >= limits.max_message:
        raise TooLarge(f"{size} bytes and a head of up to {HEAD_ROOM}", size=size, limit=limits.max_message)


def _settle(answered: asyncio.Future[Any], outcome: Any) -> None:
    if not answered.done():
        answered.set_result(outcome)
