"""A well-behaved MCP server on SDK 2.x: `sdk.py [stdio | http TOKEN LOG PORT]`.

With a token `post:…` only posts need it; the token `older` refuses nobody but knows only the older protocol.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, Elicit, MCPServer, Resolve
from mcp.server.mcpserver.resources import TextResource
from pydantic import BaseModel

server = MCPServer("good")
texts = {"window://good/one?priority=5": "first", "window://good/two": "second"}


def show(uri: str) -> None:
    server.add_resource(TextResource(uri=uri, name=uri, text=texts[uri]))


for known in texts:
    show(known)


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def slow(ctx: Context, steps: int = 10, pause: float = 0.1) -> str:
    """Takes its time, and tells how far it is."""
    for step in range(steps):
        await ctx.report_progress(step + 1, steps, f"step {step + 1}")
        await anyio.sleep(pause)
    return "done"


@server.tool()
def echo(value: Any, none: Any, ctx: Context) -> dict[str, Any]:
    """What it was given."""
    return {"arguments": {"value": value, "none": none}, "meta": dict(ctx.request_context.meta or {})}


@server.tool()
def big(size: int) -> str:
    """A text of `size` characters."""
    return "x" * size


@server.tool()
def crash() -> None:
    """Ends the server in the middle of the call."""
    print("crashing as asked", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def fail() -> None:
    """Raises."""
    raise ValueError("this tool always fails")


@server.tool()
def environment() -> dict[str, str]:
    """What this server sees of the world."""
    return {**os.environ, "CWD": str(Path.cwd())}


@server.tool()
async def open_window(uri: str, text: str, ctx: Context) -> str:
    """Shows one more window."""
    texts[uri] = text
    show(uri)
    await ctx.notify_resources_changed()
    return uri


@server.tool()
async def touch_window(uri: str, ctx: Context) -> str:
    """Says that a window has changed."""
    await ctx.notify_resource_updated(uri)
    return uri


@server.tool()
async def grow(name: str, ctx: Context) -> str:
    """Adds a tool that says its own name."""
    server.add_tool(lambda: name, name=name, description=f"Says {name}.")
    await ctx.notify_tools_changed()
    return name


class Name(BaseModel):
    name: str


class Sure(BaseModel):
    sure: bool


def ask_name() -> Elicit[Name]:
    return Elicit("Your name?", Name)


def ask_sure(name: Annotated[Name, Resolve(ask_name)]) -> Elicit[Sure]:
    return Elicit(f"Sure, {name.name}?", Sure)


@server.tool()
async def greet(
    ctx: Context, name: Annotated[Name, Resolve(ask_name)], sure: Annotated[Sure, Resolve(ask_sure)]
) -> str:
    """Asks two questions, one after the other, and logs."""
    await ctx.log("info", {"sure": sure.sure}, logger_name="greeter")
    return f"Hello, {name.name}"


def guarded(app: Any, token: str, log: str) -> Any:
    """Lets in whoever knows the token, and writes down what was asked."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            if log:
                write_down(log, f"{scope['method']} {scope['path']}\n")
            if token == "older":  # a server that has not heard of the newer protocol
                headers[b"authorization"] = b"" if headers.get(b"mcp-method") == b"server/discover" else b"Bearer older"
            allowed = scope["method"] == "GET" and token.startswith("post:")
            if not allowed and headers.get(b"authorization") != f"Bearer {token.removeprefix('post:')}".encode():
                status = 400 if token == "older" else 401
                await send({"type": "http.response.start", "status": status, "headers": []})
                await send({"type": "http.response.body", "body": b"who are you?"})
                return
        await app(scope, receive, send)

    return serve if token else app


def write_down(log: str, line: str) -> None:
    with Path(log).open("a") as lines:
        lines.write(line)


def main(transport: str = "stdio", token: str = "", log: str = "", port: str = "0") -> None:
    if transport == "stdio":
        server.run("stdio")
        return
    app = server.streamable_http_app()
    app.router.routes.extend(server.sse_app().routes)
    uvicorn.run(guarded(app, token, log), host="127.0.0.1", port=int(port), log_level="error")


if __name__ == "__main__":
    main(*sys.argv[1:])
