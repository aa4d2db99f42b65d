"""A load balancer in miniature: connections go to nodes in turn, without a thought for who has been where."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from a2c_smcp.server.run import address_of

__all__ = ["Front"]

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_DIAL = 2.0
_CHUNK = 65536


class Front:
    """A node that does not take a connection is passed over."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._turns = deque(urls)
        self._carrying: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Its URL, while it is open."""
        listening = await asyncio.start_server(self._welcome, "127.0.0.1", 0)
        try:
            yield f"http://{address_of(listening.sockets[0])}"
        finally:
            listening.close()
            for carrying in self._carrying:
                carrying.cancel()
            await asyncio.gather(*self._carrying, return_exceptions=True)

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carrying = asyncio.create_task(self._carry((reader, writer)))
        self._carrying.add(carrying)
        carrying.add_done_callback(self._carrying.discard)

    async def _carry(self, client: _Connection) -> None:
        node = await self._next()
        if node is None:
            client[1].close()
            return
        ways = [asyncio.create_task(_pass(*way)) for way in ((client[0], node[1]), (node[0], client[1]))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            for _, writer in (client, node):
                writer.close()

    async def _next(self) -> _Connection | None:
        for _ in range(len(self._turns)):
            self._turns.rotate(-1)
            parts = urlsplit(self._turns[-1])
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_DIAL):
                    return await asyncio.open_connection(parts.hostname, parts.port)
        return None


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
