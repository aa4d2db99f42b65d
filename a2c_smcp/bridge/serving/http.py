"""A bridge over streamable HTTP: the ASGI application, who may use it, and the web server that runs it."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator, MutableMapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, cast

from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import (
    RequestBodyLimitMiddleware,
    TransportSecurityMiddleware,
    TransportSecuritySettings,
)
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.routing import Route

from a2c_smcp.bridge.options import BridgeOptions
from a2c_smcp.bridge.serving.lasting_sessions import LastingSessions
from a2c_smcp.bridge.serving.newcomers import guarded, trust
from a2c_smcp.bridge.serving.plain_calls import PlainCalls
from a2c_smcp.bridge.serving.server import OfficeServer
from a2c_smcp.bridge.serving.session_files import SessionFiles
from a2c_smcp.bridge.serving.sessions import KeptEvents, SessionManager
from a2c_smcp.http.asgi import ASGIApp, Receive, Scope, Send
from a2c_smcp.registry.remote.mcp_server import TrimmedHeaders
from a2c_smcp.server.transport.admission import Refusals

__all__ = ["BearerKey", "EndOfRequests", "JoinedWrites", "for_web_pages", "http_app", "serve_http", "until_over"]

_STATUS_LINE = b"HTTP/1.1 "
_KEPT_ALIVE = 75  # seconds: clients call in bursts, and many reuse a connection without a second try
_LAST_ANSWERS = 1.0  # seconds for answers that are not complete when the bridge is stopped
_ENDS_WITHIN = 3  # seconds for all else


def http_app(
    server: OfficeServer,
    options: BridgeOptions,
    path: str,
    allowed_hosts: Sequence[str],
    allowed_origins: Sequence[str],
) -> ASGIApp:
    """The application. Its lifespan must be run.

    Against DNS rebinding, only requests to `allowed_hosts` are answered, at any port, and only if they come from no web
    page, from one of these hosts, or from one of the `allowed_origins`.
    """
    allowed_hosts = [*dict.fromkeys((*allowed_hosts, *map(str.lower, allowed_hosts)))]  # clients write them so
    origins = [f"{scheme}://{host}" for host in allowed_hosts for scheme in ("http", "https")]
    security = TransportSecuritySettings(
        allowed_hosts=_at_any_port(allowed_hosts), allowed_origins=[*_at_any_port(origins), *allowed_origins]
    )
    kept = KeptEvents(options.max_kept)
    manager = SessionManager(
        server,
        kept=kept,
        security_settings=security,
        max_request_body_size=options.max_request,
        session_idle_timeout=options.session_idle,
        max_sessions=options.max_sessions,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None, None]:
        async with manager.run():
            yield

    app: ASGIApp = StreamableHTTPASGIApp(manager)
    if options.sessions_folder is not None:
        files = SessionFiles(options.sessions_folder, options.max_sessions)
        app = RequestBodyLimitMiddleware(LastingSessions(app, files, kept, server.tell_all), options.max_request)
    routes = [Route(path, endpoint=app)]
    middleware = [Middleware(TrimmedHeaders), Middleware(_CheckedNames, security)]
    return PlainCalls(Starlette(routes=routes, middleware=middleware, lifespan=lifespan), server, path, security)


def _at_any_port(names: Sequence[str]) -> list[str]:
    return [*names, *(f"{name}:*" for name in names)]


class _CheckedNames:
    """Refuses foreign host names and web pages as the SDK does, and says what to do about it."""

    def __init__(self, app: ASGIApp, settings: TransportSecuritySettings) -> None:
        self._app, self._check = app, TransportSecurityMiddleware(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = await self._check.validate_request(Request(scope)) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        kind, option = ("host", "--allow-host") if refusal.status_code == 421 else ("origin", "--allow-origin")
        name = Request(scope).headers.get(kind, "")[:128]
        message = f"This bridge may not be used under the {kind} {name!r}. To allow it, start it with {option} NAME."
        await _refuse(send, refusal.status_code, message)


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
        await _refuse(send, 401, message, (b"www-authenticate", b'Bearer realm="a2c-smcp bridge"'))

    def _is_allowed(self, scope: Scope) -> bool:
        given = [value.strip() for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        return hmac.compare_digest(scheme.lower().capitalize() + b" " + key.strip(), self._expected)


async def _refuse(send: Send, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
    """Answers in the way of MCP: a JSON-RPC error, which clients show."""
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": message}}).encode()
    kinds = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*kinds, *headers]})
    await send({"type": "http.response.body", "body": body})


def for_web_pages(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """The application, whose answers pages of these origins may read. A browser asks for that without the key."""
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["Mcp-Session-Id", "WWW-Authenticate"],
    )


class EndOfRequests:
    """When requests are ended. It costs a waiting request no task of its own."""

    def __init__(self) -> None:
        self.is_set = False
        self._receiving: set[asyncio.Future[Any]] = set()

    def set(self) -> None:
        self.is_set = True
        for each in self._receiving:
            each.cancel()

    async def unless_set(self, receive: Receive) -> MutableMapping[str, Any]:
        """The next message; that the client is gone, if this is set before."""
        task, receiving = asyncio.current_task(), asyncio.ensure_future(receive())
        assert task
        self._receiving.add(receiving)
        try:
            return await receiving
        except asyncio.CancelledError:
            if self.is_set and not task.cancelling():
                return {"type": "http.disconnect"}
            raise
        finally:
            self._receiving.discard(receiving)


def until_over(receive: Receive, over: EndOfRequests) -> Receive:
    """`receive`, for which the client is gone when it is over: the streams to it end, and what waits for it."""

    is_read = False

    async def receive_until_over() -> MutableMapping[str, Any]:
        nonlocal is_read
        if is_read:
            return {"type": "http.disconnect"} if over.is_set else await over.unless_set(receive)
        message = await receive()  # the body comes at once
        is_read = not message.get("more_body")
        return message

    return receive_until_over


class _Endable:
    """An application that can be ended while clients listen: the web server would wait for their streams."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._streams_over, self._answers_over = EndOfRequests(), EndOfRequests()
        self._answered = asyncio.Event()
        self._answering = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] == "POST":
            self._answering += 1
            try:
                await self._complete(scope, until_over(receive, self._answers_over), send)
            finally:
                self._answering -= 1
                self._answered.set()
        else:
            await self._complete(scope, until_over(receive, self._streams_over), send)

    async def end(self, patience: float) -> None:
        """End streams of notices now, and answers that are not complete after so many seconds."""
        self._streams_over.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._answering:
                    self._answered.clear()
                    await self._answered.wait()
        self._answers_over.set()

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What has begun is ended properly: the client is not gone, it only looks so."""
        sent: MutableMapping[str, Any] = {}

        async def send_and_note(message: MutableMapping[str, Any]) -> None:
            nonlocal sent
            sent = message
            await send(message)

        await self._app(scope, receive, send_and_note)
        if not sent:
            await _refuse(send, 503, "The bridge was stopped before it had an answer.")
        elif sent["type"] == "http.response.start" or sent.get("more_body"):
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class JoinedWrites:
    """A transport that writes the head of a response with what follows it at once.

    uvicorn writes them one after the other, which wakes up the client twice for each answer. Here a head waits for the
    next write, or for the end of the turn of the event loop.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._head = b""
        self._end_of_turn: asyncio.Handle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if self._head:
            self._write_with_head(data)
        elif data.startswith(_STATUS_LINE):
            self._head = data
            self._end_of_turn = self._loop.call_soon(self._write_with_head)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._write_with_head()
        self._transport.close()

    def _write_with_head(self, data: bytes = b"") -> None:
        head, self._head = self._head, b""
        if self._end_of_turn is not None:
            self._end_of_turn.cancel()
            self._end_of_turn = None
        if head and not self._transport.is_closing():
            self._transport.write(head + data)


def _with_joined_writes(protocol: type[asyncio.Protocol]) -> type[asyncio.Protocol]:
    """A protocol for uvicorn that is like this one, on a transport that joins writes."""

    class Joining(protocol):  # type: ignore[misc, valid-type]
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(cast(Any, JoinedWrites(cast(asyncio.Transport, transport))))

    return Joining


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

    endable = _Endable(app)
    protocol = _with_joined_writes(AutoHTTPProtocol)
    config = uvicorn.Config(
        endable,
        http=cast(Any, guarded(protocol) if wants_key else protocol),
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
        await endable.end(_LAST_ANSWERS)
        await asyncio.wait([serving])
        raise
