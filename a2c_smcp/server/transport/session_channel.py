"""The channel of one Engine.IO session: what the hub writes to, and where packets that come are given to the hub.

Upgrade. A session begins on a websocket or on polling, and may move from polling to a
websocket once. `engine.ServerSession` decides who may write where (its docstring has the states and the races of an
upgrade); a channel carries it out. It has at most one websocket that is current (`_socket`), one that tries to take
over (`_candidate`) and one poll that waits (`_poll`). After each thing that happens it calls `flush`, which gives what
is queued to the one of them that may have it. While a websocket is current, nothing is queued and it is not blocked, a
packet is written at once, without the queue: nothing can overtake it, because a queued packet ends that state.

The end. Whatever ends a session (its client, a deadline, the hub, a lost transport, too much unread) closes the
engine's session and calls `_finish`, which tells the hub once, and never from within a call of the hub: a client may be
cut in the middle of a broadcast, and the hub must not see its connections change while it writes to them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import Literal, Protocol, TypeAlias, TypeVar

from a2c_smcp.engine.events import (
    Ack,
    Closed,
    Connect,
    Disconnected,
    Event,
    Faulty,
    Happening,
    Reason,
    Upgraded,
    UpgradeFailed,
)
from a2c_smcp.engine.packets import Json, Outgoing
from a2c_smcp.engine.server import ServerSession
from a2c_smcp.engine.session import POLLING, WEBSOCKET
from a2c_smcp.errors import BadRequest, NotAuthenticated, RateLimited, SMCPError
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.server.cluster.proxy import ProxiedRequest
from a2c_smcp.server.connections import Connection
from a2c_smcp.server.http_requests import HttpRequest, HttpResponse, MountedRequest
from a2c_smcp.server.hub import Hub
from a2c_smcp.smcp import SMCP_NAMESPACE

logger = logging.getLogger(__name__)

# What the parts of the transport know of one another.
#
# A web server asks the `Application` for each request. A websocket (`Socket`) belongs to a `SocketOwner`, the channel
# of its session, which writes to it and is told what comes. A channel belongs to the table of all sessions
# (`SessionTable`).

C = TypeVar("C")
CutReason: TypeAlias = Literal["slow_reader", "blocked", "flood", "crowd"]


class Traffic:
    """Bytes of messages from and to clients. Heads of frames and of HTTP are not counted."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0


class Socket(Protocol):
    """A websocket of any web server."""

    is_blocked: bool

    @property
    def unwritten(self) -> int:
        """Bytes that the peer has not taken yet."""

    def trust(self) -> None:
        """The peer is authenticated."""

    def write(self, parts: Sequence[Json]) -> int:
        """Writes one text message, which comes in parts. Returns its size."""

    def write_all(self, packets: Sequence[Outgoing]) -> int:
        """Writes several messages. Returns their size."""

    def close(self, code: int = 1000) -> None: ...

    def abort(self) -> None: ...


class SocketOwner(Protocol):
    """The receiver of a websocket: the channel of its session."""

    def attach(self, socket: Socket) -> None:
        """Take over the websocket."""

    def detach(self) -> None:
        """The websocket that was to be attached is gone before it was."""

    def heard(self, socket: Socket, text: bytes) -> None: ...

    def heard_binary(self, socket: Socket, data: bytes) -> None: ...

    def heard_too_much(self, socket: Socket) -> None:
        """The peer sent too many frames that carry nothing, or, before authentication, too large a message."""

    def blocked(self, socket: Socket) -> None:
        """The peer does not read what is written."""

    def unblocked(self, socket: Socket) -> None: ...

    def ended(self, socket: Socket) -> None: ...


class Application(Protocol):
    """Answers requests."""

    def is_mounted(self, path: str) -> bool:
        """True if a mounted application answers requests to this path."""

    async def respond(self, request: HttpRequest) -> HttpResponse | MountedRequest: ...

    async def upgrade(self, request: HttpRequest) -> HttpResponse | SocketOwner | ProxiedRequest:
        """A refusal, the session that a websocket belongs to, or the request for the node that has its session."""


class SessionTable(Protocol[C]):
    """The table of all sessions, as a channel (`C`) sees it."""

    hub: Hub
    blocked: dict[Socket, tuple[float, C]]
    traffic: Traffic

    async def connect(self, channel: C, auth: bytes) -> Connection:
        """Authenticates a CONNECT. Raises `SMCPError`, after a delay if its address was refused too often."""

    def is_authenticated(self, channel: C) -> None: ...

    def is_unauthenticated(self, channel: C) -> None: ...

    def schedule(self, channel: C) -> None:
        """Schedule a session again: call it when its deadline may have come nearer."""

    def count_cut(self, reason: CutReason) -> None: ...

    def cut(self, channel: C) -> None:
        """Ends a session whose client does not read, in a later step of the event loop."""

    def finished(self, channel: C) -> None:
        """The session has ended."""


_SMCP = SMCP_NAMESPACE.encode()


class SessionChannel:
    """`connection` is set while its client is connected to `/smcp`. `opening` is what is kept of its first request."""

    __slots__ = (
        "_batch", "_budget", "_candidate", "_is_finished", "_is_posting", "_is_sid_taken", "_poll", "_sessions",
        "_socket", "address", "connection", "due", "opening", "session",
    )  # fmt: skip

    def __init__(
        self,
        sessions: SessionTable[SessionChannel],
        session: ServerSession,
        *,
        address: str,
        opening: bytes,
        budget: int,
    ) -> None:
        self.session = session
        self.connection: Connection | None = None
        self.address = address
        self.opening = opening
        self._sessions = sessions
        self._budget = budget
        self._socket: Socket | None = None
        self._candidate: Socket | None = None
        self._poll: asyncio.Future[list[Outgoing]] | None = None
        self._batch = 0
        self._is_finished = self._is_posting = self._is_sid_taken = False
        self.due: float = inf  # set by the table: in which bucket it waits

    # For the hub

    @property
    def sid(self) -> str:
        """The Engine.IO session id."""
        return self.session.sid

    def take_sid(self) -> str | None:
        """The sid for the proof of a device, which holds once."""
        taken, self._is_sid_taken = self._is_sid_taken, True
        return None if taken else self.sid

    @property
    def is_closed(self) -> bool:
        return self.session.is_closed

    @property
    def unread(self) -> int:
        """Bytes that the client has not read yet. The answer to a poll counts until the client polls again."""
        return self.session.queued + (self._socket.unwritten if self._socket else self._batch)

    def check_room(self, size: int) -> None:
        """Raises `RateLimited` if a call of this size does not fit any more."""
        if self.session.is_closed or self.unread + size > self._budget:
            raise RateLimited("this computer reads too slowly, try again later")

    def send(self, *parts: Json) -> None:
        """Sends one text packet. A client that has too much unread already is cut."""
        socket = self._socket
        if socket is not None and self.session.is_direct and not socket.is_blocked:
            self._sessions.traffic.sent += socket.write(parts)
        elif self._has_room(sum(map(len, parts))):
            self.session.send(b"".join(parts))
            self.flush()

    def send_all(self, packets: Sequence[bytes]) -> None:
        """Sends several text packets, in one write if possible."""
        socket = self._socket
        if socket is not None and self.session.is_direct and not socket.is_blocked:
            self._sessions.traffic.sent += socket.write_all(packets)
        elif self._has_room(sum(map(len, packets))):
            for packet in packets:
                self.session.send(packet)
            self.flush()

    def send_attached(self, packet: bytes, attachments: Sequence[bytes]) -> None:
        """Sends a packet with binary parts."""
        if self._has_room(len(packet) + sum(map(len, attachments))):
            self.session.send(packet, attachments)
            self.flush()

    def dismiss(self) -> None:
        """Disconnects the client from `/smcp`; the hub has ended its connection. It may connect again."""
        self.connection = None
        self.session.disconnect(_SMCP, monotonic())
        self._sessions.is_unauthenticated(self)
        self.flush()

    def close(self, reason: Reason = Reason.SERVER) -> None:
        """Ends the session. The client may still read what was sent, and that this is the end."""
        if not self.session.is_closed:
            self.session.close(reason)
            self.flush()
            self._finish()

    def abort(self) -> None:
        """Ends the session at once."""
        self.session.lost(self.session.transport)
        for socket in (self._socket, self._candidate):
            if socket:
                socket.abort()
        self.flush()
        self._finish()

    # For websockets

    def reserve(self) -> bool:
        """True if a websocket may try to take the session over. It is then the next one to be attached."""
        if not self.session.upgrade_opens(monotonic()):
            return False
        self._sessions.schedule(self)
        return True

    def attach(self, socket: Socket) -> None:
        """Takes a websocket with which the session begins, or which tries to take it over."""
        if self.session.transport is WEBSOCKET:
            self._socket = socket
            self._sessions.traffic.sent += socket.write((self.session.open(),))
        else:
            self._candidate = socket

    def detach(self) -> None:
        """The websocket that was to be attached is gone before it was."""
        if self.session.transport is WEBSOCKET:
            self.abort()
        else:
            self.session.upgrade_ends()

    def heard(self, socket: Socket, text: bytes) -> None:
        self._sessions.traffic.received += len(text)
        if socket is self._socket:
            happening = self.session.receive(text, monotonic())
            if type(happening) is Event and self.connection is not None:
                self._sessions.hub.receive(self.connection, happening)
            elif happening is not None:
                self.handle(happening)
            if self.session.queued or self.session.is_closed:
                self.flush()
        elif socket is self._candidate:
            self._probe(socket, text)

    def heard_binary(self, socket: Socket, data: bytes) -> None:
        self._sessions.traffic.received += len(data)
        if socket is self._socket:
            self.handle(self.session.receive_binary(data, monotonic()))
            self.flush()
        elif socket is self._candidate:
            self._fail_upgrade()

    def heard_too_much(self, socket: Socket) -> None:
        """WIRE §6: what is too large for an unauthenticated client is not even read."""
        self._sessions.count_cut("flood")
        if socket is self._candidate:
            self._fail_upgrade()
        elif self.session.is_authenticated:
            self.abort()
        else:
            self._turn_away(_SMCP, NotAuthenticated())
            self.close(Reason.REFUSED)

    def blocked(self, socket: Socket) -> None:
        self._sessions.blocked[socket] = monotonic(), self

    def unblocked(self, socket: Socket) -> None:
        self._sessions.blocked.pop(socket, None)
        self.flush()

    def ended(self, socket: Socket) -> None:
        """This websocket is gone."""
        self._sessions.blocked.pop(socket, None)
        if socket is self._candidate:
            self._candidate = None
            self.session.upgrade_ends()
        elif socket is self._socket:
            self._socket = None
            self.session.lost(WEBSOCKET)
            self._finish()

    def _probe(self, socket: Socket, text: bytes) -> None:
        answer = self.session.upgrade_receives(text, monotonic())
        if isinstance(answer, Upgraded):
            self._candidate, self._socket = None, socket
            if self.connection:
                socket.trust()
            if self._poll:
                self._answer_poll()
        elif answer is None:
            self._candidate = None
            socket.close(1002)
        else:
            self._sessions.traffic.sent += socket.write((answer,))
        self.flush()

    def _fail_upgrade(self) -> None:
        socket, self._candidate = self._candidate, None
        self.session.upgrade_ends()
        if socket:
            socket.close(1002)

    # For polls

    async def poll(self) -> list[Outgoing] | None:
        """The packets that answer a poll, as soon as there are some. `None` if the client may not poll."""
        self._batch = 0
        if not self.session.open_poll():
            self.flush()
            if self.session.is_closed:
                self._finish()
            return None
        poll: asyncio.Future[list[Outgoing]] = asyncio.get_running_loop().create_future()
        self._poll = poll
        self.flush()
        try:
            return await poll
        except asyncio.CancelledError:  # the client is gone and cannot read the answer
            self.abort()
            raise

    @contextmanager
    def posting(self) -> Iterator[None]:
        """Encloses the reading of a POST. Raises `BadRequest` for a second one: their packets would mix."""
        if self._is_posting:
            raise BadRequest("one POST of a session at a time")
        self._is_posting = True
        try:
            yield
        finally:
            self._is_posting = False

    def _answer_poll(self) -> None:
        poll, self._poll = self._poll, None
        packets = self.session.take(POLLING)
        self._batch = sum(len(packet) if isinstance(packet, bytes) else len(packet.data) for packet in packets)
        if poll and not poll.done():
            poll.set_result(packets)

    # What happens to the session

    def flush(self) -> None:
        """Writes queued packets, if they may be written now."""
        session, socket = self.session, self._socket
        if socket is None:
            if self._poll and session.poll_is_due:
                self._answer_poll()
            return
        if session.queued and not socket.is_blocked:
            self._sessions.traffic.sent += socket.write_all(session.take(WEBSOCKET))
        if session.is_closed and not session.queued:
            socket.close()

    def handle(self, happening: Happening | None) -> None:
        match happening:
            case Event() | Faulty(is_ack=False):
                if self.connection:
                    self._sessions.hub.receive(self.connection, happening)
            case Ack() | Faulty():
                if self.connection:
                    self._sessions.hub.acked(self.connection, happening)
            case Connect():
                self._connect(happening)
            case Disconnected():
                self._depart(is_clean=True)
                self._sessions.is_unauthenticated(self)
            case UpgradeFailed():
                self._fail_upgrade()
            case Closed():
                self._finish()
        if isinstance(happening, Faulty) and happening.next is not None:
            self.handle(happening.next)

    def tick(self, now: float) -> None:
        self.handle(self.session.tick(now))
        self.flush()

    def _connect(self, event: Connect) -> None:
        if event.body is None and not self.session.is_authenticated:
            self._turn_away(event.namespace, NotAuthenticated())
            self.close(Reason.REFUSED)
        elif event.namespace != _SMCP:
            self._turn_away(event.namespace, BadRequest(f"this server has the namespace {SMCP_NAMESPACE} only"))
        elif event.is_repeated:
            self._turn_away(event.namespace, BadRequest("this namespace is connected, or about to be"))
        else:
            self._sessions.hub.background.spawn(self._authenticate(bytes(event.body or b"")))

    async def _authenticate(self, auth: bytes) -> None:
        try:
            connection = await self._sessions.connect(self, auth)
        except SMCPError as error:
            self._refuse(_SMCP, error)
            return
        except Exception:
            logger.exception("a handshake failed")
            self._turn_away(_SMCP, SMCPError())
            return
        self.connection = connection
        if self._is_finished or self.session.is_closed:
            self._depart(is_clean=False)
            return
        self.session.accept(_SMCP, connection.sid)
        self._sessions.is_authenticated(self)
        if self._socket:
            self._socket.trust()
        self.flush()

    def _turn_away(self, namespace: bytes, error: SMCPError) -> None:
        self._sessions.hub.refuse_handshake(self.address, error)
        self._refuse(namespace, error)

    def _refuse(self, namespace: bytes, error: SMCPError) -> None:
        body = {"message": error.message, "data": error.to_refusal()}
        closed = self.session.refuse(namespace, dumps(body).encode())
        self.flush()
        if closed:
            self._finish()

    def _has_room(self, size: int) -> bool:
        """True if the queue has room; otherwise disconnects the client."""
        if self.session.is_closed or self.unread + size <= self._budget:
            return not self.session.is_closed
        self._sessions.cut(self)
        return False

    def _depart(self, *, is_clean: bool) -> None:
        connection, self.connection = self.connection, None
        if connection:
            reason = "client disconnect" if is_clean else str(self.session.reason)
            self._sessions.hub.disconnected(connection, is_clean=is_clean, reason=reason)

    def _finish(self) -> None:
        if not self._is_finished:
            self._is_finished = True
            asyncio.get_running_loop().call_soon(self._sessions.finished, self)

    @property
    def is_fetched(self) -> bool:
        """True if no packets are left for a poll."""
        return self.session.transport is WEBSOCKET or not self.session.queued

    def finish(self) -> None:
        """Report the end of the session to the hub."""
        self._depart(is_clean=False)
        if self.is_fetched:
            self.forget()

    def forget(self) -> None:
        """The client had its time to fetch the last packets: a websocket that tries to take over is closed."""
        if self._candidate:
            self._fail_upgrade()
