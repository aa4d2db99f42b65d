"""All Engine.IO sessions of this node: opened, found, authenticated, pinged and ended, with one timer for all.

A session is due when its engine says so (`deadline`: a ping to send, a pong that is missing, a handshake or an upgrade
that takes too long). Sessions wait in buckets of one `_period` each. A deadline that has moved away meanwhile is
noticed when its bucket comes up, so a message that comes in moves nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from math import inf
from time import monotonic
from typing import TypeVar

from a2c_smcp.engine.packets import Malformed, encode_payload
from a2c_smcp.engine.server import ServerSession
from a2c_smcp.engine.session import POLLING, WEBSOCKET, EngineLimits, Transport
from a2c_smcp.errors import BadRequest, SMCPError
from a2c_smcp.protocol.codec import dumps, loads
from a2c_smcp.server.auth.authentication import Handshake, Principal
from a2c_smcp.server.cluster.memory import new_sid
from a2c_smcp.server.connections import Connection
from a2c_smcp.server.http_requests import Headers, HttpRequest, HttpResponse, text_response
from a2c_smcp.server.hub import Hub
from a2c_smcp.server.observation.happened import ReaderCut
from a2c_smcp.server.settings import Limits
from a2c_smcp.server.transport.admission import Newcomers, Refusals
from a2c_smcp.server.transport.session_channel import CutReason, SessionChannel, Socket, Traffic
from a2c_smcp.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

Admitted = TypeVar("Admitted")


_FORGET_AFTER = 2.0  # seconds in which a polling client may fetch the end of its session
_HEAD_ROOM = 64  # a packet that is passed on gets another head, and must still fit
_PER_TURN = 256


class Sessions:
    """The timer starts with the first session: a Server that is mounted is not told when it starts."""

    def __init__(self, hub: Hub, limits: Limits, metrics: Metrics, node: str | None) -> None:
        self.hub = hub
        self.blocked: dict[Socket, tuple[float, SessionChannel]] = {}
        self._limits = limits
        self._engine_limits = EngineLimits(
            ping_interval=limits.ping_interval,
            ping_timeout=limits.ping_timeout,
            handshake_timeout=limits.handshake_timeout,
            max_payload=limits.max_transport,
            max_message=limits.max_message,
            max_ack=limits.max_message - _HEAD_ROOM,
        )
        self.traffic = traffic = Traffic()
        self._metrics = metrics
        self._node = node
        self._channels: dict[str, SessionChannel] = {}
        metrics.watch("a2c_sessions", self._channels.__len__)
        metrics.watch("a2c_received_bytes_total", lambda: traffic.received)
        metrics.watch("a2c_sent_bytes_total", lambda: traffic.sent)
        self._newcomers = Newcomers(limits.newcomers_per_address, limits.newcomers, partial(self.count_cut, "crowd"))
        self._refusals = Refusals()
        self._period = max(
            0.02,
            min(
                0.5, min(limits.ping_interval, limits.ping_timeout, limits.handshake_timeout, limits.write_timeout) / 8
            ),
        )
        self._due: dict[float, set[SessionChannel]] = {}
        self._tick = 0
        self._timer: asyncio.TimerHandle | None = None
        self._chores: list[Callable[[float], None]] = []

    def __len__(self) -> int:
        return len(self._channels)

    def __iter__(self) -> Iterator[SessionChannel]:
        return iter(list(self._channels.values()))

    def open(self, request: HttpRequest, transport: Transport) -> SessionChannel:
        """Opens a session for this request."""
        self.start()
        sid = new_sid(self._node)
        session = ServerSession(sid, self._engine_limits, monotonic(), transport)
        address = request.client[0] if request.client else ""
        channel = self._channels[sid] = SessionChannel(
            self, session, address=address, opening=_packed(request), budget=self._limits.unread_bytes
        )
        self._newcomers.add(channel, channel.address)
        self.schedule(channel)
        return channel

    def get(self, sid: str) -> SessionChannel | None:
        channel = self._channels.get(sid)
        if channel:
            channel.tick(monotonic())
        return channel

    def start(self, chore: Callable[[float], None] | None = None) -> None:
        """Starts the timer. `chore` is called each time it goes off."""
        if chore:
            self._chores.append(chore)
        if self._timer is None:
            self._tick = int(monotonic() / self._period)
            self._wait()

    async def close(self) -> None:
        """Ends every session, and the timer."""
        for channel in self:
            channel.close()
        await asyncio.sleep(0)
        if self._timer:
            self._timer.cancel()

    # For channels

    def is_authenticated(self, channel: SessionChannel) -> None:
        self._newcomers.discard(channel)

    def is_unauthenticated(self, channel: SessionChannel) -> None:
        self._newcomers.add(channel, channel.address)
        self.schedule(channel)

    async def connect(self, channel: SessionChannel, auth: bytes) -> Connection:
        """Authenticates a CONNECT. Raises `SMCPError`, after a delay if its address was refused too often."""
        connecting = self.hub.connect(channel, _unpacked(channel.opening), auth, proving=channel.take_sid)
        return await self.slowed(connecting, channel.address)

    async def admit(self, handshake: Handshake) -> Principal:
        """Authenticates a request that belongs to no session. Raises `SMCPError`, delayed in the same way."""
        return await self.slowed(self.hub.admit(handshake), handshake.client or "")

    async def slowed(self, admission: Awaitable[Admitted], address: str) -> Admitted:
        """The result of a check of credentials. If it raises `SMCPError` too often for one address, it does so late."""
        try:
            return await admission
        except SMCPError:
            if delay := self._refusals.delay(address, monotonic()):
                await asyncio.sleep(delay)
            raise

    def count_cut(self, reason: CutReason) -> None:
        self._metrics.count("a2c_cut_total", reason)

    def cut(self, channel: SessionChannel) -> None:
        """Ends a session whose client does not read, in a later step: the hub may be in the middle of a broadcast."""
        self.count_cut("slow_reader")
        self.hub.observation.report(ReaderCut(channel.address, channel.connection))
        channel.session.lost(channel.session.transport)
        asyncio.get_running_loop().call_soon(channel.abort)

    def finished(self, channel: SessionChannel) -> None:
        """Removes a session that has ended. A client that polls has a moment to fetch the last packets."""
        self._newcomers.discard(channel)
        self._due.get(channel.due, set()).discard(channel)
        channel.finish()
        if channel.is_fetched:
            self._channels.pop(channel.sid, None)
        else:
            asyncio.get_running_loop().call_later(_FORGET_AFTER, self._forget, channel)

    def _forget(self, channel: SessionChannel) -> None:
        self._channels.pop(channel.sid, None)
        channel.forget()

    def schedule(self, channel: SessionChannel) -> None:
        """Schedule a session again: call it when its deadline may have come nearer."""
        if channel.session.deadline < inf:
            due = int(channel.session.deadline / self._period) + 1
            if due < channel.due:
                channel.due = due
                self._due.setdefault(due, set()).add(channel)

    # The timer

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._period, self._go_off)

    def _go_off(self) -> None:
        now = monotonic()
        self._wait()
        due: list[SessionChannel] = []
        while self._tick <= now / self._period:
            due += [channel for channel in self._due.pop(self._tick, ()) if channel.due == self._tick]
            self._tick += 1
        self._tick_some(due)
        late = now - self._limits.write_timeout
        for socket in [socket for socket, (since, _) in self.blocked.items() if since < late]:
            _, channel = self.blocked.pop(socket)
            self.count_cut("blocked")
            self.hub.observation.report(ReaderCut(channel.address, channel.connection))
            socket.abort()
        for chore in self._chores:
            chore(now)

    def _tick_some(self, due: list[SessionChannel]) -> None:
        """Ticks a few sessions in a turn of the loop: thousands may be due at the same time."""
        now = monotonic()
        for channel in due[:_PER_TURN]:
            channel.due = inf
            try:
                channel.tick(now)
            except Exception:
                logger.exception("a session could not be looked after")
            self.schedule(channel)
        if rest := due[_PER_TURN:]:
            asyncio.get_running_loop().call_soon(self._tick_some, rest)


def _packed(request: HttpRequest) -> bytes:
    """Pack the request that opened a session: the client may connect again while the session lives."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers}
    client = request.client[0] if request.client else None
    return dumps([headers, request.query, client, request.scheme, request.path]).encode("latin-1")


def _unpacked(opening: bytes) -> Handshake:
    headers, query, client, scheme, path = loads(opening.decode("latin-1"))
    return Handshake(headers, query, client, scheme, f"{path}/")


# Requests under `/socket.io/`: sessions opened, polled, posted to, and taken over by a websocket.

_REQUESTS_PER_TURN = 64


def open_websocket(request: HttpRequest, sessions: Sessions) -> SessionChannel:
    """The session that a websocket belongs to: a new one, or one that it may try to take over. Raises `BadRequest`."""
    if request.parameter("transport") != WEBSOCKET:
        raise BadRequest("transport: a websocket is asked for as websocket")
    if request.parameter("sid") is None:
        return sessions.open(request, WEBSOCKET)
    channel = _session_of(request, sessions)
    if not channel.reserve():
        raise BadRequest("this session has a websocket already")
    return channel


async def respond(request: HttpRequest, sessions: Sessions, headers: Headers) -> HttpResponse:
    """Answers a request that is no websocket. Raises `SMCPError`."""
    if request.method == "OPTIONS":
        return text_response(200, b"OK", headers)
    if request.parameter("transport") not in (None, "polling"):
        raise BadRequest("transport: there is polling, and websocket with an upgrade")
    if request.method == "GET":
        if request.parameter("sid") is None:
            return text_response(200, sessions.open(request, POLLING).session.open(), headers)
        packets = await _trusted(_session_of(request, sessions), request).poll()
        if packets is None:
            raise BadRequest("this session is not polling, or another request polls it already")
        payload = encode_payload(packets)
        sessions.traffic.sent += len(payload)
        return text_response(200, payload, headers)
    if request.method == "HEAD":  # from another node, before it reads a large body
        is_authenticated = _session_of(request, sessions).session.is_authenticated
        return text_response(200 if is_authenticated else 404, b"", headers)
    if request.method != "POST":
        return text_response(405, b"Method not allowed", headers)
    sessions.traffic.received += await _post(request, _trusted(_session_of(request, sessions), request))
    return text_response(200, b"OK", headers)


def _session_of(request: HttpRequest, sessions: Sessions) -> SessionChannel:
    """The session that a request names. Raises `BadRequest`."""
    channel = sessions.get(request.parameter("sid") or "")
    if channel is None or (channel.is_closed and channel.is_fetched):
        raise BadRequest("no such session")
    return channel


def _trusted(channel: SessionChannel, request: HttpRequest) -> SessionChannel:
    if channel.session.is_authenticated:
        request.body.trust(channel.connection.principal.id if channel.connection else "")
    return channel


async def _post(request: HttpRequest, channel: SessionChannel) -> int:
    """Handles the packets of a POST, one POST at a time. Returns its size.

    One that is not read as a whole ends the session, which would have a gap.
    """
    try:
        with channel.posting():
            body = await request.body.read(channel.session.max_frame)
            for number, happening in enumerate(channel.session.receive_payload(body, monotonic())):
                if number % _REQUESTS_PER_TURN == _REQUESTS_PER_TURN - 1:
                    await asyncio.sleep(0)
                channel.handle(happening)
    except (Malformed, SMCPError, asyncio.CancelledError) as error:
        if channel.session.transport is POLLING:  # else a websocket has taken over, which this request cannot harm
            channel.abort()
        if isinstance(error, Malformed):
            raise BadRequest(f"not a list of Engine.IO packets: {error}") from None
        raise
    channel.flush()
    return len(body)
