"""Frames of websockets, written by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from tests.conftest import Hub
from tests.peer import PATIENCE

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": KEY}
"""The headers that ask for a websocket."""

TEXT, BINARY, CONTINUED, CLOSE, PING = 1, 2, 0, 8, 9


def frame(kind: int, data: bytes = b"", *, fin: bool = True, rsv: int = 0) -> bytes:
    """Of a client, under a mask of zeros."""
    head = bytes([fin << 7 | rsv << 4 | kind])
    if len(data) < 126:
        head += bytes([128 | len(data)])
    else:
        head += b"\xff" + len(data).to_bytes(8) if len(data) >= 1 << 16 else b"\xfe" + len(data).to_bytes(2)
    return head + bytes(4) + data


def upgrade(*more: str, key: str = KEY) -> bytes:
    path = "/socket.io/?EIO=4&transport=websocket"
    fields = ["Host: localhost", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    return "\r\n".join([f"GET {path} HTTP/1.1", *fields, f"Sec-WebSocket-Key: {key}", *more, "", ""]).encode()


class Socket:
    """A connection on which every byte is written by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def end(self) -> None:
        self.writer.transport.abort()
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    async def status(self) -> int:
        """Of the next response, which is read to the end of its head."""
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), PATIENCE)
        return int(head.split()[1])

    async def begin(self) -> None:
        """As a websocket, with the OPEN packet."""
        self.writer.write(upgrade())
        assert await self.status() == 101
        assert (await self.receive())[1].startswith(b"0{")

    async def connect(self) -> None:
        await self.begin()
        self.writer.write(frame(TEXT, b"40/smcp,"))
        assert (await self.receive())[1].startswith(b"40/smcp,")

    async def receive(self) -> tuple[int, bytes]:
        """The kind and the content of the next frame. Raises `IncompleteReadError` at the end."""
        async with asyncio.timeout(PATIENCE):
            head, size = await self._reader.readexactly(2)
            if size >= 126:
                size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8))
            return head & 15, await self._reader.readexactly(size)

    async def rest(self) -> list[tuple[int, bytes]]:
        """Every frame until the end of the connection."""
        frames = []
        with suppress(asyncio.IncompleteReadError):
            while True:
                frames.append(await self.receive())
        return frames


Opens = Callable[..., Awaitable[Socket]]


@pytest.fixture
async def opens(shared_hub: Hub) -> AsyncIterator[Opens]:
    """Opens a connection on which nothing has been said; a `websocket` up to OPEN, one of a `member` up to CONNECT."""
    async with AsyncExitStack() as stack:

        async def start(at: Any = None, *, websocket: bool = False, member: bool = False) -> Socket:
            host, port = (at or shared_hub).url.removeprefix("http://").split(":")
            socket = Socket(*await asyncio.open_connection(host, int(port)))
            stack.push_async_callback(socket.end)
            if websocket:
                await socket.begin()
            elif member:
                await socket.connect()
            return socket

        yield start
