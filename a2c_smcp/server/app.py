"""The Server as an ASGI application: the one place where its parts are chosen and joined."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from a2c_smcp.engine.session import WEBSOCKET
from a2c_smcp.errors import BadRequest, NotFound, SMCPError
from a2c_smcp.server import gate
from a2c_smcp.server.auth.authentication import AuthenticationProvider
from a2c_smcp.server.cluster.peer_nodes import Shared, shared
from a2c_smcp.server.cluster.proxy import Onward, Proxy
from a2c_smcp.server.http_requests import Request, Response, json_response
from a2c_smcp.server.hub import Hub
from a2c_smcp.server.monitoring import Metrics
from a2c_smcp.server.settings import Settings
from a2c_smcp.server.transport import asgi
from a2c_smcp.server.transport import session_requests as polling
from a2c_smcp.server.transport.admission import client_address
from a2c_smcp.server.transport.session_channel import Channel
from a2c_smcp.server.transport.sessions import Sessions

__all__ = ["SMCPApp", "create_app"]

_CLOSE_GRACE = 0.5
_POLL_INTERVAL = 0.02


def create_app(settings: Settings | None = None) -> SMCPApp:
    """A Server, ready to be served by any ASGI server or mounted in another application."""
    return SMCPApp(settings or Settings())


class SMCPApp:
    """Serves `/socket.io/`, `/healthz` and `/readyz`. Web servers call `respond` and `upgrade`, or it as ASGI."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.hub = Hub(
            settings.auth or _AllowAll(),
            directory=settings.directory,
            limits=settings.limits,
            require_version=settings.require_version,
            legacy_notices=settings.legacy_notices,
            metrics=self.metrics,
        )
        self._shared = shared(settings.directory)
        self._proxy = Proxy(self._shared, settings.limits) if self._shared else None
        self.sessions = Sessions(self.hub, settings.limits, self.metrics, self._shared.node if self._shared else None)
        self._origins = frozenset(settings.cors_origins)
        self._starting: asyncio.Task[None] | None = None
        self._is_started = False
        self._is_draining = False

    @property
    def is_shared(self) -> bool:
        """Whether this is a node of many."""
        return self._shared is not None

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await asgi.serve_websocket(self, self._proxy, self.settings.limits, scope, receive, send)
        else:
            await asgi.serve_http(self, self.settings.limits, scope, receive, send)

    async def start(self) -> None:
        """Takes its place among the nodes of a shared directory, once. A first request does so where nobody else did.

        Raises `Unavailable`, and may be tried again.
        """
        if self._shared is None or self._is_started:
            return
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start(self._shared))
        await asyncio.shield(self._starting)

    async def reload(self) -> None:
        """Reads the credentials again."""
        self.hub.reload()

    async def drain(self) -> None:
        """Lets calls in flight finish and tells the rest, then lets everybody go.

        To other nodes, those who have no call in flight may go at once.
        """
        self._is_draining = True
        calls = asyncio.ensure_future(self.hub.drain())
        while self._shared and not calls.done():
            self._let_idle_go()
            await asyncio.wait([calls], timeout=_POLL_INTERVAL)
        await calls
        await self._wait_until_read()
        if self._proxy:
            self._proxy.drain()
        for channel in self.sessions:
            channel.close()

    async def close(self) -> None:
        await self.sessions.close()
        if self._starting:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._proxy:
            await self._proxy.close()
        await self.hub.close()

    # Requests

    async def respond(self, request: Request) -> Response:
        """Answers a request that is no websocket's."""
        try:
            if request.path != "/socket.io":
                return self._status_page(request)
            request, elsewhere = await self._admit(request)
            if self._proxy and elsewhere:
                return await self._proxy.respond(elsewhere, request)
            headers = gate.check_page(request, self._origins)
            return await polling.respond(request, self.sessions, headers)
        except SMCPError as error:
            return self._refused(request, error)

    async def upgrade(self, request: Request) -> Response | Channel | Onward:
        """A refusal, the session that a websocket belongs to, or where it is to be carried."""
        try:
            if request.path != "/socket.io":
                raise NotFound("this server has websockets at /socket.io/")
            request, elsewhere = await self._admit(request)
            if self._proxy and elsewhere:
                return await self._proxy.onward(elsewhere, request)
            gate.check_page(request, self._origins)
            if request.parameter("transport") != WEBSOCKET:
                raise BadRequest("transport: a websocket is asked for as websocket")
            if request.parameter("sid") is None:
                return self.sessions.open(request, WEBSOCKET)
            channel = polling.session_of(request, self.sessions)
            if not channel.reserve():
                raise BadRequest("this session has a websocket already")
        except SMCPError as error:
            return self._refused(request, error)
        return channel

    async def _admit(self, request: Request) -> tuple[Request, str | None]:
        """The request of a client that may be served, and the other node that has its session. Raises `SMCPError`."""
        await self.start()
        request = replace(request, client=client_address(request, self.settings.trusted_proxies))
        elsewhere = None
        if self._proxy:
            request, elsewhere = await self._proxy.find(request)
        gate.check_host(request, self.settings.trusted_hosts)
        if elsewhere:
            self.metrics.count("passed_on_total")
        elif request.parameter("sid") is None and request.method != "OPTIONS":
            gate.check_newcomer(request, self.settings.require_version, is_draining=self._is_draining)
        return request, elsewhere

    def _refused(self, request: Request, error: SMCPError) -> Response:
        self.metrics.count("refused_total", code=error.code)
        return gate.refusal(error)

    def _status_page(self, request: Request) -> Response:
        """The pages for operators."""
        gate.check_host(request, self.settings.trusted_hosts)
        match request.path:
            case "/healthz":
                return json_response(200, {"status": "ok"})
            case "/readyz":
                readiness = gate.readiness(self._shared, is_draining=self._is_draining)
                return json_response(200 if readiness["status"] == "ready" else 503, readiness)
            case "/metrics" if self.settings.metrics:
                kind = ((b"content-type", b"text/plain; version=0.0.4"),)
                return Response(200, kind, self.metrics.render().encode())
        raise NotFound("this server has /socket.io/, /healthz and /readyz")

    # The end

    def _let_idle_go(self) -> None:
        for channel in self.sessions:
            if not (channel.unread or (channel.connection and self.hub.is_engaged(channel.connection))):
                channel.close()

    async def _wait_until_read(self) -> None:
        """Gives everybody a moment to read what they were told last: a polling client has to come for it."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + _CLOSE_GRACE
        while clock() < deadline:
            await asyncio.sleep(_POLL_INTERVAL)
            if not any(channel.unread for channel in self.sessions):
                return

    async def _start(self, directory: Shared) -> None:
        await directory.start()
        self._is_started = True

    async def _lifespan(self, receive: asgi.Receive, send: asgi.Send) -> None:
        while True:
            message = await receive()
            try:
                await (self.close if message["type"] == "lifespan.shutdown" else self.start)()
            except SMCPError as error:
                await send({"type": f"{message['type']}.failed", "message": str(error)})
                return
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return


class _AllowAll(AuthenticationProvider):
    """Lets everybody in."""

    async def authenticate(self, sio: Any, environ: Any, auth: Any, headers: Any) -> bool:
        return True
