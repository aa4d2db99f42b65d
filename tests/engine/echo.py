"""An echo application on `engine/`, for the official protocol suites: `python -m tests.engine.echo --port 3000`.

Socket.IO at `/socket.io/`: namespaces `/` and `/custom`, an `auth` event with the payload of the CONNECT, `message`
comes back as `message-back`, `message-with-ack` is acked with its arguments. With `--engine` it is Engine.IO alone, at
`/engine.io/`: every message comes back.

It stands on the web server that the program has: `server/transport/http.py` and `websocket.py`, or `asgi.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

from a2c_smcp.engine.events import Connect, Event, Faulty, Happening, Message, Reason, Upgraded, UpgradeFailed
from a2c_smcp.engine.packets import Malformed, Outgoing, ack_packet, encode_payload, event_packet
from a2c_smcp.engine.server import ServerSession
from a2c_smcp.engine.session import POLLING, WEBSOCKET, EngineLimits, Transport
from a2c_smcp.server.http_requests import HttpRequest, HttpResponse, text_response
from a2c_smcp.server.run import HttpListener, address_of, listen
from a2c_smcp.server.settings import Limits
from a2c_smcp.server.transport import asgi
from a2c_smcp.server.transport.admission import ArrivingBytes
from a2c_smcp.server.transport.session_channel import Socket

__all__ = ["PATHS", "PING_INTERVAL", "PING_TIMEOUT", "application", "serving"]

PATHS = {"engine.io": "/engine.io/", "socket.io": "/socket.io/"}
PING_INTERVAL, PING_TIMEOUT = 0.3, 0.2
MAX_PAYLOAD = 1_000_000
LIMITS = Limits(max_message=MAX_PAYLOAD // 2)
NAMESPACES = (b"/", b"/custom")
REFUSED = text_response(400, b"Bad request")
GAP = 0.05
"""Seconds between the answer to a CONNECT and the `auth` event: the suite begins to listen for the second frame only
when it has seen the first one, and would miss one that comes with it in a single read."""


def answer(session: ServerSession, happening: Happening) -> bytes:
    """Sends what the application says to this, and returns the packet that is to follow, if there is one."""
    match happening:
        case Message(data, is_binary):
            session.send_binary(data) if is_binary else session.send(b"4" + data)
        case Connect(namespace, body) if namespace in NAMESPACES:
            session.accept(namespace, uuid4().hex)
            return event_packet(namespace, None, b'["auth",', body or b"{}", b"]")
        case Connect(namespace):
            session.refuse(namespace, b'{"message":"Invalid namespace"}')
        case Event():
            try:
                echo(session, happening)
            except (ValueError, RecursionError):
                session.close(Reason.PROTOCOL)
        case Faulty():
            session.close(Reason.PROTOCOL)
    return b""


def echo(session: ServerSession, event: Event) -> None:
    """Raises `ValueError` if its body is no array with a name."""
    namespace, number, body, attachments = event
    name, *arguments = json.loads(bytes(body))
    count = len(attachments)
    if name == "message":
        text = as_json(["message-back", *arguments])
        session.send(event_packet(namespace, None, text, attachments=count), attachments)
    elif name == "message-with-ack" and number is not None:
        session.send(ack_packet(namespace, number, as_json(arguments), attachments=count), attachments)


def as_json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class Live:
    """A session on its transports: it owns its websocket, one that wants to take over, and the poll that waits."""

    def __init__(self, session: ServerSession, echo: Echo) -> None:
        self.session = session
        self._echo = echo
        self._socket: Socket | None = None
        self._candidate: Socket | None = None
        self._poll: asyncio.Future[list[Outgoing]] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def take(self, happening: Happening | None) -> None:
        """Lets the application answer."""
        if isinstance(happening, UpgradeFailed) and self._candidate:
            self._candidate.close()
        elif happening is not None and (follows := answer(self.session, happening)):
            self._echo.later(self.send, follows)

    def send(self, packet: bytes) -> None:
        self.session.send(packet)
        self.flush()

    def flush(self) -> None:
        """Writes what may be written, and looks at the clock again when the session wants it."""
        session = self.session
        if self._socket:
            if session.queued:
                self._socket.write_all(session.take(WEBSOCKET))
            if session.is_closed:
                self._socket.close()
        elif self._poll and session.poll_is_due:
            self._poll.set_result(session.take(POLLING))
            self._poll = None
        if self._timer:
            self._timer.cancel()
        if session.is_closed:
            self._echo.forget(self)
        else:
            self._timer = asyncio.get_running_loop().call_at(session.deadline, self.tick)

    def tick(self) -> None:
        self.take(self.session.tick(now()))
        self.flush()

    # Polls

    async def poll(self) -> HttpResponse:
        if not self.session.open_poll():
            self.flush()
            return REFUSED
        poll = self._poll = asyncio.get_running_loop().create_future()
        self.flush()
        return text_response(200, encode_payload(await poll))

    async def post(self, request: HttpRequest) -> HttpResponse:
        request.body.trust()
        body = await request.body.read(MAX_PAYLOAD)
        try:
            for happening in self.session.receive_payload(body, now()):
                self.take(happening)
        except Malformed:
            return REFUSED
        finally:
            self.flush()
        return text_response(200, b"ok")

    # Websockets

    def attach(self, socket: Socket) -> None:
        socket.trust()
        if self.session.transport is WEBSOCKET and self._socket is None:
            self._socket = socket
            socket.write((self.session.open(),))
        elif self.session.upgrade_opens(now()):
            self._candidate = socket
        else:
            socket.close()
        self.flush()

    def detach(self) -> None:
        self.session.lost(WEBSOCKET)
        self.flush()

    def heard(self, socket: Socket, text: bytes) -> None:
        if socket is self._socket:
            self.take(self.session.receive(text, now()))
        elif socket is self._candidate:
            said = self.session.upgrade_receives(text, now())
            if isinstance(said, Upgraded):
                self._socket, self._candidate = socket, None
            elif said is None:
                socket.close()
            else:
                socket.write((said,))
        self.flush()

    def heard_binary(self, socket: Socket, data: bytes) -> None:
        if socket is self._socket:
            self.take(self.session.receive_binary(data, now()))
            self.flush()

    def heard_too_much(self, socket: Socket) -> None:
        """Everybody is trusted here."""

    def blocked(self, socket: Socket) -> None:
        """An echo does not care how slowly it is read."""

    def unblocked(self, socket: Socket) -> None: ...

    def ended(self, socket: Socket) -> None:
        if socket is self._socket:
            self.session.lost(WEBSOCKET)
        elif socket is self._candidate:
            self._candidate = None
            self.session.upgrade_ends()
        self.flush()


class Echo:
    """The sessions of one application; an `http.Application`."""

    def __init__(self, name: str, limits: EngineLimits, gap: float) -> None:
        self._path = PATHS[name].rstrip("/")
        self._is_raw = name == "engine.io"
        self._limits = limits
        self._gap = gap
        self._sessions: dict[str, Live] = {}

    def is_mounted(self, path: str) -> bool:
        return False

    async def respond(self, request: HttpRequest) -> HttpResponse:
        if not self._is_for(request, POLLING):
            return REFUSED
        sid = request.parameter("sid")
        if sid is None:
            return text_response(200, self._open(POLLING).session.open()) if request.method == "GET" else REFUSED
        live = self._find(sid)
        if live is None:
            return REFUSED
        return await (live.poll() if request.method == "GET" else live.post(request))

    async def upgrade(self, request: HttpRequest) -> HttpResponse | Live:
        if not self._is_for(request, WEBSOCKET):
            return REFUSED
        sid = request.parameter("sid")
        return self._open(WEBSOCKET) if sid is None else self._find(sid) or REFUSED

    def _is_for(self, request: HttpRequest, transport: Transport) -> bool:
        asked = request.parameter("EIO"), request.parameter("transport")
        return request.path == self._path and asked == ("4", transport)

    def _open(self, transport: Transport) -> Live:
        live = Live(ServerSession(uuid4().hex, self._limits, now(), transport, raw=self._is_raw), self)
        self._sessions[live.session.sid] = live
        live.flush()
        return live

    def _find(self, sid: str) -> Live | None:
        live = self._sessions.get(sid)
        if live:
            live.tick()  # the timer may be late
        return self._sessions.get(sid)

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        """Mounted in an ASGI server."""
        if scope["type"] == "websocket":
            await asgi.serve_websocket(self, None, LIMITS, scope, receive, send)
        elif scope["type"] == "http":
            await asgi.serve_http(self, LIMITS, ArrivingBytes(LIMITS.arriving_bytes), scope, receive, send)

    # For sessions

    def later(self, send: Callable[[bytes], None], packet: bytes) -> None:
        if self._gap:
            asyncio.get_running_loop().call_later(self._gap, send, packet)
        else:
            send(packet)

    def forget(self, live: Live) -> None:
        self._sessions.pop(live.session.sid, None)

    def close(self) -> None:
        for live in list(self._sessions.values()):
            live.session.close()
            live.flush()


def now() -> float:
    return asyncio.get_running_loop().time()


def application(
    name: str,
    *,
    ping_interval: float = PING_INTERVAL,
    ping_timeout: float = PING_TIMEOUT,
    handshake_timeout: float = 10,
    gap: float = 0,
) -> Echo:
    """`engine.io` or `socket.io`."""
    limits = EngineLimits(
        ping_interval=ping_interval,
        ping_timeout=ping_timeout,
        handshake_timeout=handshake_timeout,
        max_payload=MAX_PAYLOAD,
        max_message=MAX_PAYLOAD,
    )
    return Echo(name, limits, gap)


@asynccontextmanager
async def serving(echo: Echo, *doors: socket.socket) -> AsyncIterator[None]:
    """By the program's own web server."""
    listener = HttpListener(echo, LIMITS, [])
    async with AsyncExitStack() as stack:
        for door in doors:
            server = await asyncio.get_running_loop().create_server(listener.protocol, sock=door)
            stack.callback(server.close)
        try:
            yield
        finally:
            echo.close()
            await listener.close(patience=1)


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.echo", description=__doc__)
    parser.add_argument("--port", type=int, default=3000)
    parser.add_argument("--engine", action="store_true", help="Engine.IO without Socket.IO")
    options = parser.parse_args()
    name = "engine.io" if options.engine else "socket.io"
    doors = [listen(host, options.port) for host in ("127.0.0.1", "::1")]  # a client may take either for localhost
    async with serving(application(name, gap=GAP), *doors):
        print(f"{name} echo at http://{address_of(doors[0])}{PATHS[name]}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
