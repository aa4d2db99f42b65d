"""The MCP server of the demo, run as a process of its own: notes on a board that is a window."""

from __future__ import annotations

import os
import time

from mcp.server.mcpserver import Context, MCPServer

__all__ = ["BOARD"]

BOARD = "window://demo.notes/board?priority=50"

server = MCPServer("notes")
notes = ["buy milk"]


@server.resource(BOARD, name="board", mime_type="text/plain")
def board() -> str:
    """What is on the board."""
    return "\n".join(f"- {note}" for note in notes)


@server.tool()
async def note(text: str, ctx: Context) -> str:
    """Put a note on the board."""
    notes.append(text)
    await ctx.notify_resource_updated(BOARD)
    return f"{len(notes)} notes"


@server.tool()
def sleep(seconds: float) -> str:
    """Take a long time."""
    time.sleep(seconds)
    return "slept"


@server.tool()
def crash() -> str:
    """End this server in the middle of a call."""
    os._exit(1)


if __name__ == "__main__":
    server.run("stdio")
