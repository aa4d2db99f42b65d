"""An MCP server of the SDK that exports its own spans to a file: `tools_server.py FILE`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from mcp.server.mcpserver import Elicit, MCPServer, Resolve
from opentelemetry import trace
from pydantic import BaseModel

from a2c_smcp.telemetry.exporting import export_traces

server = MCPServer("tools")


class Table(BaseModel):
    people: int


def ask(day: str) -> Elicit[Table]:
    return Elicit(f"A table for {day}", Table)


@server.tool()
def count(text: str) -> int:
    """Count characters."""
    return len(text)


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    with trace.get_tracer("tools").start_as_current_span("inside the tool"):
        return a + b


@server.tool()
def fail() -> int:
    """Fail."""
    raise ValueError("no")


@server.tool()
async def book(day: str, table: Annotated[Table, Resolve(ask)]) -> str:
    """Book a table."""
    return f"{day}: {table.people}"


@server.resource(os.environ.get("DB_URL", "db://x"))
def rows() -> str:
    """All rows."""
    return "no rows"


if __name__ == "__main__":
    export = export_traces("tools", Path(sys.argv[1]))
    try:
        server.run("stdio")
    finally:
        export()
