"""A stdio MCP server on the 1.x SDK: tools `add`, `slow`, `note` and `picture`, and one window that can be subscribed to.

An optional argument names a file or pipe to which `slow` writes `started`, then `finished` or `cancelled`.
"""

from __future__ import annotations

import os
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.stdio import stdio_server
from pydantic import AnyUrl

WINDOW = AnyUrl("window://org.example.desk/notes?priority=50")

server: Server[Any, Any] = Server("desk")
notes = ["nothing yet"]


async def add(a: float, b: float) -> str:
    return str(a + b)


async def slow(seconds: float) -> str:
    mark("started")
    try:
        await anyio.sleep(seconds)
    except anyio.get_cancelled_exc_class():
        mark("cancelled")
        raise
    mark("finished")
    return "slept"


async def note(text: str) -> str:
    notes[:] = [text]
    await server.request_context.session.send_resource_updated(WINDOW)
    return "noted"


async def picture(size: float, kind: str = "image") -> types.ContentBlock:
    data = b64encode(bytes(int(size))).decode()
    if kind == "audio":
        return types.AudioContent(type="audio", data=data, mimeType="audio/wav")
    if kind == "resource":
        blob = types.BlobResourceContents(uri=AnyUrl("file:///scan.pdf"), blob=data, mimeType="application/pdf")
        return types.EmbeddedResource(type="resource", resource=blob)
    return types.ImageContent(type="image", data=data, mimeType="image/png")


TOOLS = {tool.__name__: tool for tool in (add, slow, note, picture)}
TYPES = {"float": "number", "str": "string"}


def mark(word: str) -> None:
    """Leaves a trace that outlives the call."""
    if len(sys.argv) > 1:
        with Path(sys.argv[1]).open("a") as file:
            file.write(f"{word}\n")


def described(name: str) -> types.Tool:
    parameters = {key: kind for key, kind in TOOLS[name].__annotations__.items() if key != "return"}
    properties = {key: {"type": TYPES[kind]} for key, kind in parameters.items()}
    required = list(properties)[: len(properties) - len(TOOLS[name].__defaults__ or ())]
    schema = {"type": "object", "properties": properties, "required": required}
    return types.Tool(name=name, description=f"{name} {' '.join(properties)}", inputSchema=schema)


@server.list_tools()
async def list_tools() -> list[types.Tool]:
    return [described(name) for name in TOOLS]


@server.call_tool()
async def call_tool(name: str, arguments: dict[str, Any]) -> list[types.ContentBlock]:
    result = await TOOLS[name](**arguments)
    return [types.TextContent(type="text", text=result) if isinstance(result, str) else result]


@server.list_resources()
async def list_resources() -> list[types.Resource]:
    return [types.Resource(uri=WINDOW, name="notes", mimeType="text/plain")]


@server.read_resource()
async def read_resource(uri: AnyUrl) -> list[ReadResourceContents]:
    return [ReadResourceContents(content="\n".join(notes), mime_type="text/plain")]


@server.subscribe_resource()
async def subscribe(uri: AnyUrl) -> None:
    """Everybody hears of every change."""


@server.unsubscribe_resource()
async def unsubscribe(uri: AnyUrl) -> None:
    """See `subscribe`."""


async def end_with_parent() -> None:
    """A computer that is killed tells nobody, and a slow tool would outlive it."""
    parent = os.getppid()
    while os.getppid() == parent:
        await anyio.sleep(0.2)
    os._exit(1)


async def main() -> None:
    """Declares `resources.subscribe`, which the 1.x SDK never does by itself."""
    options = server.create_initialization_options()
    assert options.capabilities.resources
    options.capabilities.resources.subscribe = True
    async with anyio.create_task_group() as tasks, stdio_server() as (read, write):
        tasks.start_soon(end_with_parent)
        await server.run(read, write, options)
        tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
