"""An MCP server that publishes windows. `windows.py` shows how an agent watches them.

    python examples/window_server.py

speaks MCP on stdin and stdout. A computer runs it with this in its mcp.json:

    {"mcpServers": {"kitchen": {"command": "python", "args": ["examples/window_server.py"]}}}

A window is a resource whose URI begins with window://. Those of all MCP servers of a computer make its desktop, the one
with the highest priority first. Say `notify_resource_updated` when one has changed: agents are told, and look again.
"""

from __future__ import annotations

from mcp.server.mcpserver import Context, MCPServer

TIMER = "window://example.kitchen/timer?priority=80"
NOTES = "window://example.kitchen/notes?priority=10"

kitchen = MCPServer("kitchen")
minutes_left = 0


@kitchen.resource(TIMER, name="timer", mime_type="text/plain")
def show_timer() -> str:
    """The text of the timer."""
    return f"{minutes_left} minutes left"


@kitchen.resource(NOTES, name="notes", mime_type="text/plain")
def show_notes() -> str:
    """The text of the recipe note."""
    return "The oven is slow."


@kitchen.tool()
async def set_timer(minutes: int, ctx: Context) -> str:
    """Set the timer."""
    global minutes_left
    minutes_left = minutes
    await ctx.notify_resource_updated(TIMER)
    return "it runs"


def main() -> None:
    kitchen.run("stdio")


if __name__ == "__main__":
    main()
