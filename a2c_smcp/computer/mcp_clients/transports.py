"""Which link leads to which kind of configured server. A new kind is one more row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from a2c_smcp.computer.mcp_clients.guardian import Guardian
from a2c_smcp.computer.mcp_clients.links import Link
from a2c_smcp.computer.mcp_clients.model import MCPServerConfig
from a2c_smcp.computer.mcp_clients.oversize import MAX_BYTES
from a2c_smcp.computer.mcp_clients.sse import SSELink
from a2c_smcp.computer.mcp_clients.stdio import StdioLink
from a2c_smcp.computer.mcp_clients.streamable import StreamableLink

__all__ = ["link_to"]

_LINKS: dict[str, Callable[[Any, Guardian, int], Link]] = {
    "stdio": StdioLink,
    "streamable": lambda parameters, _, limit: StreamableLink(parameters, limit),
    "sse": lambda parameters, _, limit: SSELink(parameters, limit),
}


def link_to(config: MCPServerConfig, guardian: Guardian, limit: int = MAX_BYTES) -> Link:
    """A link that has not been opened yet. `limit` is in bytes, for each message of the server."""
    return _LINKS[config.type](config.server_parameters, guardian, limit)
