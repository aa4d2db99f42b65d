"""The parts of the MCP SDK that its documentation does not describe, for our MCP servers: no other file uses any.

- `connection_of`, for what lives as long as a client: the SDK makes a session anew for each request. On 2026-07-28 it
  makes the connection anew as well; over streams, its `outbound` is the same for all requests of a client.
- `serve_dual_era_loop`, for several clients of one server over streams.
- `Connection.from_envelope`, `has_header_arguments`, `HTTP_STATUS` and `RequestCheck`, for plain calls: the bridge
  answers them itself, exactly as the SDK would.
- `SessionManager`, for event stores that sessions do not share.
- `ServerMessageMetadata`, for requests to a client of an older revision, which belong to one of its own.

The range of the SDK is pinned on both sides, and `check` finds out, when a server is made, whether it still fits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from typing import Any, cast

from mcp import ServerSession
from mcp.server import ServerRequestContext
from mcp.server.connection import Connection
from mcp.server.runner import serve_dual_era_loop
from mcp.server.streamable_http import EventStore, check_accept_headers
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS as HTTP_STATUS
from mcp.shared.inbound import x_mcp_header_map
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import LATEST_MODERN_VERSION
from starlette.requests import Request

from a2c_smcp.errors import ConfigError
from a2c_smcp.web import Receive, Scope, Send

__all__ = [
    "HTTP_STATUS",
    "Connection",
    "RequestCheck",
    "ServerMessageMetadata",
    "SessionManager",
    "check",
    "connection_of",
    "has_header_arguments",
    "serve_dual_era_loop",
]


def connection_of(context: ServerRequestContext[Any, Any]) -> Connection:
    """The connection of the client that has sent a request."""
    return context.session._connection


def has_header_arguments(schema: Any) -> bool:
    """True if arguments of this schema are sent as HTTP headers, too."""
    return bool(x_mcp_header_map(schema))


class RequestCheck:
    """The SDK's checks of HTTP headers."""

    def __init__(self, settings: TransportSecuritySettings) -> None:
        self._names = TransportSecurityMiddleware(settings)

    async def refused_name(self, request: Request) -> int | None:
        """The HTTP status that refuses the host or the origin of a request; `None` if both are allowed."""
        refusal = await self._names.validate_request(request)
        return refusal.status_code if refusal else None

    async def admits_call(self, request: Request) -> bool:
        """True if the headers of a POST are in order: its host and origin, and the types of its body and answer."""
        if check_accept_headers(request) != (True, True):
            return False
        return await self._names.validate_request(request, is_post=True) is None


class SessionManager(StreamableHTTPSessionManager):
    """The SDK's, as an ASGI application. It reads `event_store` once for each session."""

    def __init__(self, *arguments: Any, new_store: Callable[[], EventStore], **options: Any) -> None:
        self._new_store = new_store
        super().__init__(*arguments, **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.handle_request(scope, receive, send)

    @property
    def event_store(self) -> EventStore | None:
        return self._new_store()

    @event_store.setter
    def event_store(self, _: EventStore | None) -> None:
        """The SDK's constructor sets it."""


@cache
def check() -> None:
    """Raises `ConfigError` if the installed SDK does not fit."""
    try:
        connection = Connection.from_envelope(LATEST_MODERN_VERSION, {"name": "check", "version": "1"}, {})
        session: Any = ServerSession(cast(Any, None), connection)
        fits = (
            session._connection is connection
            and callable(connection.exit_stack.callback)
            and connection.outbound is not None
            and connection.client_params is not None
            and has_header_arguments({"properties": {"a": {"type": "string", "x-mcp-header": "A"}}})
        )
    except Exception:
        fits = False
    if not fits:
        raise ConfigError(f"mcp {version('mcp')} cannot be used: install a version that this program knows, >=2.3,<2.4")
