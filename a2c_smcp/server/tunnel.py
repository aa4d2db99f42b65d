"""A websocket of another node: its bytes go through as they are, from the upgrade request on.

Frames, close codes, and who reads how slowly are a matter between the two ends.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol, cast
from urllib.parse import urlsplit

__all__ = ["Handing", "tunnel"]

_PORTS = {"http": 80, "https": 443}
_FLUSH = 2.0


class Handing(Protocol):
    """A websocket of a web server that gives its connection away before it is opened."""

    def hand_over(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Raises `OSError` if it has ended."""


class _End(asyncio.Protocol):
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


async def tunnel(
    client: Handing,
    url: str,
    headers: Iterable[tuple[bytes, bytes]],
    *,
    trust: ssl.SSLContext | None,
    patience: float,
) -> None:
    """Until either end is gone. Raises `OSError` or `TimeoutError` while the client can still be answered."""
    there = await _dial(url, trust, patience)
    here = _End()
    try:
        here.transport = client.hand_over(here)
    except OSError:
        there.transport.abort()
        return
    here.other, there.other = there.transport, here.transport
    there.transport.write(_upgrade_request(url, headers))
    await _until_over(here, there)


async def _dial(url: str, trust: ssl.SSLContext | None, patience: float) -> _End:
    parts = urlsplit(url)
    port = parts.port or _PORTS[parts.scheme]
    async with asyncio.timeout(patience):
        _, end = await asyncio.get_running_loop().create_connection(_End, parts.hostname or "", port, ssl=trust)
    return end


async def _until_over(*ends: _End) -> None:
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


def _upgrade_request(url: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    parts = urlsplit(url)
    lines = [f"GET {parts.path}?{parts.query} HTTP/1.1".encode(), b"connection: Upgrade", b"upgrade: websocket"]
    return b"\r\n".join([*lines, *(b"%s: %s" % field for field in headers), b"", b""])
