"""An ASGI application on a real socket, for as long as a test needs it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from a2c_smcp.server.run import address_of, listen

PATIENCE = 60.0
"""A bound against hanging, nothing that is measured."""


class _Quiet(uvicorn.Server):
    """Leaves signals to pytest."""

    async def run_on(self, *sockets: Any) -> None:
        await self._serve(list(sockets))


@asynccontextmanager
async def served(make: Any) -> AsyncIterator[str]:
    """Serves what `make` returns for an address, and yields the address."""
    listener = listen("127.0.0.1", 0)
    url = f"http://{address_of(listener)}"
    config = uvicorn.Config(make(url), log_config=None, timeout_graceful_shutdown=1)
    server = _Quiet(config)
    task = asyncio.create_task(server.run_on(listener))
    async with asyncio.timeout(PATIENCE):
        while not server.started:  # noqa: ASYNC110, uvicorn offers nothing to wait for
            await asyncio.sleep(0.01)
    try:
        yield url
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, PATIENCE)
