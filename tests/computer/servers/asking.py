"""An MCP server on SDK 2.x that asks in the middle of calls: `asking.py NOTES`, over stdio.

`asking.py NOTES PORT`: the same over HTTP, for the older protocol only.

Each run of a tool adds a line with its name to the file of notes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import uvicorn
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


class Name(BaseModel):
    name: str


async def ask_name(name: str) -> Elicit[Name]:
    return Elicit(f"Who is {name}?", Name)


@server.tool()
async def greet(name: str, who: Annotated[Name, Resolve(ask_name)]) -> dict[str, Any]:
    """Asks who it is that is greeted."""
    return {"name": who.name}


def older_only(app: Any) -> Any:
    """The same, not having heard of the newer protocol."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"mcp-method") == b"server/discover":
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await app(scope, receive, send)

    return serve


if __name__ == "__main__":
    if sys.argv[2:]:
        app = older_only(server.streamable_http_app())
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="error")
    else:
        server.run("stdio")
