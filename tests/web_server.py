"""An ASGI application in a web server that is not ours, on a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from a2c_smcp.server.run import address_of, listen

__all__ = ["by_uvicorn"]

PATIENCE = 60.0
"""A bound against hanging, nothing that is measured."""


class _Quiet(uvicorn.Server):
    """Leaves signals to pytest, and does not look every tenth of a second whether it shall end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening, self.shall_end = asyncio.Event(), asyncio.Event()

    async def run_on(self, listener: socket.socket) -> None:
        await self._serve([listener])

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.is_listening.set()

    async def main_loop(self) -> None:
        await self.shall_end.wait()


@asynccontextmanager
async def by_uvicorn(
    app: Any, listener: socket.socket, *, waits_for_clients: bool = True, **options: Any
) -> AsyncIterator[None]:
    server = _Quiet(uvicorn.Config(app, log_config=None, **options))
    task = asyncio.create_task(server.run_on(listener))
    listening = asyncio.create_task(server.is_listening.wait())
    await asyncio.wait([task, listening], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    try:
        assert listening.done(), "uvicorn does not start"
        yield
    finally:
        listening.cancel()
        server.force_exit = not waits_for_clients
        server.shall_end.set()
        await asyncio.wait_for(task, PATIENCE)


@asynccontextmanager
async def hosting(app: Any) -> AsyncIterator[str]:
    """Serves any ASGI application as its author would, and yields its address."""
    listener = listen("127.0.0.1", 0)
    async with by_uvicorn(app, listener, timeout_graceful_shutdown=1):
        yield f"http://{address_of(listener)}"
