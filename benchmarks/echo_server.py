"""An MCP server over stdio as people write them, on the SDK: one tool that says it again."""

from __future__ import annotations

from mcp.server import MCPServer

__all__: list[str] = []

server = MCPServer("echo")


@server.tool()
def echo(text: str) -> str:
    """Says it again."""
    return text


if __name__ == "__main__":
    server.run("stdio")
