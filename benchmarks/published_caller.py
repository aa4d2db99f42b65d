"""Calls tools through the published package's agent: `published_caller.py URL OFFICE COMPUTER KEY`."""

from __future__ import annotations

import asyncio
import sys

from a2c_smcp.agent.auth import DefaultAgentAuthProvider
from calling import PARAMS, serve

from a2c_smcp.agent.client import AsyncSMCPAgentClient

__all__: list[str] = []


async def main(url: str, office: str, computer: str, key: str) -> None:
    client = AsyncSMCPAgentClient(DefaultAgentAuthProvider("planner", office, key))
    await client.connect_to_server(url)
    await client.join_office(office, "planner", namespace=client.namespace)
    names: dict[str, str] = {}

    async def call(tool: str) -> None:
        if tool not in names:
            names[tool] = await listed(client, computer, tool)
        result = await client.emit_tool_call(computer, names[tool], PARAMS, 10)
        if result.isError:
            raise RuntimeError(result.content)

    await serve(call)


async def listed(client: AsyncSMCPAgentClient, computer: str, tool: str) -> str:
    """The name that the computer gives to a tool: the package puts something before it."""
    tools = (await client.get_tools_from_computer(computer))["tools"]
    return next(found["name"] for found in tools if found["name"].endswith(tool))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
