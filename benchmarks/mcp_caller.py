"""Calls a tool over streamable HTTP with the SDK's client: `python -m benchmarks.mcp_caller URL MODE`."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from benchmarks.calling import PARAMS, serve

__all__: list[str] = []


async def main(url: str, mode: Any) -> None:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with (
        httpx2.AsyncClient(limits=limits, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode, cache=None) as client,
    ):
        while not (await client.list_tools()).tools:  # noqa: ASYNC110  # tools come in their own time
            await asyncio.sleep(0.05)

        async def call(tool: str) -> None:
            result = await client.call_tool(tool, PARAMS)
            if result.is_error:
                raise RuntimeError(result.content)

        await serve(call)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
