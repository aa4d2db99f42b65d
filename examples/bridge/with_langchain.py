"""LangChain uses the computers of an office, through the bridge at MCP_URL.

pip install langchain langchain-mcp-adapters
python examples/bridge/with_langchain.py
"""

from __future__ import annotations

import asyncio
import os

from langchain.agents import create_agent
from langchain_mcp_adapters.client import MultiServerMCPClient
from scripted import for_langchain

HEADERS = {"Authorization": f"Bearer {os.environ['MCP_KEY']}"}
OFFICE = {"transport": "streamable_http", "url": os.environ["MCP_URL"], "headers": HEADERS}


async def main() -> None:
    tools = await MultiServerMCPClient({"office": OFFICE}).get_tools()
    agent = create_agent(for_langchain(), tools)  # or the name of a model, such as "anthropic:claude-opus-4-5"
    state = await agent.ainvoke({"messages": [("user", "How much is 40 and 2?")]})
    print(state["messages"][-1].text)


if __name__ == "__main__":
    asyncio.run(main())
