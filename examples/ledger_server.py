"""An MCP server whose tools say what they change: an account that is read, paid from and closed.

    python examples/ledger_server.py

speaks MCP on stdin and stdout. A computer runs it with this in its mcp.json:

    {"mcpServers": {"ledger": {"command": "python", "args": ["examples/ledger_server.py"]}}}

`balance` has the annotation `readOnlyHint`, `close_year` has `destructiveHint`. A policy looks at them only if its
owner trusts this server.
"""

from __future__ import annotations

import asyncio

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

ledger = MCPServer("ledger")
accounts = {"rent": 1200.0, "travel": 300.0}


@ledger.tool(annotations=ToolAnnotations(read_only_hint=True))
async def balance(account: str) -> str:
    """The balance of an account."""
    return f"{account}: {accounts.get(account, 0.0):.2f}"


@ledger.tool(annotations=ToolAnnotations(destructive_hint=False))
async def pay(account: str, amount: float, to: str) -> str:
    """Pay somebody from an account."""
    accounts[account] = accounts.get(account, 0.0) - amount
    return f"{amount:.2f} paid to {to}"


@ledger.tool(annotations=ToolAnnotations(destructive_hint=True))
async def close_year(year: int) -> str:
    """Close a year: its bookings cannot be changed any more."""
    return f"{year} is closed"


@ledger.tool()
async def render(pages: int, seconds: float = 0.0) -> str:
    """Render a report, with a program that has a licence for one seat."""
    await asyncio.sleep(seconds)
    return f"{pages} pages are ready"


def main() -> None:
    ledger.run("stdio")


if __name__ == "__main__":
    main()
