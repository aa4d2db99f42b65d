"""A Computer made only of Python functions, without any MCP server.

    python examples/functions_only.py

The docstring and the annotations of a function become the description and the schema of the tool. With
`auto_apply=True` a tool runs without asking; for any other tool the owner is asked first, here by `ask_owner`.
"""

from __future__ import annotations

import asyncio

from office import OFFICE, office_of

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import ApprovalRequest, Computer
from a2c_smcp.errors import ApprovalRefused

shopping = ["milk"]


def ask_owner(request: ApprovalRequest) -> bool:
    print(f"owner: may {request.caller.agent} run {request.name}? no")
    return False


computer = Computer("laptop", approve=ask_owner)


@computer.tool(auto_apply=True, tags=["shopping"])
def add_item(item: str, amount: int = 1) -> list[str]:
    """Put something on the shopping list.

    Args:
        item: What to buy.
        amount: How many of it.
    """
    shopping.extend([item] * amount)
    return shopping


@computer.tool
async def clear_list() -> str:
    """Throw the shopping list away."""
    shopping.clear()
    return "gone"


async def main() -> None:
    async with (
        office_of(computer) as url,
        AsyncSMCPAgentClient("planner", url=url, office=OFFICE) as agent,
    ):
        for name, tool in agent.registry.describe().items():
            print(f"agent: sees {name}: {tool['description']}")
        result = await agent.emit_tool_call("laptop", "add_item", {"item": "egg", "amount": 2})
        print(f"agent: the list is {result.structured_content}")
        try:
            await agent.emit_tool_call("laptop", "clear_list", {})
        except ApprovalRefused as error:
            print(f"agent: {error.message}")


if __name__ == "__main__":
    asyncio.run(main())
