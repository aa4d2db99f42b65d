"""The head of a response and what follows it at once, in one write.

uvicorn writes them one after the other, which wakes up the client twice for each answer. Here a head waits for the next
write, or for the end of the turn of the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

__all__ = ["JoinedWrites", "with_joined_writes"]

_HEAD = b"HTTP/1.1 "


class JoinedWrites:
    """A transport of asyncio, for the protocol that writes responses to it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._head = b""
        self._end_of_turn: asyncio.Handle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head:
            self._write_with_head(data)
        elif data.startswith(_HEAD):
            self._head = data
            self._end_of_turn = self._loop.call_soon(self._write_with_head)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._write_with_head()
        self._transport.close()

    def _write_with_head(self, data: bytes = b"") -> None:
        head, self._head = self._head, b""
        if self._end_of_turn is not None:
            self._end_of_turn.cancel()
            self._end_of_turn = None
        if head and not self._transport.is_closing():
            self._transport.writelines((head, data))


def with_joined_writes(protocol: type[asyncio.Protocol]) -> type[asyncio.Protocol]:
    """A protocol for uvicorn that is like this one, on a transport that joins writes."""

    class Joining(protocol):  # type: ignore[misc, valid-type]
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(cast(Any, JoinedWrites(cast(asyncio.Transport, transport))))

    return Joining
