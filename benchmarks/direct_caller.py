"""Calls MCP servers over stdio without anybody between: `python -m benchmarks.direct_caller CONFIG`."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from mcp import ClientSession, StdioServerParameters, stdio_client

from benchmarks.calling import PARAMS, serve

__all__: list[str] = []


async def main(servers: list[dict[str, Any]]) -> None:
    sessions: dict[str, ClientSession] = {}

    async def call(tool: str) -> None:
        result = await sessions[tool].call_tool(tool, PARAMS)
        if result.is_error:
            raise RuntimeError(result.content)

    async with AsyncExitStack() as stack:
        for server in servers:
            parameters = StdioServerParameters.model_validate(server["server_parameters"])
            session = ClientSession(*await stack.enter_async_context(stdio_client(parameters)))
            await (await stack.enter_async_context(session)).initialize()
            sessions.update((tool.name, session) for tool in (await session.list_tools()).tools)
        await serve(call)


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text("utf-8"))))
