"""MCP clients of `server --mcp`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import aiohttp
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import Implementation

from tests.peer import PATIENCE

SECRET = "a-secret-of-thirty-two-characters-or-more"


INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}


def key_of(name: str) -> str:
    return f"{name}-correct-horse-battery-staple"


def client(
    url: str, key: str | None = "alice", office: str = "desk", mode: Any = "auto", **options: Any
) -> AbstractAsyncContextManager[Client]:
    return client_at(f"{url}/mcp/{office}", key_of(key) if key else None, mode, **options)


@asynccontextmanager
async def client_at(
    url: str,
    key: str | None,
    mode: Any = "auto",
    client_info: Implementation | None = None,
    callbacks: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Client]:
    """An MCP client as people have them. The `options` are those of its HTTP client."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx2.Timeout(PATIENCE)
    async with (
        httpx2.AsyncClient(headers=headers, timeout=timeout, **options) as http,
        Client(
            streamable_http_client(url, http_client=http), mode=mode, client_info=client_info, **(callbacks or {})
        ) as connected,
    ):
        yield connected


async def ask(url: str, key: str | None, office: str = "desk", **headers: str) -> tuple[int, Mapping[str, str], Any]:
    """One request by hand, which would open a session."""
    sent = {"Accept": "application/json, text/event-stream", **headers}
    if key:
        sent["Authorization"] = f"Bearer {key}"
    async with aiohttp.request("POST", f"{url}/mcp/{office}", json=INITIALIZE, headers=sent) as response:
        text = await response.text()
        told = json.loads(text.rpartition("data: ")[2] if text.startswith(("id:", "event:", "data:")) else text)
        return response.status, response.headers, told


async def called(session: Client, tool: str, **arguments: Any) -> str:
    result = await session.call_tool(tool, arguments)
    return str(getattr(result.content[0], "text", ""))


async def session_of(url: str, name: str = "alice") -> dict[str, str]:
    """The headers of a session that this client has opened."""
    status, headers, _ = await ask(url, key_of(name))
    assert status == 200
    return {
        "Authorization": f"Bearer {key_of(name)}",
        "Accept": "application/json, text/event-stream",
        "Mcp-Session-Id": headers["mcp-session-id"],
    }
