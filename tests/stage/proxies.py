"""Proxies between a client and its Server, on which a subclass decides what becomes of a connection."""

from __future__ import annotations

import asyncio
from contextlib import closing

from tests.balancer import Balancer, exchange

__all__ = ["Proxy", "Silent"]


class Proxy(Balancer):
    """Passes everything on to the Server at a URL: `async with Proxy(hub.url) as proxy`. Clients use `proxy.url`."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._behind = url.removeprefix("http://")

    async def dial(self, place: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the Server, or to another `host:port`."""
        host, _, port = (place or self._behind).partition(":")
        return await asyncio.open_connection(host, int(port))

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.join(reader, writer, await self.dial())

    @staticmethod
    async def join(
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Carry bytes each way until one of them ends the connection."""
        there, back = server
        await exchange((reader, back), (there, writer))


class Silent(Balancer):
    """Accepts connections, and never says anything on them."""

    dials = 0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dials += 1
        with closing(writer):
            await asyncio.Event().wait()
