"""A TCP proxy in front of one member or one node, which can cut its connections or go silent."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from tests.balancer import Balancer, exchange

__all__ = ["Lines"]

_DIAL = 2.0


class Lines(Balancer):
    """Connections go to the ports in turn, and to the next one if a port does not take them. `taken` counts them."""

    def __init__(self, ports: Sequence[int]) -> None:
        super().__init__()
        self._turns = deque(ports)
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.taken = 0
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")

    def cut(self) -> None:
        """Every connection that is open now ends with a reset."""
        for writer in self._open:
            writer.transport.abort()

    def silence(self) -> None:
        """Connections stay open and new ones are taken, but nothing passes until `go_on`."""
        self._flowing.clear()

    def go_on(self) -> None:
        self._flowing.set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        self.taken += 1
        try:
            await self._flowing.wait()
            if dialled := await self._dial():
                there, back = dialled
                self._open.add(back)
                try:
                    await exchange((reader, back), (there, writer), flowing=self._flowing)
                finally:
                    self._open.discard(back)
        finally:
            writer.close()
            self._open.discard(writer)

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for _ in range(len(self._turns)):
            port = self._turns[0]
            self._turns.rotate(-1)
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(_DIAL):
                    return await asyncio.open_connection("127.0.0.1", port, limit=2**20)
        return None
