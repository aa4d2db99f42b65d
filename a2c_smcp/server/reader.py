"""picows' reader of frames, given a connection whose upgrade request somebody else has read."""

from __future__ import annotations

import asyncio
from typing import Any

from picows import WSAutoPingStrategy, WSListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # its stubs leave it out

__all__ = ["read_afresh", "read_frames", "room_in_reader"]

_BUFFER = 2048
_UPGRADE = (
    "GET / HTTP/1.1\r\nHost: -\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n\r\n"
)


def read_frames(transport: asyncio.Transport, key: str, max_size: int, listener: WSListener) -> None:
    """Answers the upgrade request with this key. `listener` hears of what follows."""
    transport.set_protocol(_reader(transport, key, max_size, listener))


def room_in_reader(transport: asyncio.Transport) -> int:
    """Bytes that could be read at once. A reader's buffer grows with what it reads, and never shrinks."""
    reader: Any = transport.get_protocol()
    return len(reader.get_buffer(-1))


def read_afresh(transport: asyncio.Transport, key: str, max_size: int, listener: WSListener) -> None:
    """A new reader for a connection of which everything that came has been heard: the last one's buffer is large."""
    silent = _Silent(transport)
    reader = _reader(silent, key, max_size, listener)
    silent.is_silent = False
    transport.set_protocol(reader)


class _Quiet:
    """The log of picows: it would tell of every connection, and of what its peer does wrong."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802, named by the standard library
        return False

    def log(self, *args: Any) -> None: ...

    debug = info = warning = error = exception = log


class _Silent:
    """A transport that keeps to itself what is written at first: an answer that its peer already has."""

    def __init__(self, bare: asyncio.Transport) -> None:
        self.is_silent = True
        self._bare = bare

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bare, name)

    def write(self, data: bytes) -> None:
        if not self.is_silent:
            self._bare.write(data)


def _reader(transport: Any, key: str, max_size: int, listener: WSListener) -> Any:
    reader: Any = WSProtocol(
        None, None, False, lambda request: listener, _QUIET, True, None,
        False, 0, 0, WSAutoPingStrategy.PING_WHEN_IDLE, False, max_size, None, _BUFFER,
    )  # fmt: skip
    request = _UPGRADE.format(key).encode()
    reader.connection_made(transport)
    reader.get_buffer(-1)[: len(request)] = request
    reader.buffer_updated(len(request))
    return reader


_QUIET = _Quiet()
