"""A planner's program with both: LangChain's adapter for a local MCP server, and our Agent for a computer in an office.

It runs in `.cache/clients`, where `mcp` is a 1.x. `python -m tests.clients.langchain_program serve` is the MCP server.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.metadata import version
from typing import Any

from langchain_core.tools import StructuredTool
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp.server.fastmcp import FastMCP

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.registry import MCPRegistry
from sage.libs.agents.action.mcp_registry import MCPRegistry as MCPRegistryOfSpecification

local = FastMCP("local", log_level="ERROR")


@local.tool()
def subtract(a: int, b: int) -> int:
    """Subtract one number from another."""
    return a - b


async def main(url: str, office: str) -> dict[str, Any]:
    command = {"transport": "stdio", "command": sys.executable, "args": ["-m", __spec__.name, "serve"]}
    (theirs,) = await MultiServerMCPClient({"local": command}).get_tools()
    registry = MCPRegistry()
    async with AsyncSMCPAgentClient("planner", url=url, office=office, registry=registry) as agent:
        ours = StructuredTool.from_function(
            coroutine=lambda **arguments: registry.acall("add", arguments),
            name="add",
            description=registry["add"].description,
            args_schema=registry["add"].input_schema,
        )
        result = await agent.emit_tool_call("laptop", "add", {"a": 40, "b": 2}, timeout=30)
        return {
            "mcp": version("mcp"),
            "agent": result.content[0]["text"],
            "langchain": [await ours.ainvoke({"a": 1, "b": 2}), (await theirs.ainvoke({"a": 5, "b": 2}))[0]["text"]],
            "is one class": MCPRegistryOfSpecification is MCPRegistry,
            "computer": refusal(),
        }


def refusal() -> str:
    """What a program is told that wants to host MCP servers here."""
    try:
        from a2c_smcp.computer import Computer
    except ModuleNotFoundError as error:
        return str(error)
    return repr(Computer)


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        local.run()
    else:
        print(json.dumps(asyncio.run(main(*sys.argv[1:]))))
