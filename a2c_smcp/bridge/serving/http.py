"""A bridge over streamable HTTP: the ASGI application, who may use it, and the web server that runs it."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from a2c_smcp.bridge.options import BridgeOptions
from a2c_smcp.bridge.serving.newcomers import guarded, trust
from a2c_smcp.bridge.serving.server import OfficeServer
from a2c_smcp.bridge.serving.sessions import KeptEvents, SessionManager
from a2c_smcp.registry.remote.mcp_server import ASGIApp, Receive, Scope, Send, TrimmedHeaders
from a2c_smcp.server.transport.admission import Refusals

__all__ = ["LOOPBACK_HOSTS", "BearerKey", "http_app", "serve_http"]

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_KEPT_ALIVE = 75  # seconds: clients call in bursts, and many reuse a connection without a second try
_ENDS_WITHIN = 3  # seconds: streams of notices end only with the server


def http_app(
    server: OfficeServer,
    options: BridgeOptions,
    path: str,
    allowed_hosts: Sequence[str],
    allowed_origins: Sequence[str],
) -> Starlette:
    """The application. Its lifespan must be run.

    Against DNS rebinding, only requests to `allowed_hosts` are answered, at any port, and only if they come from no web
    page, from one of these hosts, or from one of the `allowed_origins`.
    """
    origins = [f"{scheme}://{host}" for host in allowed_hosts for scheme in ("http", "https")]
    security = TransportSecuritySettings(
        allowed_hosts=_at_any_port(allowed_hosts), allowed_origins=[*_at_any_port(origins), *allowed_origins]
    )
    manager = SessionManager(
        server,
        kept=KeptEvents(options.max_kept),
        security_settings=security,
        max_request_body_size=options.max_request,
        session_idle_timeout=options.session_idle,
        max_sessions=options.max_sessions,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None, None]:
        async with manager.run():
            yield

    routes = [Route(path, endpoint=StreamableHTTPASGIApp(manager))]
    return Starlette(routes=routes, middleware=[Middleware(TrimmedHeaders)], lifespan=lifespan)


def _at_any_port(names: Sequence[str]) -> list[str]:
    return [*names, *(f"{name}:*" for name in names)]


class BearerKey:
    """Only requests with this key get to the application. After many wrong ones from an address, answers are late."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()
        self._refusals = Refusals()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._is_allowed(scope):
            trust()
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        await asyncio.sleep(self._refusals.delay(str(client[0]) if client else "", time.monotonic()))
        message = "This bridge wants its key: send it in the header Authorization, as Bearer KEY."
        body = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": message}}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"www-authenticate", b'Bearer realm="a2c-smcp bridge"'),
        ]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _is_allowed(self, scope: Scope) -> bool:
        given = [value.strip() for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        return hmac.compare_digest(scheme.lower().capitalize() + b" " + key.strip(), self._expected)


async def serve_http(
    app: ASGIApp, listening: socket.socket, on_ready: Callable[[], None], *, wants_key: bool = False
) -> None:
    """Serve an application until this is cancelled. If it `wants_key`, clients that do not show one are limited."""
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class WebServer(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Generator[None, None, None]:
            """The program has its own way to end."""
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                on_ready()

    config = uvicorn.Config(
        app,
        http=cast(Any, guarded(AutoHTTPProtocol)) if wants_key else "auto",
        ws="none",
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_keep_alive=_KEPT_ALIVE,
        timeout_graceful_shutdown=_ENDS_WITHIN,
    )
    server = WebServer(config)
    serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listening]))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        server.should_exit = True
        await asyncio.wait([serving])
        raise
