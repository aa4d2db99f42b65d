"""An MCP server on SDK 2.x that asks in the middle of calls: `asking.py NOTES`, over stdio.

Each run of a tool adds a line with its name to the file of notes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.server.mcpserver.resolve import Sample
from mcp_types import CreateMessageResult, SamplingMessage, TextContent
from pydantic import BaseModel

NOTES = Path(sys.argv[1])
server = MCPServer("asking")


class City(BaseModel):
    city: Literal["BER", "PEK"]


class Seats(BaseModel):
    count: int = 2


class Secret(BaseModel):
    password: str


def note(line: str) -> None:
    with NOTES.open("a") as notes:
        notes.write(f"{line}\n")


async def ask_city() -> Elicit[City]:
    return Elicit("Which city?", City)


async def ask_seats(where: Annotated[City, Resolve(ask_city)]) -> Elicit[Seats]:
    return Elicit(f"How many seats to {where.city}?", Seats)


async def ask_secret() -> Elicit[Secret]:
    return Elicit("Your password, please", Secret)


async def ask_model() -> Sample:
    return Sample([SamplingMessage(role="user", content=TextContent(type="text", text="how are you?"))], max_tokens=9)


@server.tool()
async def book(
    where: Annotated[City, Resolve(ask_city)], seats: Annotated[Seats, Resolve(ask_seats)]
) -> dict[str, Any]:
    """Asks two questions in a row."""
    note("book")
    return {"city": where.city, "count": seats.count}


@server.tool()
async def sign(secret: Annotated[Secret, Resolve(ask_secret)]) -> str:
    """Asks for a password."""
    note("sign")
    return f"signed with {secret.password}"


@server.tool()
async def sample(said: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
    """Asks a model."""
    note("sample")
    return said.model


@server.tool()
async def chat(ctx: Context, steps: int = 3) -> str:
    """Reports progress."""
    for step in range(steps):
        await ctx.report_progress(step + 1, steps, f"step {step + 1}")
    return "done"


if __name__ == "__main__":
    server.run("stdio")
