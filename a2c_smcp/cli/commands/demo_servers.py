"""The MCP servers of the demo, run as `python -m a2c_smcp.cli.commands.demo_servers NAME`: `notes` and `abacus`.

`notes` has a board of notes, which is a window; `abacus` calculates.
"""

from __future__ import annotations

import sys
import time

from mcp.server.mcpserver import Context, MCPServer

BOARD = "window://demo.notes/board?priority=50"

notes_server, abacus_server = MCPServer("notes"), MCPServer("abacus")
notes = ["buy milk"]


@notes_server.resource(BOARD, name="board", mime_type="text/plain")
def board() -> str:
    """What is on the board."""
    return "\n".join(f"- {note}" for note in notes)


@notes_server.tool()
async def note(text: str, ctx: Context) -> str:
    """Put a note on the board."""
    notes.append(text)
    await ctx.notify_resource_updated(BOARD)
    return f"{len(notes)} notes"


@notes_server.tool()
async def wipe(ctx: Context) -> str:
    """Take all notes off the board."""
    notes.clear()
    await ctx.notify_resource_updated(BOARD)
    return "0 notes"


@abacus_server.tool()
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@abacus_server.tool()
def count_to(number: int) -> str:
    """Count, one number a second."""
    for _ in range(number):
        time.sleep(1)
    return f"{number}!"


if __name__ == "__main__":
    {"notes": notes_server, "abacus": abacus_server}[sys.argv[1]].run("stdio")
