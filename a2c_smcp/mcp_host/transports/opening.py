"""Which link leads to which kind of configured server. A new kind is one more row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from a2c_smcp.mcp_host.config.servers import MCPServerConfig
from a2c_smcp.mcp_host.message_limits import MAX_BYTES
from a2c_smcp.mcp_host.processes.server_processes import Guardian
from a2c_smcp.mcp_host.transports.sse import SSELink
from a2c_smcp.mcp_host.transports.stdio import StdioLink
from a2c_smcp.mcp_host.transports.streamable import StreamableLink
from a2c_smcp.mcp_host.transports.transport import Link

__all__ = ["link_to"]

_LINKS: dict[str, Callable[[Any, Guardian, int], Link]] = {
    "stdio": StdioLink,
    "streamable": lambda parameters, _, limit: StreamableLink(parameters, limit),
    "sse": lambda parameters, _, limit: SSELink(parameters, limit),
}


def link_to(config: MCPServerConfig, guardian: Guardian, limit: int = MAX_BYTES) -> Link:
    """A link that has not been opened yet. `limit` is in bytes, for each message of the server."""
    return _LINKS[config.type](config.server_parameters, guardian, limit)
