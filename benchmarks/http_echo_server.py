"""An MCP server over streamable HTTP on the SDK, as people write them: one tool that repeats. Prints its URL."""

from __future__ import annotations

import socket

import uvicorn
from mcp.server import MCPServer

__all__: list[str] = []

server = MCPServer("echo")


@server.tool()
def echo(text: str) -> str:
    """Says it again."""
    return text


def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(f"listening on http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
        config = uvicorn.Config(server.streamable_http_app(), log_level="error", access_log=False)
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
