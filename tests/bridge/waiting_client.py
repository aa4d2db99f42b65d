"""An MCP client that calls a tool and waits: `waiting_client.py URL KEY MODE TOOL`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.stage.bridge import all_tools


async def main(url: str, key: str, mode: Any, tool: str) -> None:
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, cache=None) as client,
    ):
        await all_tools(client, tool)
        await client.call_tool(tool, {})


asyncio.run(main(*sys.argv[1:]))
