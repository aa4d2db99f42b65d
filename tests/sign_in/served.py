"""An ASGI application on a real socket, for as long as a test needs it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from a2c_smcp.server.run import address_of, listen
from tests.web_server import by_uvicorn

PATIENCE = 60.0
"""A bound against hanging, nothing that is measured."""


@asynccontextmanager
async def served(make: Any) -> AsyncIterator[str]:
    """Serves what `make` returns for an address, and yields the address."""
    listener = listen("127.0.0.1", 0)
    url = f"http://{address_of(listener)}"
    async with by_uvicorn(make(url), listener, timeout_graceful_shutdown=1):
        yield url
