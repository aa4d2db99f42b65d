"""A registry served over MCP: `toolbox.py [stdio | http PORT]`."""

from __future__ import annotations

import asyncio
import sys

from a2c_smcp.registry import FunctionTool, MCPRegistry, report_progress

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
