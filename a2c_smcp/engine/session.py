"""What both ends of a session have in common: the queue of packets to send, and Socket.IO packets that came.

A session never calls anybody. Bytes that came go in by `receive…` and come back as at most one happening each; bytes to
send are queued and handed out by `take`. One thread owns a session, so nothing in here can race: what may race are the
transports around it, and the modules of the two roles say how that ends.

`receive` has a short way for the packets that are nearly all of the traffic, `42/smcp,<id>[…]` and `43/smcp,<id>[…]` of
the namespace that was connected last. Every state in which those may not be taken so (not connected, attachments are
awaited, closed) is expressed by heads that no packet begins with. The long way takes everything, these included, and
comes to the same result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from a2c_smcp.engine import packets
from a2c_smcp.engine.events import Ack, Closed, Event, Fault, Faulty, Happening, Message, Reason
from a2c_smcp.engine.packets import LARGE, Attachment, Json, Malformed, Outgoing, Packet

__all__ = ["POLLING", "WEBSOCKET", "EngineLimits", "Session", "Transport"]

_NEVER: Final = b"\xff"
_OPENING, _CLOSING = b"[", b"]"
_CLOSING_BYTE = ord("]")
_LONGEST_HEAD = 16
_STEERING = (packets.CONNECT, packets.DISCONNECT, packets.CONNECT_ERROR)
_BINARY = (packets.BINARY_EVENT, packets.BINARY_ACK)
_NAME = re.compile(rb'\s*\[\s*("(?:[^"\\]|\\.){0,1024}")')
_ROOM_FOR_SPACE = 64


class Transport(StrEnum):
    POLLING = "polling"
    WEBSOCKET = "websocket"


POLLING, WEBSOCKET = Transport.POLLING, Transport.WEBSOCKET


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Sizes are in bytes, times in seconds."""

    ping_interval: float = 10
    ping_timeout: float = 8
    handshake_timeout: float = 10
    max_payload: int = 8 * 1024 * 1024
    max_packets: int = 4096
    """In one payload that comes."""
    batch_packets: int = 16
    batch_bytes: int = 64 * 1024
    max_message: int = 4 * 1024 * 1024
    """Without the `4`, with all attachments."""
    max_ack: int = 4 * 1024 * 1024 - 64
    max_attachments: int = 64
    max_beside_attachments: int = 256 * 1024
    max_connect: int = 32 * 1024
    max_unauthenticated: int = 64 * 1024
    max_refusals: int = 3


class _Incoming:
    """A packet of which attachments are still to come."""

    __slots__ = ("packet", "parts", "size")

    def __init__(self, packet: Packet, size: int) -> None:
        self.packet = packet
        self.size = size
        self.parts: list[bytes] = []


class Session:
    """Use `ServerSession` or `ClientSession`."""

    __slots__ = (
        "_ack_head",
        "_event_head",
        "_head_size",
        "_home",
        "_ids",
        "_incoming",
        "_is_raw",
        "_limits",
        "_namespaces",
        "_queue",
        "deadline",
        "is_closed",
        "is_direct",
        "queued",
        "reason",
        "transport",
    )

    def __init__(self, limits: EngineLimits, transport: Transport, *, raw: bool) -> None:
        self.transport = transport
        self.is_closed = False
        self.reason: Reason | None = None
        self.queued = 0
        self.is_direct = transport is WEBSOCKET
        self.deadline = 0.0
        self._limits = limits
        self._is_raw = raw
        self._queue: list[Outgoing] = []
        self._namespaces: tuple[bytes, ...] = ()
        self._home = b""
        self._incoming: _Incoming | None = None
        self._ids = 0
        self._rest()

    # In

    def receive(self, packet: bytes, now: float) -> Happening | None:
        """One text packet of the current transport."""
        if packet.startswith(self._event_head):
            at = self._head_size
            start = packet.find(b"[", at, at + _LONGEST_HEAD)
            size = len(packet)
            if start > 0 and packet[-1] == _CLOSING_BYTE and size <= self._limits.max_message:
                body = packet[start:] if size < LARGE else memoryview(packet)[start:]
                number = packet[at:start]
                if number.isdigit():
                    return Event(self._home, int(number), body)
                if not number:
                    return Event(self._home, None, body)
        elif packet.startswith(self._ack_head):
            at = self._head_size
            start = packet.find(b"[", at, at + _LONGEST_HEAD)
            size = len(packet)
            if start > 0 and packet[-1] == _CLOSING_BYTE and size <= self._limits.max_ack:
                number = packet[at:start]
                if number.isdigit():
                    body = packet[start:] if size < LARGE else memoryview(packet)[start:]
                    return Ack(self._home, int(number), body)
        return self._receive(packet, now)

    def receive_binary(self, data: bytes, now: float) -> Happening | None:
        """One binary packet of the current transport. One that no packet waits for is ignored."""
        if self._is_raw and not self.is_closed:
            return Message(data, is_binary=True)
        incoming = self._incoming
        if incoming is None:
            return None
        packet = incoming.packet
        incoming.size += len(data)
        if fault := self._too_large(packet, incoming.size):
            return self._drop_incoming(fault)
        incoming.parts.append(data)
        if len(incoming.parts) < packet.attachments:
            return None
        self._incoming = None
        self._arm()
        return _whole(packet, tuple(incoming.parts))

    def receive_payload(self, body: bytes, now: float) -> Iterator[Happening]:
        """The packets of a poll's response or of a POST.

        Raises `Malformed` before any of them is read; that ends the session.
        """
        if self.is_closed or self.transport is not POLLING:
            raise Malformed("this session is not polling")
        try:
            found = packets.decode_payload(body, self._limits.max_packets)
        except Malformed:
            self._end(Reason.PROTOCOL)
            raise
        return self._receive_all(found, now)

    def _receive_all(self, found: Sequence[Outgoing], now: float) -> Iterator[Happening]:
        for packet in found:
            if self.is_closed:
                return
            if isinstance(packet, Attachment):
                happening = self.receive_binary(packet.data, now)
            else:
                happening = self.receive(packet, now)
            if happening is not None:
                yield happening

    def _receive(self, packet: bytes, now: float) -> Happening | None:
        """Any packet, the long way."""
        if self.is_closed:
            return None
        if packet[:1] != packets.MESSAGE:
            return self._control(packet, now)
        if self._is_raw:
            return Message(packet[1:], is_binary=False)
        if self._incoming is not None:
            fault = _faulty(self._incoming.packet, Fault.ATTACHMENTS, "text in place of an attachment")
            return self._drop_incoming(fault)
        try:
            return self._read(packet, now)
        except Malformed as error:
            return Faulty(b"/", None, False, b"", Fault.MALFORMED, str(error))

    def _control(self, packet: bytes, now: float) -> Happening | None:
        """An Engine.IO packet that is no MESSAGE."""
        raise NotImplementedError

    def _read(self, packet: bytes, now: float) -> Happening | None:
        """A Socket.IO packet. Raises `Malformed`."""
        read, size = packets.read_packet(packet), len(packet) - 1
        if read.type in _STEERING:
            return self._steer(read, size, now)
        if read.namespace not in self._namespaces:
            return None
        if fault := self._fault_in(read, size):
            return fault
        if read.attachments:
            self._incoming = _Incoming(read, size)
            self._rest()
            return None
        return _whole(read, ())

    def _steer(self, packet: Packet, size: int, now: float) -> Happening | None:
        """A packet about a namespace."""
        raise NotImplementedError

    def _fault_in(self, packet: Packet, size: int) -> Faulty | None:
        if _is_ack(packet) and packet.id is None:
            return _faulty(packet, Fault.MALFORMED, "an ack without an id")
        if fault := self._too_large(packet, size):
            return fault
        if packet.attachments and packet.type not in _BINARY:
            return _faulty(packet, Fault.MALFORMED, "attachments to a packet that is not binary")
        if packet.attachments > self._limits.max_attachments:
            reason = f"at most {self._limits.max_attachments} binary attachments are taken"
            return _faulty(packet, Fault.ATTACHMENTS, reason)
        beside = self._limits.max_beside_attachments
        if packet.attachments and size > beside:
            reason = f"{size} bytes of JSON, at most {beside} are taken beside binary attachments"
            return _faulty(packet, Fault.TOO_LARGE, reason, size, beside)
        if not _is_array(packet.body):
            return _faulty(packet, Fault.MALFORMED, "not an array")
        return None

    def _too_large(self, packet: Packet, size: int) -> Faulty | None:
        limit = self._limits.max_ack if _is_ack(packet) else self._limits.max_message
        if size <= limit:
            return None
        return _faulty(packet, Fault.TOO_LARGE, f"{size} bytes, at most {limit} are taken", size, limit)

    def _drop_incoming(self, fault: Faulty) -> Faulty:
        self._incoming = None
        self._arm()
        return fault

    # The heads of the short way

    def _arm(self) -> None:
        if self._home in self._namespaces and not self.is_closed and not self._is_raw and self._incoming is None:
            self._event_head, self._ack_head = _heads(self._home)
            self._head_size = len(self._event_head)

    def _rest(self) -> None:
        self._event_head = self._ack_head = _NEVER
        self._head_size = 1

    def _enter(self, namespace: bytes) -> None:
        if namespace not in self._namespaces:
            self._namespaces += (namespace,)
        self._home = namespace
        self._arm()

    def _leave(self, namespace: bytes) -> None:
        self._namespaces = tuple(each for each in self._namespaces if each != namespace)
        self._home = self._namespaces[-1] if self._namespaces else b""
        self._rest()
        self._arm()

    # Out

    def next_id(self) -> int:
        """An id for an event that wants an ack."""
        self._ids += 1
        return self._ids

    def send(self, packet: bytes, attachments: Sequence[bytes] = ()) -> None:
        """Queues a text packet, which begins with `4`, and what is attached to it."""
        if not self.is_closed:
            self._push(packet)
            for data in attachments:
                self._push(Attachment(data))

    def take(self, transport: Transport) -> list[Outgoing]:
        """What is to be written to this transport now. Call it after every other call, if something is `queued`."""
        if transport is not self.transport:
            return []
        if transport is POLLING:
            return self._take_batch(self._limits.batch_bytes)
        taken, self._queue = self._queue, []
        self.queued = 0
        self.is_direct = not self.is_closed
        return taken

    def _take_batch(self, most: int) -> list[Outgoing]:
        """The next packets for one payload: at least one, and no more bytes than these if there are several."""
        count, size = 0, 0
        for packet in self._queue[: self._limits.batch_packets]:
            size += packets.payload_size(packet)
            if count and size > most:
                break
            count += 1
        batch = self._queue[:count]
        del self._queue[:count]
        self.queued -= sum(map(_size, batch))
        return batch

    def _push(self, packet: Outgoing) -> None:
        self._queue.append(packet)
        self.queued += _size(packet)
        self.is_direct = False

    # The end

    def close(self, reason: Reason) -> Closed:
        """Ends the session. What is queued, and a CLOSE, is still to be taken and written."""
        return Closed(self.reason) if self.reason else self._end(reason, politely=True)

    def _end(self, reason: Reason, *, politely: bool = False) -> Closed:
        self.is_closed, self.reason, self.is_direct = True, reason, False
        self._namespaces = ()
        self._incoming = None
        self._rest()
        if politely:
            self._push(packets.CLOSE)
        else:
            self._queue, self.queued = [], 0
        return Closed(reason)

    def lost(self, transport: Transport) -> Closed | None:
        """This transport is gone. That ends the session if it was the current one and the session was not over."""
        if self.is_closed or transport is not self.transport:
            return None
        return self._end(Reason.TRANSPORT)


@lru_cache(maxsize=64)
def _heads(namespace: bytes) -> tuple[bytes, bytes]:
    """How an event and an ack of a namespace begin. Shared, for there are many sessions and few namespaces."""
    return packets.packet_head(packets.EVENT, namespace), packets.packet_head(packets.ACK, namespace)


def _size(packet: Outgoing) -> int:
    return len(packet.data) if isinstance(packet, Attachment) else len(packet)


def _is_ack(packet: Packet) -> bool:
    return packet.type in (packets.ACK, packets.BINARY_ACK)


def _is_array(body: Json) -> bool:
    """Whether it looks like one: reading it is left to who reads the rest."""
    first, last = bytes(body[:_ROOM_FOR_SPACE]).lstrip(), bytes(body[-_ROOM_FOR_SPACE:]).rstrip()
    return first.startswith(_OPENING) and last.endswith(_CLOSING)


def _whole(packet: Packet, attachments: tuple[bytes, ...]) -> Event | Ack:
    if not _is_ack(packet):
        return Event(packet.namespace, packet.id, packet.body, attachments)
    assert packet.id is not None
    return Ack(packet.namespace, packet.id, packet.body, attachments)


def _faulty(packet: Packet, fault: Fault, reason: str, size: int = 0, limit: int = 0) -> Faulty:
    name = None if _is_ack(packet) else _NAME.match(packet.body)
    return Faulty(
        packet.namespace, packet.id, _is_ack(packet), name[1] if name else b"", fault, reason, size=size, limit=limit
    )
