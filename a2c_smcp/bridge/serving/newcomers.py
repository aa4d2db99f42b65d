"""Limits on clients of a bridge that have not shown its key: how many, for how long, and how much they may send.

uvicorn has no such limits, so a protocol of ours stands between it and each connection. A connection is a newcomer
until a request on it has the key (`trust`). If that takes too long, it is cut; if there are too many newcomers, the
oldest is cut; beyond a bound, nothing that it sends is read. The connection of a request is in the context of the task
that answers it, because uvicorn starts this task while it handles the data of the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, cast

from a2c_smcp.server.settings import Limits
from a2c_smcp.server.transport.admission import Newcomers

__all__ = ["GuardedConnection", "guarded", "trust"]

_MOST_HELD = 64 * 1024

_connection: ContextVar[GuardedConnection | None] = ContextVar("connection", default=None)


def trust() -> None:
    """The request that is being answered has the key."""
    if connection := _connection.get():
        connection.trust()


def guarded(protocol: Callable[..., asyncio.Protocol], limits: Limits | None = None) -> Callable[..., asyncio.Protocol]:
    """A protocol for uvicorn that is like this one, with limits on newcomers."""
    limits = limits or Limits()
    newcomers = Newcomers(limits.newcomers_per_address, limits.newcomers)
    return lambda **options: GuardedConnection(protocol(**options), newcomers, limits.handshake_timeout)


class GuardedConnection(asyncio.Protocol):
    """One connection. Everything is passed on to `protocol`, which answers."""

    def __init__(self, protocol: asyncio.Protocol, newcomers: Newcomers, patience: float) -> None:
        self._protocol = protocol
        self._newcomers = newcomers
        self._patience = patience
        self._received = 0
        self._is_trusted = False

    def trust(self) -> None:
        if self._is_trusted:
            return
        self._is_trusted = True
        self._newcomers.discard(self._transport)
        self._deadline.cancel()
        if self._received > _MOST_HELD:
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer: Any = transport.get_extra_info("peername")
        self._newcomers.add(self._transport, str(peer[0]) if isinstance(peer, tuple) else "")
        self._deadline = asyncio.get_running_loop().call_later(self._patience, self._transport.abort)
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_trusted:
            self._received += len(data)
            if self._received > _MOST_HELD:
                self._transport.pause_reading()
        _connection.set(self)
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._newcomers.discard(self._transport)
        self._deadline.cancel()
        self._protocol.connection_lost(error)
