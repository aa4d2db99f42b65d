"""What a Computer sends to its Server, byte for byte: a line between them that keeps what goes over it."""

from __future__ import annotations

import asyncio
import re
from itertools import cycle

from tests.computer.hosted import Relay

_UPGRADE = re.compile(rb"\r\nUpgrade: *websocket\r\n.*?\r\n\r\n", re.IGNORECASE | re.DOTALL)


class Recorder(Relay):
    """A relay that keeps the bytes of the one who dials."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._sent: list[bytearray] = []

    @property
    def sent(self) -> list[str]:
        """The text of each connection: HTTP requests as they are, then what its websocket frames hold."""
        return [readable(bytes(each)) for each in self._sent]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await super()._connected(_Tapped(reader, self._new()), writer)  # type: ignore[arg-type]  # it only reads

    def _new(self) -> bytearray:
        self._sent.append(bytearray())
        return self._sent[-1]


class _Tapped:
    def __init__(self, reader: asyncio.StreamReader, copy: bytearray) -> None:
        self._reader, self._copy = reader, copy

    async def read(self, size: int) -> bytes:
        data = await self._reader.read(size)
        self._copy += data
        return data


def readable(stream: bytes) -> str:
    """A client masks its websocket frames: they are unmasked here."""
    upgrade = _UPGRADE.search(stream)
    if not upgrade:
        return stream.decode(errors="replace")
    assert b"permessage-deflate" not in upgrade[0], "what is compressed cannot be searched"
    text = stream[: upgrade.end()] + b"\n" + b"\n".join(_payloads(stream[upgrade.end() :]))
    return text.decode(errors="replace")


def _payloads(frames: bytes) -> list[bytes]:
    """RFC 6455 §5.2. Frames of one message follow each other, and none of ours is that long."""
    found, at = [], 0
    while at + 6 <= len(frames):
        is_masked, length, at = frames[at + 1] & 0x80, frames[at + 1] & 0x7F, at + 2
        assert is_masked, "a client's frame is masked"
        if length >= 126:
            size = 2 if length == 126 else 8
            length, at = int.from_bytes(frames[at : at + size]), at + size
        mask, at = frames[at : at + 4], at + 4
        found.append(bytes(byte ^ key for byte, key in zip(frames[at : at + length], cycle(mask), strict=False)))
        at += length
    return found
