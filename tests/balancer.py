"""What every load balancer in miniature needs: a port, and a task for each connection."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from ssl import SSLContext
from typing import Self

__all__ = ["Balancer", "exchange"]


class Balancer:
    """Open as a context manager. What becomes of a connection is up to `carry`."""

    tls: SSLContext | None = None
    """With which clients are spoken to."""

    def __init__(self) -> None:
        self.url = ""
        self._tasks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", 0, limit=2**20, ssl=self.tls)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"{'https' if self.tls else 'http'}://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server
        self._server.close()
        for task, writer in self._tasks.items():
            task.cancel()
            writer.transport.abort()  # a task that has not begun closes nothing
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self.carry(reader, writer))
        self._tasks[task] = writer
        task.add_done_callback(self._tasks.pop)


async def exchange(
    *ways: tuple[asyncio.StreamReader, asyncio.StreamWriter], flowing: asyncio.Event | None = None
) -> None:
    """Carries bytes each way, until one of them has ended; while `flowing` is not set, none."""
    tasks = [asyncio.create_task(_pump(*way, flowing)) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for _, sink in ways:
            sink.close()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, flowing: asyncio.Event | None) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            if flowing:
                await flowing.wait()
            sink.write(data)
            await sink.drain()
