"""A registry served over MCP: `toolbox.py [stdio | http PORT]`."""

from __future__ import annotations

import asyncio
import os
import sys

from a2c_smcp.registry import (
    AsyncToolContext,
    FunctionTool,
    Image,
    MCPRegistry,
    ToolContext,
    ToolResult,
    report_progress,
)

registry = MCPRegistry()


@registry.tool(title="Addition", annotations={"readOnlyHint": True})
def add(a: int, b: int) -> int:
    """Add two numbers."""
    print("a tool that prints")
    return a + b


@registry.tool
def fail() -> None:
    """Raises."""
    raise ValueError("this tool always fails")


attempts: list[str] = []


@registry.tool(annotations={"idempotentHint": True})
def fail_once(attempt: str) -> str:
    """Says that it may be called again, and works the second time."""
    attempts.append(attempt)
    if len(attempts) == 1:
        raise ValueError("this tool fails the first time")
    return f"called {len(attempts)} times"


@registry.tool
async def wait(seconds: float) -> str:
    """Takes its time, and counts how often that was cut short."""
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        registry.register(FunctionTool(lambda: "cut short", name="cut_short"))
        raise
    return "waited"


@registry.tool
def count(steps: int) -> str:
    """Tells how far it is."""
    for step in range(1, steps + 1):
        report_progress(step, steps, f"step {step}")
    return "counted"


@registry.tool
def grow(name: str) -> str:
    """Adds a tool that says its own name."""
    registry.register(FunctionTool(lambda: name, name=name))
    return name


@registry.tool
def shrink(name: str) -> None:
    """Takes a tool away."""
    registry.unregister(name)


NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@registry.tool
def talk(context: ToolContext) -> str:
    """Says how far it is, logs, and asks."""
    context.progress(1, 2, "asking")
    context.log("warning", "about to ask")
    answer = context.ask("Who are you?", NAME)
    context.progress(2, 2, "asked")
    return f"hi {(answer.content or {}).get('name')}"


@registry.tool
def chart() -> ToolResult:
    """Has content beside its structured content."""
    return ToolResult(["a chart", Image(b"png")], {"bars": 2}, meta={"trace": "7"})


@registry.tool
def leave() -> None:
    """Ends the server."""
    os._exit(1)


board = ["nothing"]


@registry.resource("board://today", title="Today")
def today() -> str:
    """What is on the board."""
    return board[-1]


@registry.resource("board://{day}/{+place}", complete={"day": ["monday", "tuesday"]})
def on_day(day: str, place: str) -> str:
    """What was on the board."""
    return f"{day} at {place}"


@registry.tool
def write(text: str) -> None:
    """Writes on the board."""
    board.append(text)
    registry.resource_updated("board://today")


@registry.prompt(title="Read it", complete={"style": ["short", "long"]})
async def read(style: str, context: AsyncToolContext) -> str:
    """Reads the board.

    Args:
        style: how to read
    """
    return f"Read {board[-1]!r} {style}, {len(context.can)} ways to ask"


@registry.tool
def post(name: str) -> None:
    """Adds a resource and a prompt."""
    registry.add_resource(f"board://{name}", name)
    registry.prompt(name=name)(lambda: name)


@registry.tool
def take_down(name: str) -> None:
    """Removes them."""
    registry.remove_resource(f"board://{name}")
    registry.remove_prompt(name)


registry.tool(name="odd", title=["not", "a", "title"])(lambda: None)


def main(transport: str = "stdio", port: str = "0") -> None:
    server = registry.as_mcp_server("toolbox", version="1.2", instructions="Be kind.")
    if transport == "stdio":
        server.run_stdio()
        return
    import uvicorn

    uvicorn.run(server.http_app(), host="127.0.0.1", port=int(port), log_level="error")


if __name__ == "__main__":
    main(*sys.argv[1:])
