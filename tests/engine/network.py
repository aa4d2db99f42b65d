"""A client session and a server session with a simulated network between them, for property tests.

Nothing happens by itself: `choices` lists what could happen next (an end sends, a request or a frame arrives, a
websocket is opened, a moment passes), `accidents` lists what seldom does (a loss, a close, a long wait), and the test
picks. So every order is possible that a network allows: HTTP requests overtake frames and each other, the frames of one
websocket keep their order, and each end learns of a loss by itself.

The two shells in here do what `server.py` and `client.py` ask of shells, and nothing more.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from a2c_smcp.engine.client import ClientSession
from a2c_smcp.engine.events import Ack, Closed, Connect, Connected, Event, Happening, Opened, Upgraded, UpgradeFailed
from a2c_smcp.engine.packets import Attachment, Malformed, Outgoing, ack_packet, encode_payload, event_packet
from a2c_smcp.engine.server import ServerSession
from a2c_smcp.engine.session import POLLING, WEBSOCKET, EngineLimits, Transport

__all__ = ["LIMITS", "Network"]

NAMESPACE = b"/smcp"
LIMITS = EngineLimits(ping_interval=1, ping_timeout=20, handshake_timeout=30, batch_packets=3, batch_bytes=60)
"""Batches so small that they are often full, and pings that come often and are answered in time unless one is lost."""
MOMENT, LONG = 0.1, 12.0

Choice = Callable[[], None]


class Sent(NamedTuple):
    """What an application handed to its session, or got from it."""

    number: int | None
    body: bytes
    attachments: tuple[bytes, ...] = ()
    is_ack: bool = False


class _End(NamedTuple):
    """The last frame of a websocket."""


END = _End()


@dataclass
class WebSocket:
    """Frames on their way. A lost one carries nothing any more; each end learns of that by itself."""

    to_server: deque[Outgoing | _End] = field(default_factory=deque)
    to_client: deque[Outgoing | _End] = field(default_factory=deque)
    is_open_at_server: bool = False
    is_lost: bool = False

    def lose(self) -> None:
        self.is_lost = True
        self.to_server.clear()
        self.to_client.clear()

    def send(self, pipe: deque[Outgoing | _End], packets: Iterable[Outgoing | _End]) -> None:
        if not self.is_lost:
            pipe.extend(packets)


@dataclass
class Exchange:
    """An HTTP request that its client waits for: on its way, waiting at the server, or answered (`None`: refused)."""

    request: bytes
    is_at_server: bool = False
    is_answered: bool = False
    response: bytes | None = None

    def answer(self, response: bytes | None) -> None:
        self.is_answered, self.response = True, response


class Network:
    def __init__(self, transport: Transport) -> None:
        self.now = 0.0
        self.server = ServerSession("sid", LIMITS, self.now, transport)
        self.client = ClientSession(LIMITS, transport)
        self.sent_by_client: list[Sent] = []
        self.sent_by_server: list[Sent] = []
        self.got_by_client: list[Sent] = []
        self.got_by_server: list[Sent] = []
        self.is_connected = self.is_asked = False
        self.poll: Exchange | None = None
        self.post: Exchange | None = None
        self.client_socket: WebSocket | None = None
        self.server_socket: WebSocket | None = None
        self.is_probed = False
        """The client's websocket has answered its probe and is not the transport yet."""
        self._count = 0
        opened = self.client.receive(self.server.open(), self.now)
        assert isinstance(opened, Opened)
        if transport is WEBSOCKET:
            self.client_socket = self.server_socket = WebSocket(is_open_at_server=True)
        self.client.connect(NAMESPACE)

    # What could happen next

    def choices(self) -> Iterator[Choice]:
        """Never empty. What is on its way is listed twice, so that it arrives more often than new things are sent."""
        yield from self.arrivals()
        yield from self.arrivals()
        yield from self._steps_of_the_client()
        yield lambda: self.pass_time(MOMENT)
        if self.is_connected and not self.client.is_closed:
            yield lambda: self.client_sends()
            yield lambda: self.client_sends(attachments=2, is_asking=True)
        if self.server.is_authenticated:
            yield lambda: self.server_sends()
            yield lambda: self.server_sends(attachments=1)
        if self._may_upgrade:
            yield self._open_websocket

    def accidents(self) -> Iterator[Choice]:
        yield lambda: self.pass_time(LONG)
        yield self.client_closes
        yield self.server_closes
        for socket in self._sockets:
            if not socket.is_lost:
                yield socket.lose
        if self.poll:
            yield self._lose_poll
        if self.post:
            yield self._lose_post

    def arrivals(self) -> Iterator[Choice]:
        """What is on its way and may arrive now, and what an end has not written or noticed yet."""
        for socket in self._sockets:
            if socket.to_server:
                yield lambda socket=socket: self._frame_to_server(socket)  # type: ignore[misc]
            if socket.to_client:
                yield lambda socket=socket: self._frame_to_client(socket)  # type: ignore[misc]
        for exchange in (self.poll, self.post):
            if exchange and not exchange.is_at_server:
                yield lambda exchange=exchange: self._request_arrives(exchange)  # type: ignore[misc]
            elif exchange and exchange.is_answered:
                yield lambda exchange=exchange: self._response_arrives(exchange)  # type: ignore[misc]
        if self.client_socket and self.client_socket.is_lost:
            yield self._client_notices
        if self.server_socket and self.server_socket.is_lost:
            yield self._server_notices
        if self.is_asked:
            yield self._accept
        yield from self._flushes()

    def _steps_of_the_client(self) -> Iterator[Choice]:
        """What the client's shell does of its own accord, sooner or later."""
        if self.client.transport is POLLING:
            if self.is_probed and not (self.poll or self.post):
                yield self._finish_upgrade
            if not (self.poll or self.is_probed or self.client.is_closed):
                yield self._begin_poll
            if not self.post and self.client.queued:
                yield self._begin_post

    @property
    def _sockets(self) -> list[WebSocket]:
        """Both ends' websocket, or the two that they have while only one of them knows that the first is lost."""
        sockets = [socket for socket in (self.client_socket, self.server_socket) if socket]
        return sockets[:1] if len(sockets) == 2 and sockets[0] is sockets[1] else sockets

    @property
    def _may_upgrade(self) -> bool:
        return self.client.transport is POLLING and not self.client.is_closed and self.client_socket is None

    # Applications

    def client_sends(self, attachments: int = 0, *, is_asking: bool = False) -> None:
        message = self._message(attachments, self.client.next_id() if is_asking else None)
        self.sent_by_client.append(message)
        packet = event_packet(NAMESPACE, message.number, message.body, attachments=attachments)
        if self.client.is_direct and self.client_socket:
            packets = [packet, *map(Attachment, message.attachments)]
            self.client_socket.send(self.client_socket.to_server, packets)
        else:
            self.client.send(packet, message.attachments)

    def server_sends(self, attachments: int = 0, answers: int | None = None) -> None:
        message = self._message(attachments, answers, is_ack=answers is not None)
        self.sent_by_server.append(message)
        if answers is None:
            packet = event_packet(NAMESPACE, None, message.body, attachments=attachments)
        else:
            packet = ack_packet(NAMESPACE, answers, message.body, attachments=attachments)
        if self.server.is_direct and self.server_socket:
            packets = [packet, *map(Attachment, message.attachments)]
            self.server_socket.send(self.server_socket.to_client, packets)
        else:
            self.server.send(packet, message.attachments)

    def _message(self, attachments: int, number: int | None, *, is_ack: bool = False) -> Sent:
        self._count += 1
        name = [] if is_ack else ["message"]
        placeholders = [{"_placeholder": True, "num": each} for each in range(attachments)]
        body = json.dumps([*name, self._count, *placeholders]).encode()
        return Sent(number, body, tuple(b"%d of %d" % (each, self._count) for each in range(attachments)), is_ack)

    def _at_server(self, happening: Happening | None) -> None:
        match happening:
            case Event(_, number, body, attachments):
                self.got_by_server.append(Sent(number, bytes(body), attachments))
                if number is not None and not self.server.is_closed:
                    self.server_sends(len(attachments), answers=number)
            case Connect():
                self.is_asked = True
            case Closed() | None:
                pass
            case _:
                raise AssertionError(happening)

    def _at_client(self, happening: Happening | None) -> None:
        match happening:
            case Event(_, number, body, attachments):
                assert self.is_connected, "an event overtook the answer to the CONNECT"
                self.got_by_client.append(Sent(number, bytes(body), attachments))
            case Ack(_, number, body, attachments):
                self.got_by_client.append(Sent(number, bytes(body), attachments, is_ack=True))
            case Connected():
                self.is_connected = True
            case Closed() | None:
                pass
            case _:
                raise AssertionError(happening)

    def _accept(self) -> None:
        self.is_asked = False
        self.server.accept(NAMESPACE, "socket")

    def client_closes(self) -> None:
        self.client.close()

    def server_closes(self) -> None:
        self.server.close()

    # Shells: writing

    def _flushes(self) -> Iterator[Choice]:
        """A shell writes what is to be written soon after every call, but other calls may come before it does."""
        if self.client_socket and self.client.transport is WEBSOCKET and (self.client.queued or self.client.is_closed):
            yield self._flush_client
        is_polled = self.poll and self.poll.is_at_server and not self.poll.is_answered
        if is_polled and self.server.poll_is_due:
            yield self._answer_poll
        if self.server_socket and self.server.transport is WEBSOCKET and (self.server.queued or self.server.is_closed):
            yield self._flush_server

    def _flush_client(self) -> None:
        assert self.client_socket
        self.client_socket.send(self.client_socket.to_server, self.client.take(WEBSOCKET))
        if self.client.is_closed:
            self.client_socket.send(self.client_socket.to_server, [END])
            self.client_socket = None

    def _flush_server(self) -> None:
        assert self.server_socket
        self.server_socket.send(self.server_socket.to_client, self.server.take(WEBSOCKET))
        if self.server.is_closed:
            self.server_socket.send(self.server_socket.to_client, [END])
            self.server_socket = None

    def _answer_poll(self) -> None:
        assert self.poll
        self.poll.answer(encode_payload(self.server.take(POLLING)))

    # Shells: HTTP

    def _begin_poll(self) -> None:
        self.poll = Exchange(b"")

    def _begin_post(self) -> None:
        if packets := self.client.take(POLLING):
            self.post = Exchange(encode_payload(packets))

    def _request_arrives(self, exchange: Exchange) -> None:
        exchange.is_at_server = True
        if exchange is self.poll:
            if not self.server.open_poll():
                exchange.answer(None)
        else:
            try:
                for happening in self.server.receive_payload(exchange.request, self.now):
                    self._at_server(happening)
                exchange.answer(b"ok")
            except Malformed:
                exchange.answer(None)

    def _response_arrives(self, exchange: Exchange) -> None:
        is_poll = exchange is self.poll
        if is_poll:
            self.poll = None
        else:
            self.post = None
        if exchange.response is None:
            self.client.lost(POLLING)
        elif is_poll and not self.client.is_closed:
            for happening in self.client.receive_payload(exchange.response, self.now):
                self._at_client(happening)

    def _lose_poll(self) -> None:
        """Both ends notice: the client has no response, the server's connection is closed while the poll waits."""
        assert self.poll
        if self.poll.is_at_server and not self.poll.is_answered:
            self.server.lost(POLLING)
        self.poll = None
        self.client.lost(POLLING)

    def _lose_post(self) -> None:
        """Before it has arrived, or its response."""
        self.post = None
        self.client.lost(POLLING)

    # Shells: websockets

    def _open_websocket(self) -> None:
        self.client_socket = WebSocket()
        self.client_socket.to_server.append(self.client.probe())

    def _finish_upgrade(self) -> None:
        assert self.client_socket
        self.is_probed = False
        self.client_socket.send(self.client_socket.to_server, [self.client.upgrade()])

    def _frame_to_server(self, socket: WebSocket) -> None:
        if not socket.is_open_at_server:
            if not self.server.upgrade_opens(self.now):
                return self._refuse_at_server(socket)
            socket.is_open_at_server = True
            self.server_socket = socket
        frame = socket.to_server.popleft()
        if socket is not self.server_socket:
            return None  # the server has closed it
        if isinstance(frame, _End):
            return self._server_notices()
        if self.server.transport is WEBSOCKET:
            if isinstance(frame, Attachment):
                self._at_server(self.server.receive_binary(frame.data, self.now))
            else:
                self._at_server(self.server.receive(frame, self.now))
        else:
            assert isinstance(frame, bytes)
            self._candidate_says(socket, frame)
        return None

    def _candidate_says(self, socket: WebSocket, frame: bytes) -> None:
        said = self.server.upgrade_receives(frame, self.now)
        if said is None:
            self._refuse_at_server(socket)
        elif not isinstance(said, Upgraded):
            socket.send(socket.to_client, [said])

    def _refuse_at_server(self, socket: WebSocket) -> None:
        socket.is_open_at_server = True
        socket.to_server.clear()
        socket.send(socket.to_client, [END])
        if self.server_socket is socket:
            self.server_socket = None

    def _frame_to_client(self, socket: WebSocket) -> None:
        frame = socket.to_client.popleft()
        if socket is not self.client_socket:
            return None  # the client has closed it
        if isinstance(frame, _End):
            return self._client_notices()
        if self.client.transport is WEBSOCKET:
            if isinstance(frame, Attachment):
                self._at_client(self.client.receive_binary(frame.data, self.now))
            else:
                self._at_client(self.client.receive(frame, self.now))
        else:
            assert isinstance(frame, bytes)
            self.is_probed = self.client.probed(frame)
            assert self.is_probed, frame
        return None

    def _client_notices(self) -> None:
        """Its websocket is gone."""
        self.client_socket, self.is_probed = None, False
        if self.client.lost(WEBSOCKET) is None:
            self.client.upgrade_failed()

    def _server_notices(self) -> None:
        self.server_socket = None
        if self.server.lost(WEBSOCKET) is None:
            self.server.upgrade_ends()

    # Time

    def pass_time(self, seconds: float) -> None:
        """Both ends look at the clock whenever one of their deadlines has come."""
        until = self.now + seconds
        while (deadline := min(self.server.deadline, self.client.deadline)) <= until:
            self.now = max(self.now, deadline)
            if isinstance(self.server.tick(self.now), UpgradeFailed) and self.server_socket:
                self._refuse_at_server(self.server_socket)
            self.client.tick(self.now)
            self.now = until if until != inf else self.now

    def drain(self) -> None:
        """All that is on its way arrives, and the client's shell does its part, until nothing is left to be done."""
        for _ in range(10_000):
            choice = next(self.arrivals(), None) or next(self._unfinished(), None)
            if choice is None:
                return
            choice()
        raise AssertionError("the ends keep each other busy without end")

    def _unfinished(self) -> Iterator[Choice]:
        for choice in self._steps_of_the_client():
            if choice != self._begin_poll or self.server.queued:
                yield choice
