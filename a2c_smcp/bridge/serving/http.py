"""A bridge over streamable HTTP: the ASGI application, who may use it, and the web server that runs it."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import time
from collections.abc import AsyncGenerator, Callable, Generator, MutableMapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from typing import Any, cast

from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.routing import Route

from a2c_smcp.bridge.office import BridgeOptions
from a2c_smcp.bridge.serving.calls import OfficeServer
from a2c_smcp.bridge.serving.plain_calls import PlainCalls, again
from a2c_smcp.bridge.serving.sessions import ClientPresence, KeptEvents
from a2c_smcp.errors import BadRequest, SMCPError
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.registry.remote.mcp_server import TrimmedHeaders
from a2c_smcp.registry.remote.sdk import RequestCheck, SessionManager
from a2c_smcp.server.http_requests import EXTENSION
from a2c_smcp.server.settings import Limits
from a2c_smcp.server.transport.admission import ArrivingBody, ArrivingBytes, Newcomers, Refusals
from a2c_smcp.web import ASGIApp, Receive, Scope, Send, header

# Limits on clients that have not shown a key, or the secret of a session of the owner's console: how many, for how
# long, and how much they may send.
#
# uvicorn has no such limits, so a protocol of ours stands between it and each connection. A connection is a newcomer
# until a request on it has the key (`trust`). If that takes too long, it is cut; if there are too many newcomers, the
# oldest is cut; beyond a bound, nothing that it sends is read. The connection of a request is in the context of the
# task that answers it, because uvicorn starts this task while it handles the data of the connection.
#
# Where no key is wanted, every request is trusted, but its connection goes on to count: the one whose last request is
# the oldest is cut, so that one program of this machine can never hold all descriptors.

_MOST_HELD = 64 * 1024

_connection: ContextVar[GuardedConnection | None] = ContextVar("connection", default=None)


def trust() -> None:
    """The request that is being answered has the key."""
    if connection := _connection.get():
        connection.trust()


def guarded(
    protocol: Callable[..., asyncio.Protocol], limits: Limits | None = None, *, wants_key: bool = True
) -> Callable[..., asyncio.Protocol]:
    """A protocol for uvicorn that is like this one, with limits on newcomers."""
    limits = limits or Limits()
    newcomers = Newcomers(limits.newcomers_per_address, limits.newcomers)
    patience = limits.handshake_timeout
    return lambda **options: GuardedConnection(protocol(**options), newcomers, patience, wants_key=wants_key)


class GuardedConnection(asyncio.Protocol):
    """One connection. Everything is passed on to `protocol`, which answers."""

    def __init__(self, protocol: asyncio.Protocol, newcomers: Newcomers, patience: float, *, wants_key: bool) -> None:
        self._protocol = protocol
        self._newcomers = newcomers
        self._patience = patience
        self._wants_key = wants_key
        self._received = 0
        self._is_trusted = False

    def trust(self) -> None:
        self._newcomers.discard(self._transport)
        if not self._wants_key and not self._transport.is_closing():
            self._newcomers.add(self._transport, self._address)
        if self._is_trusted:
            return
        self._is_trusted = True
        self._deadline.cancel()
        if self._received > _MOST_HELD:
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer: Any = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else ""
        self._newcomers.add(self._transport, self._address)
        self._deadline = asyncio.get_running_loop().call_later(self._patience, self._transport.abort)
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_trusted:
            self._received += len(data)
            if self._received > _MOST_HELD:
                self._transport.pause_reading()
        _connection.set(self)
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._newcomers.discard(self._transport)
        self._deadline.cancel()
        self._protocol.connection_lost(error)


_KEPT_ALIVE = 75  # seconds: clients call in bursts, and many reuse a connection without a second try
_LAST_ANSWERS = 1.0  # seconds for answers that are not complete when the bridge is stopped
_ENDS_WITHIN = 3  # seconds for all else
_LINGER = 1.0  # seconds for the rest of a body that is refused


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
    manager = SessionManager(
        server,
        new_store=KeptEvents(options.max_kept).session,
        security_settings=security,
        max_request_body_size=options.max_request,
        session_idle_timeout=options.session_idle,
        max_sessions=options.max_sessions,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None, None]:
        async with manager.run():
            yield

    routes = [Route(path, endpoint=manager)]
    middleware = [
        Middleware(TrimmedHeaders),
        Middleware(_CheckedNames, security),
        Middleware(_OfSessions, server.presence),
    ]
    app = Starlette(routes=routes, middleware=middleware, lifespan=lifespan)
    return BoundedBodies(PlainCalls(app, server, path, security), Limits(max_message=options.max_request))


def _at_any_port(names: Sequence[str]) -> list[str]:
    return [*names, *(f"{name}:*" for name in names)]


class _CheckedNames:
    """Refuses foreign host names and web pages as the SDK does, and says what to do about it."""

    def __init__(self, app: ASGIApp, settings: TransportSecuritySettings) -> None:
        self._app, self._check = app, RequestCheck(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = await self._check.refused_name(Request(scope)) if scope["type"] == "http" else None
        if status is None:
            await self._app(scope, receive, send)
            return
        kind, option = ("host", "--allow-host") if status == 421 else ("origin", "--allow-origin")
        name = Request(scope).headers.get(kind, "")[:128]
        message = f"This bridge may not be used under the {kind} {name!r}. To allow it, start it with {option} NAME."
        await _refuse(send, status, message)


class _OfSessions:
    """Notes while a session has an open request."""

    def __init__(self, app: ASGIApp, presence: ClientPresence) -> None:
        self._app, self._presence = app, presence

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        session = header(scope, MCP_SESSION_ID_HEADER.encode()) if scope["type"] == "http" else ""
        with self._presence.request(session) if session else nullcontext():
            await self._app(scope, receive, send)


class BoundedBodies:
    """Reads each body that is posted as a whole, in time, and all of them within the bytes that may be on their way."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._limits = app, limits
        self._arriving = ArrivingBytes(limits.arriving_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            body = ArrivingBody(receive, self._limits, self._arriving)
            body.trust("clients")
            try:
                whole = await body.read(self._limits.max_message)
            except SMCPError as error:
                status = 400 if isinstance(error, BadRequest) else error.code
                await _refuse(_lingering(send, receive), status, error.message, (b"connection", b"close"))
                return
            receive = again({"type": "http.request", "body": whole, "more_body": False}, receive)
        await self._app(scope, receive, send)


def _lingering(send: Send, receive: Receive) -> Send:
    """`send`, with a moment for the rest of the body before the end: a client that writes could not read the answer."""

    async def send_lingering(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            await send({**message, "more_body": True})
            with suppress(TimeoutError):
                async with asyncio.timeout(_LINGER):
                    while (await receive()).get("more_body"):
                        pass
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    return send_lingering


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
        values = [value.strip() for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = values[0].partition(b" ") if len(values) == 1 else (b"", b"", b"")
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
    """The end of all requests. It costs a waiting request no task of its own."""

    def __init__(self) -> None:
        self.is_set = False
        self._receiving: set[asyncio.Future[Any]] = set()

    def set(self) -> None:
        self.is_set = True
        for receiving in self._receiving:
            receiving.cancel()

    async def unless_set(self, receive: Receive) -> MutableMapping[str, Any]:
        """The next message, or `http.disconnect` once this is set."""
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
    """`receive`, for which the client is gone when it is over: its streams and waiting requests end."""
    is_read = False

    async def receive_until_over() -> MutableMapping[str, Any]:
        nonlocal is_read
        if is_read:
            return {"type": "http.disconnect"} if over.is_set else await over.unless_set(receive)
        message = await receive()  # the body comes at once
        is_read = not message.get("more_body")
        return message

    return receive_until_over


class Answers:
    """The answers that are being given now, counted by `with`."""

    def __init__(self) -> None:
        self._count = 0
        self._ended = asyncio.Event()

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        self._ended.set()

    async def finish(self, patience: float) -> None:
        """Wait until all are complete, at most so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self._count:
                    self._ended.clear()
                    await self._ended.wait()


class _Endable:
    """An application that can be ended while clients listen: the web server would wait for their streams."""

    def __init__(self, app: ASGIApp, *, wants_key: bool) -> None:
        self._app, self._wants_key = app, wants_key
        self._streams_over, self._answers_over = EndOfRequests(), EndOfRequests()
        self._answers = Answers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("extensions", {})[EXTENSION] = {"trust": trust}
        if not self._wants_key:
            trust()
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif scope["method"] == "POST":
            with self._answers:
                await self._complete(scope, until_over(receive, self._answers_over), send)
        else:
            await self._complete(scope, until_over(receive, self._streams_over), send)

    async def end(self, patience: float) -> None:
        """End streams of notices now, and answers that are not complete after so many seconds."""
        self._streams_over.set()
        await self._answers.finish(patience)
        self._answers_over.set()

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request to its proper end: the client is not gone, it only looks so."""
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


async def serve_http(
    app: ASGIApp, listening: socket.socket, on_ready: Callable[[], None], *, wants_key: bool = False
) -> None:
    """Serve an application until this is cancelled. Connections are limited in number.

    If it `wants_key`, these are the ones of clients that have not shown it: the application says with `trust` of its
    extension `a2c` that a client has.
    """
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

    endable = _Endable(app, wants_key=wants_key)
    config = uvicorn.Config(
        endable,
        http=cast(Any, guarded(AutoHTTPProtocol, wants_key=wants_key)),
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


@asynccontextmanager
async def serving_http(app: ASGIApp, listening: socket.socket, *, wants_key: bool) -> AsyncGenerator[None, None]:
    """As `serve_http`, until the block ends. Closes the socket."""
    ready = asyncio.Event()
    serving = asyncio.create_task(serve_http(app, listening, ready.set, wants_key=wants_key))
    try:
        await ready.wait()
        yield
    finally:
        await cancel_and_wait(serving)
        listening.close()
