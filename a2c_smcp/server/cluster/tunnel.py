"""A websocket of another node: its bytes go through as they are, from the upgrade request on.

Frames, close codes, and who reads how slowly are a matter between the two ends.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import cast
from urllib.parse import urlsplit

__all__ = ["End", "dial", "tunnel", "upgrade_request"]

_PORTS = {"http": 80, "https": 443}
_FLUSH = 2.0


class End(asyncio.Protocol):
    """One end: what is read here is written at the other end, no faster than it is taken there."""

    transport: asyncio.Transport
    other: asyncio.Transport

    def __init__(self) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.other.write(data)

    def pause_writing(self) -> None:
        if not self.other.is_closing():
            self.other.pause_reading()

    def resume_writing(self) -> None:
        if not self.other.is_closing():
            self.other.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)


async def dial(url: str, trust: ssl.SSLContext | None, patience: float) -> End:
    """Raises `OSError` or `TimeoutError`."""
    parts = urlsplit(url)
    port = parts.port or _PORTS[parts.scheme]
    async with asyncio.timeout(patience):
        _, end = await asyncio.get_running_loop().create_connection(End, parts.hostname or "", port, ssl=trust)
    return end


async def tunnel(client: asyncio.Transport, there: End, ahead: bytes) -> None:
    """Until either end is gone. The upgrade request, and what came behind it, is what goes ahead."""
    if client.is_closing():
        there.transport.abort()
        return
    here = End()
    here.transport = client
    here.other, there.other = there.transport, client
    client.set_protocol(here)
    there.transport.write(ahead)
    client.resume_reading()
    await _until_over(here, there)


async def _until_over(*ends: End) -> None:
    """When one has ended, the other gets a moment to take what is on its way."""
    waits = [end.over for end in ends]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.transport.close()
        await asyncio.wait(waits, timeout=_FLUSH)
    finally:
        for end in ends:
            with suppress(RuntimeError):  # of uvloop, for one that is closed
                end.transport.abort()


def upgrade_request(url: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    parts = urlsplit(url)
    lines = [f"GET {parts.path}?{parts.query} HTTP/1.1".encode(), b"connection: Upgrade", b"upgrade: websocket"]
    return b"\r\n".join([*lines, *(b"%s: %s" % field for field in headers), b"", b""])
