"""A registry that is served to the SDK's client, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client

from a2c_smcp.registry import MCPRegistry
from a2c_smcp.registry.remote.mcp_server import _ServedRegistry
from tests.peer import PATIENCE

__all__ = ["served"]


@asynccontextmanager
async def served(
    registry: MCPRegistry, mode: Any = "auto", identity: Mapping[str, Any] | None = None, **callbacks: Any
) -> AsyncIterator[Client]:
    """A client with these callbacks, and `client.server`, a server with this identity."""
    server = _ServedRegistry(registry, "x", **(identity or {}))
    async with asyncio.timeout(2 * PATIENCE), Client(server, mode=mode, cache=None, **callbacks) as client:
        yield client
