"""An agent that watches the windows of an MCP server, `window_server.py`.

    python examples/windows.py

The same from the command line: `a2c-smcp agent desktop laptop --watch`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from office import OFFICE, office_of

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import Computer

SERVER = Path(__file__).with_name("window_server.py")


async def cook(agent: AsyncSMCPAgentClient) -> None:
    """Watch the desktop until the timer runs. There are no windows until the MCP server has started."""
    is_set = False
    async for windows in agent.watch_desktop("laptop"):
        print("desktop:", *(window.replace("\n\n", " shows: ") for window in windows), sep="\n  ")
        if windows and not is_set:
            is_set = True
            await agent.emit_tool_call("laptop", "set_timer", {"minutes": 5})
        if any("5 minutes left" in window for window in windows):
            return


async def main() -> None:
    computer = Computer("laptop")
    computer.add_server(
        {
            "name": "kitchen",
            "type": "stdio",
            "server_parameters": {"command": sys.executable, "args": [str(SERVER)]},
            "default_tool_meta": {"auto_apply": True},
        }
    )
    async with (
        office_of(computer) as url,
        AsyncSMCPAgentClient("planner", url=url, office=OFFICE) as agent,
    ):
        await cook(agent)


if __name__ == "__main__":
    asyncio.run(main())
