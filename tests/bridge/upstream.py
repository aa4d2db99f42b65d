"""The MCP server behind the bridge: `upstream.py NOTES`, a registry over stdio.

A line of the file of notes says that a call has begun, or was cancelled.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from a2c_smcp.registry import AsyncToolContext, Image, MCPRegistry, ResourceLink, ToolResult

NOTES = Path(sys.argv[1])
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}

registry = MCPRegistry()
pages = {"page": "first"}


def note(line: str) -> None:
    with NOTES.open("a", encoding="utf-8") as notes:
        notes.write(f"{line}\n")


@registry.tool(title="Addition", annotations={"readOnlyHint": True})
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@registry.tool
def fail() -> None:
    """Raises."""
    raise ValueError("this tool always fails")


@registry.tool
def chart() -> ToolResult:
    """Returns more than a value."""
    return ToolResult(["see", Image(b"png")], {"bars": 2}, meta={"trace": "7"})


@registry.tool
async def steps(count: int, context: AsyncToolContext) -> str:
    """Tells how far it is."""
    for step in range(count):
        await context.progress(step + 1, count, f"step {step + 1}")
        await context.log("info", f"at step {step + 1}")
    return "done"


@registry.tool
async def greet(context: AsyncToolContext) -> str:
    """Asks for a name."""
    answer = await context.ask("Who are you?", NAME)
    return f"hi {(answer.content or {}).get('name', answer.action)}"


@registry.tool
async def wait(name: str) -> str:
    """Waits until it is cancelled."""
    note(f"begun {name}")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        note(f"cancelled {name}")
        raise
    return "unreachable"


@registry.tool
async def once(name: str, seconds: float) -> str:
    """Notes that it has run, and takes its time."""
    note(f"once {name}")
    await asyncio.sleep(seconds)
    return name


@registry.tool
def write(text: str) -> str:
    """Changes the page."""
    pages["page"] = text
    registry.resource_updated("notes://page")
    return text


@registry.tool
def link() -> ToolResult:
    """Links to the page."""
    return ToolResult([ResourceLink("notes://page", name="page")])


@registry.tool
def grow(name: str) -> str:
    """Adds a tool."""
    registry.tool(name=name)(lambda: name)
    return name


@registry.resource("notes://page", name="page")
def page() -> str:
    """A page that changes."""
    return pages["page"]


@registry.resource("notes://{day}/entries", name="entries")
def entries(day: str) -> str:
    """What was written on a day."""
    return f"nothing on {day}"


@registry.prompt(complete={"city": ["Paris", "Parma", "Berlin"]})
def trip(city: str) -> str:
    """A trip to a city."""
    return f"Plan a trip to {city}."


if __name__ == "__main__":
    registry.as_mcp_server("upstream", version="1.0").run_stdio()
