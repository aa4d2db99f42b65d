"""An office with two Computers, and an agent that uses both.

    python examples/two_computers.py

A tool that only one of them has is listed under its own name. If both have a tool, the first computer keeps the name,
and the other tool is listed with the name of its computer: `phone__battery`.
"""

from __future__ import annotations

import asyncio

from office import OFFICE, office_of

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import Computer

laptop, phone = Computer("laptop"), Computer("phone")


@laptop.tool(name="battery", auto_apply=True)
def laptop_battery() -> int:
    """The charge of the battery, in percent."""
    return 80


@phone.tool(name="battery", auto_apply=True)
def phone_battery() -> int:
    """The charge of the battery, in percent."""
    return 15


@phone.tool(auto_apply=True)
def notify(text: str) -> str:
    """Show a notification on the phone."""
    return f"shown: {text}"


async def main() -> None:
    async with (
        office_of(laptop, phone) as url,
        AsyncSMCPAgentClient("planner", url=url, office=OFFICE) as agent,
    ):
        print(f"in the office: {', '.join(agent.computers)}")
        print(f"tools: {', '.join(sorted(agent.registry))}")
        for name in ("laptop", "phone"):
            percent = (await agent.emit_tool_call(name, "battery", {})).text
            if int(percent) < 20:
                print(await agent.registry.acall("notify", {"text": f"{name} is at {percent} %"}))


if __name__ == "__main__":
    asyncio.run(main())
