"""Web servers that are none of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Stranger:
    """Its URL, and the requests that it got."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.heard: list[str] = []


@asynccontextmanager
async def answering(head: str, body: str = "", port: int = 0) -> AsyncIterator[Stranger]:
    """A program that says the same to every request: `head` is its status with more headers."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        length = next((int(line[16:]) for line in asked.lower().splitlines() if line.startswith(b"content-length:")), 0)
        stranger.heard.append((asked + await reader.readexactly(length)).decode("latin-1"))
        writer.write(f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", port) as server:
        stranger = Stranger(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        yield stranger
