"""An echo application on `engine/`, for the official protocol suites: `python -m tests.engine.echo --port 3000`.

Socket.IO at `/socket.io/`: namespaces `/` and `/custom`, an `auth` event with the payload of the CONNECT, `message`
comes back as `message-back`, `message-with-ack` is acked with its arguments. With `--engine` it is Engine.IO alone, at
`/engine.io/`: every message comes back.

The shell is aiohttp's server, through its documented interface.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any
from uuid import uuid4

from aiohttp import WSMsgType, web

from a2c_smcp.engine.events import Connect, Event, Faulty, Happening, Message, Reason, Upgraded
from a2c_smcp.engine.packets import Attachment, Malformed, Outgoing, ack_packet, encode_payload, event_packet
from a2c_smcp.engine.server import ServerSession
from a2c_smcp.engine.session import POLLING, WEBSOCKET, EngineLimits, Transport

__all__ = ["PATHS", "PING_INTERVAL", "PING_TIMEOUT", "serving_echo"]

PATHS = {"engine.io": "/engine.io/", "socket.io": "/socket.io/"}
PING_INTERVAL, PING_TIMEOUT = 0.3, 0.2
MAX_PAYLOAD = 1_000_000
NAMESPACES = (b"/", b"/custom")
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
    """A session with the websocket that it may have.

    `changed` is told whatever may concern the others who wait: the poll that is open, and the clock. It is the lock of
    all writing, too, so that packets leave in the order in which they were taken.
    """

    def __init__(self, session: ServerSession, gap: float) -> None:
        self.session = session
        self.socket: web.WebSocketResponse | None = None
        self._gap = gap
        self._changed = asyncio.Condition()

    async def run(self) -> None:
        """Keeps the session's time until it has ended."""
        while not self.session.is_closed:
            try:
                async with asyncio.timeout_at(self.session.deadline), self._changed:
                    await self._changed.wait()
            except TimeoutError:
                self.session.tick(now())
                await self.flush()

    async def receive(self, happenings: Iterable[Happening | None]) -> None:
        for happening in happenings:
            follows = answer(self.session, happening) if happening else b""
            await self.flush()
            if follows:
                await asyncio.sleep(self._gap)
                self.session.send(follows)
        await self.flush()

    async def flush(self) -> None:
        async with self._changed:
            self._changed.notify_all()
            if self.socket is None:
                return
            with suppress(ConnectionError):
                for packet in self.session.take(WEBSOCKET):
                    await send(self.socket, packet)
            if self.session.is_closed:
                await self.socket.close()

    async def poll(self) -> web.Response:
        if not self.session.open_poll():
            await self.flush()
            raise web.HTTPBadRequest
        async with self._changed:
            await self._changed.wait_for(lambda: self.session.poll_is_due)
            return web.Response(body=encode_payload(self.session.take(POLLING)), content_type="text/plain")

    async def post(self, body: bytes) -> web.Response:
        try:
            happenings = self.session.receive_payload(body, now())
        except Malformed:
            await self.flush()
            raise web.HTTPBadRequest from None
        await self.receive(happenings)
        return web.Response(text="ok")

    async def read(self, socket: web.WebSocketResponse) -> None:
        """The session's websocket, until it has ended; and the session with it."""
        self.socket = socket
        await self.flush()
        async for frame in socket:
            if frame.type is WSMsgType.TEXT:
                await self.receive([self.session.receive(frame.data.encode(), now())])
            elif frame.type is WSMsgType.BINARY:
                await self.receive([self.session.receive_binary(frame.data, now())])
        self.session.lost(WEBSOCKET)
        await self.flush()

    async def upgrade(self, socket: web.WebSocketResponse) -> None:
        """A websocket that may take the session over. Nothing is read after the packet that decides."""
        if not self.session.upgrade_opens(now()):
            return None
        async for frame in socket:
            said = self.session.upgrade_receives(str(frame.data).encode(), now())
            if isinstance(said, Upgraded):
                return await self.read(socket)
            if said is None:
                return None
            await send(socket, said)
            await self.flush()
        self.session.upgrade_ends()
        return None


class Echo:
    """The sessions of one application, and the requests that belong to them."""

    def __init__(self, name: str, limits: EngineLimits, gap: float, tasks: asyncio.TaskGroup) -> None:
        self._is_raw = name == "engine.io"
        self._limits = limits
        self._gap = gap
        self._tasks = tasks
        self._sessions: dict[str, Live] = {}

    async def serve(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        if query.get("EIO") != "4" or query.get("transport") not in list(Transport):
            raise web.HTTPBadRequest
        transport = Transport(query["transport"])
        if transport is WEBSOCKET:
            return await self._websocket(request, query.get("sid"))
        if "sid" not in query:
            if request.method != "GET":
                raise web.HTTPBadRequest
            return web.Response(body=self._open(POLLING).session.open(), content_type="text/plain")
        live = self._find(query["sid"])
        if live.session.transport is not POLLING:
            raise web.HTTPBadRequest
        return await (live.poll() if request.method == "GET" else live.post(await request.read()))

    async def _websocket(self, request: web.Request, sid: str | None) -> web.WebSocketResponse:
        live = None if sid is None else self._find(sid)
        socket = web.WebSocketResponse(timeout=1, autoping=True, compress=False, max_msg_size=MAX_PAYLOAD)
        await socket.prepare(request)
        if live is None:
            live = self._open(WEBSOCKET)
            await send(socket, live.session.open())
            await live.read(socket)
        else:
            await live.upgrade(socket)
        await socket.close()
        return socket

    def _open(self, transport: Transport) -> Live:
        live = Live(ServerSession(uuid4().hex, self._limits, now(), transport, raw=self._is_raw), self._gap)
        self._sessions[live.session.sid] = live
        self._tasks.create_task(self._run(live))
        return live

    async def _run(self, live: Live) -> None:
        try:
            await live.run()
        finally:
            del self._sessions[live.session.sid]

    def _find(self, sid: str) -> Live:
        live = self._sessions.get(sid)
        if live is not None:
            live.session.tick(now())  # the clock of the session may be late
        if live is None or live.session.is_closed:
            raise web.HTTPBadRequest
        return live

    async def close(self) -> None:
        for live in list(self._sessions.values()):
            live.session.close(Reason.SERVER)
            await live.flush()


def now() -> float:
    return asyncio.get_running_loop().time()


async def send(socket: web.WebSocketResponse, packet: Outgoing) -> None:
    await (socket.send_bytes(packet.data) if isinstance(packet, Attachment) else socket.send_str(packet.decode()))


@asynccontextmanager
async def serving_echo(
    name: str,
    *,
    hosts: Sequence[str] = ("127.0.0.1",),
    port: int = 0,
    ping_interval: float = PING_INTERVAL,
    ping_timeout: float = PING_TIMEOUT,
    handshake_timeout: float = 10,
    gap: float = 0,
) -> AsyncIterator[str]:
    """The application at a port, any that is free by default. Gives its URL."""
    limits = EngineLimits(
        ping_interval=ping_interval,
        ping_timeout=ping_timeout,
        handshake_timeout=handshake_timeout,
        max_payload=MAX_PAYLOAD,
        max_message=MAX_PAYLOAD,
    )
    tasks = asyncio.TaskGroup()
    async with tasks:
        application = Echo(name, limits, gap, tasks)
        app = web.Application(client_max_size=MAX_PAYLOAD)
        app.router.add_route("*", PATHS[name], application.serve)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            for host in hosts:
                await web.TCPSite(runner, host, port).start()
            yield f"http://{hosts[0]}:{runner.addresses[0][1]}"
        finally:
            await application.close()
            await runner.cleanup()


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.echo", description=__doc__)
    parser.add_argument("--port", type=int, default=3000)
    parser.add_argument("--engine", action="store_true", help="Engine.IO without Socket.IO")
    options = parser.parse_args()
    name = "engine.io" if options.engine else "socket.io"
    async with serving_echo(name, hosts=["127.0.0.1", "::1"], port=options.port, gap=GAP) as url:
        print(f"{name} echo at {url}{PATHS[name]}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
