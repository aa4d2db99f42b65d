"""An MCP server behind streamable HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client

from a2c_smcp.mcp_host.config.servers import StreamableParameters
from a2c_smcp.mcp_host.transports.http import HTTPLink, WatchedClient
from a2c_smcp.mcp_host.transports.transport import OnFault

__all__ = ["StreamableLink"]


class StreamableLink(HTTPLink):
    """The SDK's own transport, on a client of ours, which limits the size of an event instead of it."""

    def __init__(self, parameters: StreamableParameters, limit: int) -> None:
        super().__init__(parameters.url, parameters.sse_read_timeout.total_seconds(), limit)
        self._parameters = parameters

    def connect(self, on_fault: OnFault) -> Transport:
        return self._connected(on_fault)

    @asynccontextmanager
    async def _connected(self, on_fault: OnFault) -> AsyncGenerator[Any, None]:
        asked = self._parameters
        client = self._client = WatchedClient(
            on_fault, headers=asked.headers, timeout=asked.timeout.total_seconds(), limit=self._limit
        )
        async with (
            client,
            streamable_http_client(
                self._url, http_client=client, terminate_on_close=asked.terminate_on_close, max_sse_event_size=None
            ) as streams,
        ):
            yield streams
