"""What a session needs of its way to an MCP server, whatever the transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mcp.client import Transport

from a2c_smcp.mcp_host.failures import ServerFailure
from a2c_smcp.mcp_host.transports.direct_requests import DirectRequests

__all__ = ["MCPTransport", "OnFault"]

OnFault = Callable[[ServerFailure], None]


class MCPTransport(Protocol):
    """Opened and closed once, by the task that uses it. It outlives the connection, to tell how that ended."""

    quiet_limit: float | None
    """Seconds without a byte after which the server's health is to be checked; `None` if silence means nothing."""

    straight: DirectRequests | None
    """The short way, of a connection that has one."""

    def connect(self, on_fault: OnFault) -> Transport:
        """The connection. `on_fault` is told at once of what ends it without closing its streams."""
        ...

    def silence(self) -> float:
        """Seconds since the last byte."""
        ...

    def failure(self) -> ServerFailure:
        """Why the connection has ended, as far as the transport knows."""
        ...

    @property
    def diagnostics(self) -> dict[str, object]:
        """For a person who asks what is wrong."""
        ...
