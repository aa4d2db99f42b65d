"""The fast lane: on websockets, requests to computers and their acks go from one to the other as text.

The rules are those of the namespace, which also serves everything that is not read here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

import socketio
from engineio import packet as eio_packet
from socketio import packet as sio_packet

from a2c_smcp.errors import SMCPError
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.events import Event, lookup
from a2c_smcp.protocol.results import error_ack
from a2c_smcp.server.connections import Connection
from a2c_smcp.server.fields import Json
from a2c_smcp.server.frames import ack_head, notice_frame, read_ack, read_request, request_head
from a2c_smcp.server.namespace import SMCPNamespace
from a2c_smcp.server.packets import HEAD_ROOM, Answer, Payload
from a2c_smcp.server.wires import Take, Wire
from a2c_smcp.smcp import SMCP_NAMESPACE

__all__ = ["Acks", "Lane", "Track"]

logger = logging.getLogger(__name__)

_EVENT, _ACK, _BINARY_EVENT = b"42", b"43", b"45"
_CROWD = 16
_LATE = 0.02
_KINDS = {_EVENT, _ACK, _BINARY_EVENT}


class Acks(socketio.AsyncManager):  # type: ignore[misc]  # untyped base
    """The library's own ledger of acks that are awaited: whichever way an ack comes, it finds its call."""

    def expect(self, sid: str, reply: Any) -> int:
        number: int = self._generate_ack_id(sid, reply)
        return number

    def settle(self, sid: str, number: int, answer: Answer) -> None:
        """An ack that nobody asked for is nothing. The library keeps a counter under 0."""
        awaited = self.callbacks.get(sid)
        if awaited and number and (reply := awaited.pop(number, None)):
            reply(answer)


class Track:
    """One session on its websocket: what it says, and the way to it."""

    __slots__ = ("_acks", "_lane", "_late", "_socket", "_speaker", "_wire", "eio_sid")

    def __init__(self, lane: Lane, acks: Acks, eio_sid: str, socket: Any, wire: Wire) -> None:
        self.eio_sid = eio_sid
        self._lane = lane
        self._acks = acks
        self._socket = socket
        self._wire = wire
        self._speaker: Connection | None = None
        self._late: list[Json] = []

    @property
    def is_open(self) -> bool:
        socket = self._socket
        return socket.upgraded and not (socket.closing or socket.closed)

    def take(self, frame: bytes) -> bool:
        """Whether this frame was one for this lane. All others go the long way, and what follows waits for them."""
        kind = frame[:2]
        if kind not in _KINDS or not self.is_open:
            return False
        speaker = self._speaker
        if speaker is None or speaker.is_gone:
            speaker = self._speaker = self._lane.speaker(self)
            if speaker is None:
                return False
        if not speaker.is_behind and len(frame) < self._lane.max_frame:
            if kind == _EVENT and self._lane.take_request(speaker, frame):
                return True
            if kind == _ACK and (ack := read_ack(frame)):
                self._acks.settle(speaker.sid, ack.id, Answer(ack.json))
                return True
        if kind != _ACK:
            speaker.expect_event()
        return False

    def check_room(self, size: int) -> None:
        """Raises `RateLimited` if a message of this size does not fit among what is not read yet."""
        self._socket.queue.check_room(size)

    def deliver(self, packet: eio_packet.Packet) -> bool:
        """Whether a message of the library's was written past its queue. Pings keep the queue's reader alive."""
        if self._late:
            self.catch_up()
        if packet.packet_type != eio_packet.MESSAGE or not (self.is_open and self._socket.queue.is_idle):
            return False
        text = packet.encode()
        return isinstance(text, str) and self._wire.post((text.encode(),))

    def send(self, *parts: Json) -> None:
        """To the transport if nothing is on its way there, else behind what is."""
        if self._late:
            self.catch_up()
        if not (self._socket.queue.is_idle and self.is_open and self._wire.post(parts)):
            self._socket.queue.put_nowait(_packet(parts))

    def send_late(self, frame: Json) -> bool:
        """Keeps a frame for `catch_up`, or until anything else is sent. Whether it is the first one."""
        self._late.append(frame)
        return len(self._late) == 1

    def catch_up(self) -> None:
        late, self._late = self._late, []
        if not (self._socket.queue.is_idle and self.is_open and self._wire.post_all(late)):
            for frame in late:
                self.send(frame)


class Lane:
    """Reads requests and acks off websockets, in their order, and sends what becomes of them."""

    def __init__(self, sio: socketio.AsyncServer, namespace: SMCPNamespace, max_message: int) -> None:
        self._sio = sio
        self._acks: Acks = sio.manager
        self._namespace = namespace
        self.max_frame = max_message - HEAD_ROOM
        self._late: list[Track] = []

    def bind(self, eio_sid: str, wire: Wire) -> Take:
        """What is offered the text that comes over this websocket of a session."""
        socket = self._sio.eio.sockets[eio_sid]
        track = Track(self, self._acks, eio_sid, socket, wire)
        socket.queue.outlet = track.deliver
        return track.take

    def speaker(self, track: Track) -> Connection | None:
        """Who speaks on this websocket, once it is anybody."""
        connection = self._namespace.connection(self._acks.sid_from_eio_sid(track.eio_sid, SMCP_NAMESPACE))
        if connection:
            connection.track = track
        return connection

    def take_request(self, speaker: Connection, frame: bytes) -> bool:
        request = read_request(frame)
        if request is None:
            return False
        event = None
        try:
            event = lookup(request.event)
            answer = partial(self._answer, speaker, request.id, event)
            return self._namespace.relay(speaker, request.event, event, request.payload, answer)
        except SMCPError as error:
            self._answer(speaker, request.id, event, error)
        except Exception:
            logger.exception("%s failed", request.event)
            self._answer(speaker, request.id, event, SMCPError())
        return True

    def post(self, connection: Connection, event: str, payload: Payload, reply: Any) -> None:
        """Sends a request whose ack is given to `reply`."""
        self._send(connection, request_head(self._acks.expect(connection.sid, reply), event), payload.json, b"]")

    async def broadcast(self, event: str, data: dict[str, Any], *, room: str, skip_sid: str | None) -> None:
        """Sends a notice, encoded once, to everybody in a room; in a crowd, several notices in one write."""
        frame = notice_frame(event, data.json if isinstance(data, Payload) else dumps(data).encode())
        members = list(self._acks.get_participants(SMCP_NAMESPACE, room))
        send = self._send if len(members) < _CROWD else self._send_late
        for sid, _ in members:
            if sid != skip_sid and (connection := self._namespace.connection(sid)):
                send(connection, frame)

    def _answer(self, speaker: Connection, number: int, event: Event | None, outcome: Any) -> None:
        if speaker.is_gone:
            return
        if isinstance(outcome, Answer):
            self._send(speaker, ack_head(number), outcome.json)
        elif isinstance(outcome, SMCPError):
            self._namespace.note_refusal(event, speaker.sid, outcome)
            self._send(speaker, ack_head(number), f"[{dumps(error_ack(event, outcome))}]".encode())
        else:
            self._namespace.background.spawn(self._send_binary(speaker.sid, number, list(outcome)))

    def _send(self, connection: Connection, *parts: Json) -> None:
        if connection.track:
            connection.track.send(*parts)
        elif socket := self._sio.eio.sockets.get(self._acks.eio_sid_from_sid(connection.sid, SMCP_NAMESPACE)):
            socket.queue.put_nowait(_packet(parts))

    def _send_late(self, connection: Connection, frame: Json) -> None:
        if connection.track is None:
            self._send(connection, frame)
        elif connection.track.send_late(frame):
            if not self._late:
                asyncio.get_running_loop().call_later(_LATE, self._catch_up)
            self._late.append(connection.track)

    def _catch_up(self) -> None:
        late, self._late = self._late, []
        for track in late:
            track.catch_up()

    async def _send_binary(self, sid: str, number: int, arguments: list[Any]) -> None:
        packet = self._sio.packet_class(sio_packet.ACK, namespace=SMCP_NAMESPACE, id=number, data=arguments)
        await self._sio._send_packet(self._acks.eio_sid_from_sid(sid, SMCP_NAMESPACE), packet)


def _packet(parts: Iterable[Json]) -> eio_packet.Packet:
    return eio_packet.Packet(eio_packet.MESSAGE, str(b"".join(parts)[1:], "utf-8"))
