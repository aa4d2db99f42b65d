"""The common part of both ends of a session: events from packets, the queue of packets to send, the end.

A session makes no callbacks and reads no clock; the caller passes the time. Bytes go in by `receive`, `receive_binary`
and `receive_payload`, and each packet gives at most one event. Packets to send are queued; the shell (the code that
owns the sockets) writes what `take` returns after every call. It belongs to one thread, so nothing inside it can race.
Transports can race with each other during an upgrade: `server.py` and `client.py` say why nothing is lost, doubled or
out of order then.

Outgoing order. Everything goes through one queue, with one exception: while `is_direct` (the transport is a websocket
and the queue is empty) the shell may write a packet straight to the websocket. Any queued packet ends `is_direct`
until it is taken, so nothing overtakes the queue.

Incoming order. A packet with attachments is complete when the last of them has come. Until then no other Socket.IO
packet may come; one that does makes the waiting packet a fault, and is then read by itself.

Fast path. Nearly all traffic is `42/smcp,<id>[…]` and `43/smcp,<id>[…]` of the namespace that was connected last.
`receive` recognises these by two heads. In every state in which they may not be taken (no namespace connected, an
attachment is awaited, raw, closed) there are no heads, so one comparison also checks the state. The slow path reads
every packet, these too, with the same result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from a2c_smcp.engine import packets
from a2c_smcp.engine.events import Ack, Closed, Event, Fault, Faulty, Happening, Message, Reason
from a2c_smcp.engine.packets import LARGE, Attachment, Json, Malformed, Outgoing, Packet

_NO_HEAD: tuple[bytes, ...] = ()  # nothing starts with one of these
_LONGEST_ID = 16  # with the bracket behind it
_BRACKET = ord("]")
_NAME = re.compile(rb'\s*\[\s*("(?:[^"\\]|\\.){0,1024}")')
_MOST_SPACE = 64
_ACKS = (packets.ACK, packets.BINARY_ACK)
_BINARY = (packets.BINARY_EVENT, packets.BINARY_ACK)
_OF_NAMESPACES = (packets.CONNECT, packets.DISCONNECT, packets.CONNECT_ERROR)


class Transport(StrEnum):
    POLLING = "polling"
    WEBSOCKET = "websocket"


POLLING, WEBSOCKET = Transport.POLLING, Transport.WEBSOCKET


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Sizes are in bytes, times in seconds. A message is counted without its `4` and with its attachments."""

    ping_interval: float = 10
    ping_timeout: float = 8
    handshake_timeout: float = 10
    max_payload: int = 8 * 1024 * 1024
    max_packets: int = 4096  # in a payload that comes
    batch_packets: int = 16  # in a payload that is sent
    batch_bytes: int = 64 * 1024
    max_message: int = 4 * 1024 * 1024
    max_ack: int = 4 * 1024 * 1024 - 64
    max_attachments: int = 64
    max_beside_attachments: int = 256 * 1024
    max_connect: int = 32 * 1024
    max_unauthenticated: int = 64 * 1024
    max_refusals: int = 3


class _Incoming:
    """A packet whose attachments have not all come yet."""

    __slots__ = ("packet", "parts", "size")

    def __init__(self, packet: Packet, size: int) -> None:
        self.packet = packet
        self.parts: list[bytes] = []
        self.size = size


class Session:
    """The base of `ServerSession` and `ClientSession`."""

    __slots__ = (
        "_ack_head", "_event_head", "_fast_namespace", "_head_size", "_ids", "_incoming", "_is_raw", "_limits",
        "_namespaces", "_queue", "deadline", "is_closed", "is_direct", "queued", "reason", "transport",
    )  # fmt: skip

    def __init__(self, limits: EngineLimits, transport: Transport, *, raw: bool) -> None:
        self.transport = transport
        self.is_closed = False
        self.reason: Reason | None = None
        self.is_direct = transport is WEBSOCKET
        self.queued = 0
        self._queue: list[Outgoing] = []
        self._limits = limits
        self._is_raw = raw
        self._namespaces: tuple[bytes, ...] = ()
        self._incoming: _Incoming | None = None
        self._ids = 0
        self._set_fast_path()

    # Packets that come

    def receive(self, packet: bytes, now: float) -> Happening | None:
        """Reads one text packet of the current transport."""
        if packet.startswith(self._event_head):
            at, size = self._head_size, len(packet)
            start = packet.find(b"[", at, at + _LONGEST_ID)
            if start > 0 and packet[-1] == _BRACKET and size <= self._limits.max_message:
                body = packet[start:] if size < LARGE else memoryview(packet)[start:]
                number = packet[at:start]
                if number.isdigit():
                    return Event(self._fast_namespace, int(number), body)
                if not number:
                    return Event(self._fast_namespace, None, body)
        elif packet.startswith(self._ack_head):
            at, size = self._head_size, len(packet)
            start = packet.find(b"[", at, at + _LONGEST_ID)
            if start > 0 and packet[-1] == _BRACKET and size <= self._limits.max_ack:
                number = packet[at:start]
                if number.isdigit():
                    body = packet[start:] if size < LARGE else memoryview(packet)[start:]
                    return Ack(self._fast_namespace, int(number), body)
        return self._receive_slowly(packet, now)

    def receive_binary(self, data: bytes, now: float) -> Happening | None:
        """Reads one binary packet of the current transport. It is ignored if no packet waits for it."""
        if self._is_raw and not self.is_closed:
            return Message(data, is_binary=True)
        incoming = self._incoming
        if incoming is None:
            return None
        incoming.size += len(data)
        incoming.parts.append(data)
        happening = self._too_large(incoming.packet, incoming.size)
        if happening is None and len(incoming.parts) < incoming.packet.attachments:
            return None
        self._await_attachments(None)
        return happening or _whole(incoming.packet, tuple(incoming.parts))

    def receive_payload(self, body: bytes, now: float) -> Iterator[Happening]:
        """Reads the packets of a POST, or of the response to a poll.

        Raises `Malformed` before any of them is read, if one is malformed, which ends the session, or if the session
        is not polling. Packets for a session that is closed are ignored as long as something is queued: a client whose
        POST is refused would not poll again, and not read why it was closed.
        """
        if self.is_closed and self._queue and self.transport is POLLING:
            return iter(())
        if self.is_closed or self.transport is not POLLING:
            raise Malformed("this session is not polling")
        try:
            payload = packets.decode_payload(body, self._limits.max_packets)
        except Malformed:
            self._end(Reason.PROTOCOL)
            raise
        return self._receive_all(payload, now)

    def _receive_all(self, payload: list[Outgoing], now: float) -> Iterator[Happening]:
        for packet in payload:
            if isinstance(packet, Attachment):
                happening = self.receive_binary(packet.data, now)
            else:
                happening = self.receive(packet, now)
            if happening is not None:
                yield happening

    def _receive_slowly(self, packet: bytes, now: float) -> Happening | None:
        if self.is_closed:
            return None
        if packet[:1] != packets.MESSAGE:
            return self._control(packet, now)
        if self._is_raw:
            return Message(packet[1:], is_binary=False)
        if incoming := self._incoming:
            self._await_attachments(None)
            fault = _faulty(incoming.packet, Fault.ATTACHMENTS, "text in place of an attachment")
            return fault._replace(next=self._receive_slowly(packet, now))
        try:
            return self._read(packet, now)
        except Malformed as error:
            return Faulty(b"/", None, False, b"", Fault.MALFORMED, str(error))

    def _control(self, packet: bytes, now: float) -> Happening | None:
        """Reads an Engine.IO packet other than MESSAGE, or bytes that are no packet."""
        raise NotImplementedError

    def _read(self, packet: bytes, now: float) -> Happening | None:
        """Reads a Socket.IO packet. Raises `Malformed`."""
        read, size = packets.read_packet(packet), len(packet) - 1
        if read.type in _OF_NAMESPACES:
            return self._change_namespace(read, size, now)
        if read.namespace not in self._namespaces:
            return None
        if fault := self._fault_in(read, size):
            return fault
        if not read.attachments:
            return _whole(read, ())
        self._await_attachments(_Incoming(read, size))
        return None

    def _change_namespace(self, packet: Packet, size: int, now: float) -> Happening | None:
        raise NotImplementedError

    def _fault_in(self, packet: Packet, size: int) -> Faulty | None:
        limits, count = self._limits, packet.attachments
        if fault := self._too_large(packet, size):
            return fault
        if count and size > limits.max_beside_attachments:
            return _too_large(packet, size, limits.max_beside_attachments, " beside binary attachments")
        if count > limits.max_attachments:
            return _faulty(packet, Fault.ATTACHMENTS, f"at most {limits.max_attachments} attachments are taken")
        if count and packet.type not in _BINARY:
            return _faulty(packet, Fault.MALFORMED, "attachments to a packet that is not binary")
        if packet.type in _ACKS and packet.id is None:
            return _faulty(packet, Fault.MALFORMED, "an ack without an id")
        return None if _is_array(packet.body) else _faulty(packet, Fault.MALFORMED, "not an array")

    def _too_large(self, packet: Packet, size: int) -> Faulty | None:
        limit = self._limits.max_ack if packet.type in _ACKS else self._limits.max_message
        return _too_large(packet, size, limit) if size > limit else None

    def _await_attachments(self, incoming: _Incoming | None) -> None:
        self._incoming = incoming
        self._set_fast_path()

    def _enter(self, namespace: bytes) -> None:
        self._leave(namespace)
        self._namespaces += (namespace,)
        self._set_fast_path()

    def _leave(self, namespace: bytes) -> None:
        self._namespaces = tuple(each for each in self._namespaces if each != namespace)
        self._set_fast_path()

    def _set_fast_path(self) -> None:
        self._event_head: bytes | tuple[bytes, ...] = _NO_HEAD
        self._ack_head: bytes | tuple[bytes, ...] = _NO_HEAD
        self._fast_namespace, self._head_size = b"", 0
        if self._namespaces and self._incoming is None:
            self._fast_namespace = self._namespaces[-1]
            self._event_head, self._ack_head, self._head_size = _heads(self._fast_namespace)

    # Packets to send

    def next_id(self) -> int:
        """A new id, for an event that expects an ack."""
        self._ids += 1
        return self._ids

    def send(self, packet: bytes, attachments: Sequence[bytes] = ()) -> None:
        """Queues a text packet, which begins with `4`, and its attachments. After the end this does nothing."""
        if not self.is_closed:
            self._push(packet)
            for data in attachments:
                self._push(Attachment(data))

    def send_binary(self, data: bytes) -> None:
        """Queues a binary message of a `raw` session."""
        if not self.is_closed:
            self._push(Attachment(data))

    def take(self, transport: Transport) -> list[Outgoing]:
        """The packets that are to be written to this transport now."""
        if transport is not self.transport:
            return []
        if transport is POLLING:
            return self._take_batch(self._limits.batch_bytes)
        taken, self._queue, self.queued = self._queue, [], 0
        self.is_direct = not self.is_closed
        return taken

    def _take_batch(self, most: int) -> list[Outgoing]:
        """The next packets for one payload: one, or several of at most so many bytes together."""
        count = size = 0
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
        """Ends the session. What is queued, and a CLOSE behind it, is still to be taken and written."""
        return Closed(self.reason) if self.reason else self._end(reason, politely=True)

    def lost(self, transport: Transport) -> Closed | None:
        """This transport is gone. That ends the session if it was the current one.

        If the session was closed before, what is still queued is dropped: the peer would read it with a gap.
        """
        if transport is not self.transport:
            return None
        if self.is_closed:
            self._queue, self.queued = [], 0
            return None
        return self._end(Reason.TRANSPORT)

    def _end(self, reason: Reason, *, politely: bool = False) -> Closed:
        self.is_closed, self.reason, self.is_direct = True, reason, False
        self._namespaces = ()
        self._await_attachments(None)
        if politely:
            self._push(packets.CLOSE)
        else:
            self._queue, self.queued = [], 0
        return Closed(reason)


@lru_cache(maxsize=64)
def _heads(namespace: bytes) -> tuple[bytes, bytes, int]:
    """The heads of an event and of an ack of a namespace, and their length. Many sessions share them."""
    event = packets.packet_head(packets.EVENT, namespace)
    return event, packets.packet_head(packets.ACK, namespace), len(event)


def _size(packet: Outgoing) -> int:
    return len(packet.data) if isinstance(packet, Attachment) else len(packet)


def _is_array(body: Json) -> bool:
    """True if it looks like a JSON array. Its content is read by the code that needs it."""
    first, last = bytes(body[:_MOST_SPACE]).lstrip(), bytes(body[-_MOST_SPACE:]).rstrip()
    return first.startswith(b"[") and last.endswith(b"]")


def _whole(packet: Packet, attachments: tuple[bytes, ...]) -> Event | Ack:
    if packet.type not in _ACKS:
        return Event(packet.namespace, packet.id, packet.body, attachments)
    assert packet.id is not None
    return Ack(packet.namespace, packet.id, packet.body, attachments)


def _too_large(packet: Packet, size: int, limit: int, where: str = "") -> Faulty:
    fault = _faulty(packet, Fault.TOO_LARGE, f"{size} bytes, at most {limit} are taken{where}")
    return fault._replace(size=size, limit=limit)


def _faulty(packet: Packet, fault: Fault, reason: str) -> Faulty:
    is_ack = packet.type in _ACKS
    name = None if is_ack else _NAME.match(packet.body)
    return Faulty(packet.namespace, packet.id, is_ack, name[1] if name else b"", fault, reason)
