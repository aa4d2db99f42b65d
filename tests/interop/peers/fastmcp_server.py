"""An MCP server on the 1.x SDK's FastMCP, which has no subscriptions: `fastmcp_server.py stdio`, or `http`.

Over HTTP it listens at /mcp and at /sse, and says where (see `lines`).
"""

from __future__ import annotations

import asyncio
import socket
import sys

import uvicorn
from mcp.server.fastmcp import Context, FastMCP

server = FastMCP("desk", log_level="WARNING")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail() -> None:
    """Raises."""
    raise ValueError("this tool always fails")


@server.tool()
async def grow(name: str, ctx: Context) -> str:
    """Adds a tool that says its own name."""
    server.add_tool(lambda: name, name=name, description=f"Says {name}.")
    await ctx.session.send_tool_list_changed()
    return name


@server.resource("window://org.example.desk/notes", mime_type="text/plain")
def notes() -> str:
    return "nothing yet"


async def serve() -> None:
    import lines  # takes over standard output, which stdio needs

    app = server.streamable_http_app()
    app.router.routes.extend(server.sse_app().routes)
    listener = socket.create_server(("127.0.0.1", 0))
    lines.heard("ready", {"url": "http://{}:{}".format(*listener.getsockname())})
    await uvicorn.Server(uvicorn.Config(app, log_level="error")).serve([listener])


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        asyncio.run(serve())
