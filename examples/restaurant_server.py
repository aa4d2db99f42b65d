"""An MCP server whose tools ask the user, report progress and write logs.

    python examples/restaurant_server.py

speaks MCP on stdin and stdout. A computer runs it with this in its mcp.json:

    {"mcpServers": {"restaurant": {"command": "python", "args": ["examples/restaurant_server.py"]}}}

`book_table` asks a question before it runs. `Elicit` speaks the revision of MCP that the client speaks: in 2026-07-28
the question is a result, in older ones a request of the server. `cook` takes a while, and says how far it is.
"""

from __future__ import annotations

import asyncio
import warnings
from typing import Annotated, Literal

from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.shared.exceptions import MCPDeprecationWarning
from pydantic import BaseModel, Field

warnings.simplefilter("ignore", MCPDeprecationWarning)  # MCP 2026-07-28 advises against logs; servers use them

restaurant = MCPServer("restaurant")


class Table(BaseModel):
    """The details of a reservation."""

    people: int = Field(2, title="People", description="How many will come?", ge=1, le=12)
    place: Literal["inside", "terrace"] = Field("inside", title="Place")


def ask_for_table(day: str) -> Elicit[Table]:
    return Elicit(f"A table for {day}", Table)


@restaurant.tool()
async def book_table(day: str, table: Annotated[Table, Resolve(ask_for_table)]) -> str:
    """Book a table."""
    return f"Booked for {day}: {table.people} people, {table.place}"


@restaurant.tool()
async def cook(dishes: int, ctx: Context, seconds: float = 1.0) -> str:
    """Cook some dishes, one after the other."""
    for number in range(dishes):
        await ctx.report_progress(number, dishes, f"dish {number + 1}")
        await ctx.info(f"dish {number + 1} is on the stove", logger_name="kitchen")
        await asyncio.sleep(seconds)
    return f"{dishes} dishes are ready"


def main() -> None:
    restaurant.run("stdio")


if __name__ == "__main__":
    main()
