"""The OpenAI Agents SDK uses the computers of an office, through the bridge at MCP_URL.

pip install openai-agents
python examples/bridge/with_openai_agents.py
"""

from __future__ import annotations

import asyncio
import os

from agents import Agent, Runner, set_tracing_disabled
from agents.mcp import MCPServerStreamableHttp
from scripted import for_openai_agents

OFFICE = {"url": os.environ["MCP_URL"], "headers": {"Authorization": f"Bearer {os.environ['MCP_KEY']}"}}


async def main() -> None:
    set_tracing_disabled(True)
    async with MCPServerStreamableHttp(OFFICE, client_session_timeout_seconds=600) as office:
        agent = Agent("planner", mcp_servers=[office], model=for_openai_agents())  # or the name of a model
        print((await Runner.run(agent, "How much is 40 and 2?")).final_output)


if __name__ == "__main__":
    asyncio.run(main())
