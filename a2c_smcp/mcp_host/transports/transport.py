"""The interface of a transport to an MCP server: stdio, streamable HTTP or SSE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from mcp.client import Transport

from a2c_smcp.mcp_host.failures import ServerFailure
from a2c_smcp.mcp_host.transports.direct_requests import DirectSender

OnFault = Callable[[ServerFailure], None]


class MCPTransport(Protocol):
    """Opened and closed once, by the task that uses it. `failure()` stays readable after the connection has ended."""

    quiet_limit: float | None
    """Seconds without a byte after which the session checks the server's health; `None` if silence means nothing."""

    told: Sequence[str]
    """Warnings that are in the log already: this start has had a connection before, to probe the newer protocol."""

    @property
    def direct(self) -> DirectSender | None:
        """Return what sends requests without the SDK, where the transport can."""
        ...

    @property
    def warnings(self) -> Sequence[str]:
        """Return sentences for the owner, such as what a sandbox has refused."""
        ...

    def connect(self, on_fault: OnFault) -> Transport:
        """Return the connection. `on_fault` is called at once for a failure that does not close its streams."""
        ...

    def silence(self) -> float:
        """Return the seconds since the last byte."""
        ...

    def failure(self) -> ServerFailure:
        """Return why the connection has ended, as far as the transport knows."""
        ...

    @property
    def diagnostics(self) -> dict[str, object]:
        """Return details for a person who looks for a fault."""
        ...
