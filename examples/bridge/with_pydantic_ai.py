"""Pydantic AI uses the computers of an office, through the bridge at MCP_URL.

pip install 'pydantic-ai-slim[mcp]'
python examples/bridge/with_pydantic_ai.py
"""

from __future__ import annotations

import asyncio
import os

from pydantic_ai import Agent
from pydantic_ai.mcp import MCPToolset
from scripted import for_pydantic_ai

OFFICE = MCPToolset(os.environ["MCP_URL"], headers={"Authorization": f"Bearer {os.environ['MCP_KEY']}"})


async def main() -> None:
    agent = Agent(for_pydantic_ai(), toolsets=[OFFICE])  # or the name of a model, such as "anthropic:claude-opus-4-5"
    print((await agent.run("How much is 40 and 2?")).output)


if __name__ == "__main__":
    asyncio.run(main())
