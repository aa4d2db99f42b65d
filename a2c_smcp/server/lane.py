"""The fast lane: on websockets, requests to computers and their acks go from one to the other as text.

The rules are those of the namespace, which also serves everything that is not read here.
"""

from __future__ import annotations

import logging
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
from a2c_smcp.server.frames import ack_frame, read_ack, read_request, request_frame
from a2c_smcp.server.namespace import SMCPNamespace
from a2c_smcp.server.outbox import Outbox
from a2c_smcp.server.packets import HEAD_ROOM, Answer, Payload, size_of
from a2c_smcp.server.wires import Wires
from a2c_smcp.smcp import SMCP_NAMESPACE

__all__ = ["Acks", "Lane"]

logger = logging.getLogger(__name__)

_EVENT, _ACK, _BINARY_EVENT = "42", "43", "45"


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


class Lane:
    """Takes the frames that it can read, in their order, and posts what becomes of them."""

    def __init__(self, sio: socketio.AsyncServer, namespace: SMCPNamespace, wires: Wires, max_message: int) -> None:
        self._sio = sio
        self._acks: Acks = sio.manager
        self._namespace = namespace
        self._wires = wires
        self._max_message = max_message
        self._takers = {_EVENT: self._take_request, _ACK: self._take_ack, _BINARY_EVENT: _take_nothing}

    def take(self, eio_sid: str, text: str) -> bool:
        """Whether this frame was one for this lane. All others go the long way, and what follows waits for them."""
        take = self._takers.get(text[:2])
        connection = self._namespace.connection(self._acks.sid_from_eio_sid(eio_sid, SMCP_NAMESPACE))
        if take is None or connection is None or not self._is_open(eio_sid):
            return False
        if not connection.is_behind and size_of(text) + HEAD_ROOM < self._max_message and take(connection, text):
            return True
        if text[:2] != _ACK:
            connection.expect_event()
        return False

    def post(self, sid: str, event: str, payload: Payload, reply: Any) -> None:
        """Sends a request whose ack is given to `reply`."""
        eio_sid = self._acks.eio_sid_from_sid(sid, SMCP_NAMESPACE)
        socket = self._sio.eio.sockets.get(eio_sid)
        if socket is None:
            return
        self._send(eio_sid, socket, request_frame(self._acks.expect(sid, reply), event, payload))

    def _is_open(self, eio_sid: str) -> bool:
        socket = self._sio.eio.sockets.get(eio_sid)
        return socket is not None and socket.upgraded and not (socket.closing or socket.closed)

    def _take_request(self, speaker: Connection, text: str) -> bool:
        request = read_request(text)
        if request is None:
            return False
        answer = partial(self._answer, speaker.sid, request.id)
        event = None
        try:
            event = lookup(request.event)
            return self._namespace.relay(speaker, request.event, event, request.payload, partial(answer, event))
        except SMCPError as error:
            answer(event, error)
        except Exception:
            logger.exception("%s failed", request.event)
            answer(event, SMCPError())
        return True

    def _take_ack(self, speaker: Connection, text: str) -> bool:
        ack = read_ack(text)
        if ack is None:
            return False
        self._acks.settle(speaker.sid, ack.id, Answer(ack.text))
        return True

    def _answer(self, sid: str, number: str, event: Event | None, outcome: Any) -> None:
        eio_sid = self._acks.eio_sid_from_sid(sid, SMCP_NAMESPACE)
        socket = self._sio.eio.sockets.get(eio_sid)
        if socket is None or self._namespace.connection(sid) is None:
            return
        if isinstance(outcome, Answer):
            self._send(eio_sid, socket, ack_frame(number, outcome.text))
        elif isinstance(outcome, SMCPError):
            self._namespace.note_refusal(event, sid, outcome)
            self._send(eio_sid, socket, ack_frame(number, f"[{dumps(error_ack(event, outcome))}]"))
        else:
            self._namespace.background.spawn(self._send_binary(eio_sid, int(number), list(outcome)))

    def _send(self, eio_sid: str, socket: Any, text: str) -> None:
        """To the transport if nothing is on its way there, else behind what is."""
        outbox: Outbox = socket.queue
        wire = self._wires[eio_sid]
        if not (wire and socket.upgraded and outbox.is_idle and wire.post(text)):
            outbox.put_nowait(eio_packet.Packet(eio_packet.MESSAGE, text[1:]))

    async def _send_binary(self, eio_sid: str, number: int, arguments: list[Any]) -> None:
        packet = self._sio.packet_class(sio_packet.ACK, namespace=SMCP_NAMESPACE, id=number, data=arguments)
        await self._sio._send_packet(eio_sid, packet)


def _take_nothing(speaker: Connection, text: str) -> bool:
    return False
