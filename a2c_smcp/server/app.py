"""The Server as an ASGI application: the one place where its parts are chosen and joined."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any

import engineio
import socketio

from a2c_smcp.errors import BadRequest, NotFound, SMCPError
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.server import gate, polling
from a2c_smcp.server.auth import AuthenticationProvider
from a2c_smcp.server.directory.nodes import sid_at
from a2c_smcp.server.lane import Acks, Lane
from a2c_smcp.server.metrics import Metrics
from a2c_smcp.server.namespace import SMCPNamespace
from a2c_smcp.server.neighbours import Shared, shared
from a2c_smcp.server.outbox import Outbox
from a2c_smcp.server.packets import SMCPPacket
from a2c_smcp.server.proxy import Proxy
from a2c_smcp.server.settings import Settings
from a2c_smcp.server.wires import Bind, Receive, Scope, Send, Wires
from a2c_smcp.smcp import SMCP_NAMESPACE

__all__ = ["SMCPApp", "create_app"]

logger = logging.getLogger(__name__)

_WATCH_INTERVAL = 1.0
_CLOSE_GRACE = 0.5
_POLL_INTERVAL = 0.02
_PACKETS_PER_POST = 10_000


def create_app(settings: Settings | None = None) -> SMCPApp:
    """A Server, ready to be served by any ASGI server or mounted in another application."""
    return SMCPApp(settings or Settings())


class SMCPApp:
    """Serves `/socket.io/`, `/healthz` and `/readyz`, and keeps watch over its connections."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.namespace = SMCPNamespace(
            settings.auth or _AllowAll(),
            directory=settings.directory,
            limits=settings.limits,
            require_version=settings.require_version,
            legacy_notices=settings.legacy_notices,
            metrics=self.metrics,
            check_room=self._check_room,
        )
        self.sio = _socket_server(settings)
        self.sio.register_namespace(self.namespace)
        self._shared = shared(settings.directory)
        self._proxy = Proxy(self._shared, settings.limits) if self._shared else None
        if self._shared:
            _name_sessions(self.sio, self._shared.node)
            self.namespace.span(self._shared)
        self._starting: asyncio.Task[None] | None = None
        self._is_started = False
        self._wires = Wires()
        self._bind: Bind | None = None
        if settings.fast_lane:
            lane = Lane(self.sio, self.namespace, settings.limits.max_message)
            self._bind = lane.bind
            self.namespace.requests.post, self.namespace.notices.emit = lane.post, lane.broadcast
        self._is_watched = False
        self._is_draining = False

    @property
    def is_shared(self) -> bool:
        """Whether this is a node of many."""
        return self._shared is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        if path == "/socket.io":
            await self._serve(scope, receive, send)
        else:
            await self._serve_status(path, scope, send)

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
        await self.namespace.reload()

    async def drain(self) -> None:
        """Lets calls in flight finish and tells the rest, then lets everybody go.

        To other nodes, those who have no call in flight may go at once.
        """
        self._is_draining = True
        calls = asyncio.ensure_future(self.namespace.drain())
        while self._shared and not calls.done():
            await self._let_idle_go()
            await asyncio.wait([calls], timeout=_POLL_INTERVAL)
        await calls
        await self._wait_until_read()
        if self._proxy:
            self._proxy.drain()
        await asyncio.gather(*(self._dismiss(sid) for sid in list(self.sio.eio.sockets)))

    async def close(self) -> None:
        await self.sio.shutdown()
        if self._starting:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        if self._proxy:
            await self._proxy.close()
        await self.namespace.close()

    async def _start(self, directory: Shared) -> None:
        await directory.start()
        self._is_started = True

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Everything under `/socket.io/`."""
        if not self._is_watched:
            self._is_watched = True
            self.namespace.background.spawn(self._watch())
        sid = gate.session_in(scope)
        try:
            await self.start()
            scope, elsewhere = await self._proxy.look_at(scope, sid) if self._proxy else (scope, None)
            gate.check_host(scope, self.settings.trusted_hosts)
            if self._proxy and elsewhere:
                self.metrics.count("passed_on_total")
                await self._proxy.carry(elsewhere, scope, receive, send)
            else:
                self._check_session(sid, scope)
                await self._carry(sid, scope, receive, send)
        except SMCPError as error:
            self.metrics.count("refused_total", code=error.code)
            await gate.refuse(scope, send, error)
            await self.sio.eio.disconnect(sid or "")

    def _check_session(self, sid: str | None, scope: Scope) -> None:
        if sid is None:
            gate.check_newcomer(scope, self.settings.require_version, is_draining=self._is_draining)
        elif sid not in self.sio.eio.sockets or self.sio.eio.sockets[sid].closed:
            raise BadRequest("no such session")

    async def _carry(self, sid: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on to the library, and puts right what it leaves behind."""
        limits, sockets = self.settings.limits, self.sio.eio.sockets
        if scope["type"] == "websocket":
            await self._wires.carry(
                self.sio.handle_request, sid, scope, receive, send, bind=self._bind, then=self._end_websocket
            )
        elif scope["method"] == "POST":
            handle = self.sio.handle_request
            await polling.post(
                handle, scope, receive, send, limit=limits.max_transport, patience=limits.handshake_timeout
            )
            if (socket := sockets.get(sid)) and socket.closed:
                socket.queue.put_nowait(None)  # a poll that still waits for packets
        else:
            await polling.poll(self.sio.handle_request, scope, receive, send)

    async def _end_websocket(self, sid: str | None) -> None:
        """Ends the session of a websocket that has ended. One that failed to upgrade goes on polling."""
        socket = self.sio.eio.sockets.get(sid)
        if socket and socket.upgraded:
            await self.sio.eio.disconnect(sid)
        elif socket:
            socket.upgrading = False

    async def _serve_status(self, path: str, scope: Scope, send: Send) -> None:
        """The pages for operators."""
        try:
            gate.check_host(scope, self.settings.trusted_hosts)
        except SMCPError as error:
            self.metrics.count("refused_total", code=error.code)
            await gate.refuse(scope, send, error)
            return
        match path:
            case "/healthz":
                await gate.respond(scope, send, 200, dumps({"status": "ok"}), "application/json")
            case "/readyz":
                readiness = gate.readiness(self._shared, is_draining=self._is_draining)
                status = 200 if readiness["status"] == "ready" else 503
                await gate.respond(scope, send, status, dumps(readiness), "application/json")
            case "/metrics" if self.settings.metrics:
                await gate.respond(scope, send, 200, self.metrics.render(), "text/plain; version=0.0.4")
            case _:
                await gate.refuse(scope, send, NotFound("this server has /socket.io/, /healthz and /readyz"))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
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

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_INTERVAL)
            try:
                await self._check_connections()
            except Exception:
                logger.exception("the watch over connections failed")

    async def _check_connections(self) -> None:
        """Ends what blocks, overflows, never finishes its handshake, or is gone without a word."""
        limits, manager, sockets = self.settings.limits, self.sio.manager, self.sio.eio.sockets
        now = asyncio.get_running_loop().time()
        for sid in self._wires.blocked(limits.write_timeout):
            await self._cut(sid)
        for sid, socket in list(sockets.items()):
            outbox: Outbox = socket.queue
            if manager.sid_from_eio_sid(sid, SMCP_NAMESPACE):
                outbox.last_used = now
            if outbox.overflowed:
                await self._cut(sid)
            elif now - outbox.last_used > limits.handshake_timeout:
                await self._dismiss(sid)
        await self.namespace.drop_lost(sockets)

    async def _let_idle_go(self) -> None:
        sid_of = partial(self.sio.manager.sid_from_eio_sid, namespace=SMCP_NAMESPACE)
        waiting = [sid for sid, socket in self.sio.eio.sockets.items() if not (socket.closing or socket.queue.unread)]
        await asyncio.gather(*(self._dismiss(sid) for sid in waiting if not self.namespace.is_engaged(sid_of(sid))))

    async def _cut(self, sid: str) -> None:
        """Ends a session whose peer does not read."""
        self.metrics.count("cut_total")
        self._wires.cut(sid)
        await self.sio.eio.disconnect(sid)

    async def _dismiss(self, sid: str) -> None:
        """Ends a session whose peer may still read why."""
        await self.sio.eio.disconnect(sid)
        asyncio.get_running_loop().call_later(_CLOSE_GRACE, self._wires.cut, sid)

    async def _wait_until_read(self) -> None:
        """Gives everybody a moment to read what they were told last: a polling client has to come for it."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + _CLOSE_GRACE
        is_read = False
        while not is_read and clock() < deadline:
            await asyncio.sleep(_POLL_INTERVAL)
            is_read = not any(socket.queue.unread for socket in self.sio.eio.sockets.values())

    def _check_room(self, sid: str, size: int) -> None:
        if socket := self.sio.eio.sockets.get(self.sio.manager.eio_sid_from_sid(sid, SMCP_NAMESPACE)):
            socket.queue.check_room(size)


class _AllowAll(AuthenticationProvider):
    """Lets everybody in."""

    async def authenticate(self, sio: Any, environ: Any, auth: Any, headers: Any) -> bool:
        return True


def _name_sessions(sio: socketio.AsyncServer, node: str) -> None:
    """Session ids of both protocols say which node has them."""
    new_token = sio.eio.generate_id
    sio.eio.generate_id = lambda: sid_at(node, new_token())


def _socket_server(settings: Settings) -> socketio.AsyncServer:
    limits = settings.limits
    # The library's own log shows payloads, and its errors are made by clients: ours are logged where they are made.
    quiet = logging.getLogger("a2c_smcp.server.socketio")
    quiet.setLevel(logging.CRITICAL)
    engineio.payload.Payload.max_decode_packets = _PACKETS_PER_POST
    sio = socketio.AsyncServer(
        async_mode="asgi",
        client_manager=Acks(),
        namespaces=[SMCP_NAMESPACE],
        serializer=type("Packet", (SMCPPacket,), {"max_message": limits.max_message}),
        cors_allowed_origins=partial(gate.is_welcome, frozenset(settings.cors_origins)),
        max_http_buffer_size=limits.max_transport,
        ping_interval=limits.ping_interval,
        ping_timeout=limits.ping_timeout,
        http_compression=False,
        logger=quiet,
        engineio_logger=quiet,
    )
    sio.eio.create_queue = partial(Outbox, limits.unread_bytes)

    async def on_message(sid: str, data: str | bytes) -> None:
        """Text in the place of an attachment ends the packet that waits for it, and is a packet of its own."""
        is_late = isinstance(data, str) and sid in sio._binary_packet
        await sio._handle_eio_message(sid, data)
        if is_late:
            await sio._handle_eio_message(sid, data)

    sio.eio.on("message", on_message)
    return sio
