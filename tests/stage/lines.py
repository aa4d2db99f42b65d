"""HTTP/1.1, written by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from tests.conftest import Hub
from tests.peer import PATIENCE

Asks = Callable[..., Any]
OPEN = "/socket.io/?EIO=4&transport=polling"


class Line:
    """A connection on which requests are written by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.path = OPEN
        """Of the requests of its session."""

    async def answer(self, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        async with asyncio.timeout(PATIENCE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in head[1:-2])
            size = int(headers.get("content-length", 0)) if has_body else 0
            return int(head[0].split()[1]), headers, await self.reader.readexactly(size)

    async def ask(self, request: str) -> tuple[int, dict[str, str], bytes]:
        self.writer.write(request.replace("\n", "\r\n").encode())
        return await self.answer(has_body=not request.startswith("HEAD"))

    async def open(self) -> None:
        """Opens a session, and connects it to `/smcp`."""
        await self.begin()
        assert await self.post("40/smcp,") == b"OK"
        assert (await self.poll()).startswith(b"40/smcp,")

    async def begin(self) -> None:
        """Opens a session, and says nothing in it."""
        self.path += f"&sid={json.loads((await self.poll())[1:])['sid']}"

    async def poll(self) -> bytes:
        """The packets that have come."""
        status, _, packets = await self.ask(f"GET {self.path} HTTP/1.1\nHost: localhost\n\n")
        assert status == 200
        return packets

    async def post(self, packets: str) -> bytes:
        size = f"Content-Length: {len(packets)}"
        return (await self.ask(f"POST {self.path} HTTP/1.1\nHost: localhost\n{size}\n\n{packets}"))[2]

    async def is_over(self) -> bool:
        with suppress(ConnectionError):
            return await asyncio.wait_for(self.reader.read(), PATIENCE) == b""
        return True

    async def end(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


async def until_the_first_is_cut(url: str, request: str) -> AsyncIterator[Line]:
    """One connection after the other, each of which is answered and stays open, until the first one is over."""
    host, port = url.split("/")[2].split(":")
    first: Line | None = None
    for _ in range(1200):
        line = Line(*await asyncio.open_connection(host, port))
        await line.ask(request)
        yield line
        first = first or line
        if first.reader.at_eof() or first.reader.exception():
            return
    raise AssertionError("one program holds them all")


async def assert_nobody_holds_all_connections(url: str, request: str) -> None:
    """Neither silent ones, nor such that were answered; the latest one is served."""
    host, port = url.split("/")[2].split(":")
    silent = Line(*await asyncio.open_connection(host, port))
    lines = [line async for line in until_the_first_is_cut(url, request)]
    assert (await lines[-1].ask(request))[0] < 500
    assert await silent.is_over()
    for line in (silent, *lines):
        await line.end()


@pytest.fixture
async def dials(shared_hub: Hub) -> AsyncIterator[Asks]:
    async with AsyncExitStack() as stack:

        async def dial(hub: Hub | None = None) -> Line:
            host, port = (hub or shared_hub).url.removeprefix("http://").split(":")
            line = Line(*await asyncio.open_connection(host, port))
            stack.push_async_callback(line.end)
            return line

        yield dial
