"""Packets as bytes: Engine.IO packets and polling payloads, Socket.IO heads. Nothing here has state.

A Socket.IO packet travels inside an Engine.IO MESSAGE, so its text begins with `4`:

    4 <type> [<attachments>-] [<namespace>,] [<id>] [<JSON>]

Its attachments follow as binary packets. The JSON is never parsed here: a body is the bytes that came, or a view of
them where a copy would be large.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

KINDS = OPEN, CLOSE, PING, PONG, MESSAGE, UPGRADE, NOOP = b"0", b"1", b"2", b"3", b"4", b"5", b"6"
PROBE, PROBED = b"2probe", b"3probe"
CONNECT, DISCONNECT, EVENT, ACK, CONNECT_ERROR, BINARY_EVENT, BINARY_ACK = range(7)

LARGE: Final = 64 * 1024
"""The size in bytes from which on a body is a view of its packet and not a copy."""

Json: TypeAlias = bytes | memoryview

_SEPARATOR = b"\x1e"
_LONGEST_NUMBER = 100
_HEAD = re.compile(rb"([0-6])(?:(\d+)-)?(?:(/[^,]*)(?:,|\Z))?(\d*)")


class Malformed(ValueError):
    """Bytes that are not a packet."""


class Attachment(NamedTuple):
    """A binary packet: a binary frame of a websocket, base64 in a polling payload."""

    data: bytes


Outgoing: TypeAlias = bytes | Attachment


class Packet(NamedTuple):
    """A Socket.IO packet. The namespace of one that names none is `/`."""

    type: int
    namespace: bytes
    id: int | None
    attachments: int
    body: Json


def read_packet(text: bytes, start: int = 1) -> Packet:
    """The Socket.IO packet that begins at `start` of a MESSAGE. Raises `Malformed`."""
    head = _HEAD.match(text, start)
    if head is None:
        raise Malformed("no type of packet")
    kind, attachments, namespace, number = head.groups()
    if len(number) > _LONGEST_NUMBER:
        raise Malformed("an id of too many digits")
    end = head.end()
    return Packet(
        int(kind),
        namespace.partition(b"?")[0] if namespace else b"/",
        int(number) if number else None,
        int(attachments[: _LONGEST_NUMBER + 1]) if attachments else 0,
        text[end:] if len(text) < LARGE else memoryview(text)[end:],
    )


def packet_head(kind: int, namespace: bytes, number: int | None = None, attachments: int = 0) -> bytes:
    """A packet without its body, with the `4` of its MESSAGE."""
    return b"4%d%s%s%s" % (
        kind,
        b"%d-" % attachments if kind in (BINARY_EVENT, BINARY_ACK) else b"",
        b"" if namespace == b"/" else namespace + b",",
        b"" if number is None else b"%d" % number,
    )


def event_packet(namespace: bytes, number: int | None, *body: Json, attachments: int = 0) -> bytes:
    """An event whose JSON array comes in parts. A `number` asks for an ack."""
    return b"".join((packet_head(BINARY_EVENT if attachments else EVENT, namespace, number, attachments), *body))


def ack_packet(namespace: bytes, number: int, *body: Json, attachments: int = 0) -> bytes:
    """An ack whose JSON array comes in parts."""
    return b"".join((packet_head(BINARY_ACK if attachments else ACK, namespace, number, attachments), *body))


def encode_payload(packets: Iterable[Outgoing]) -> bytes:
    """The body of a poll's response, or of a POST."""
    return _SEPARATOR.join(
        b"b" + binascii.b2a_base64(packet.data, newline=False) if isinstance(packet, Attachment) else packet
        for packet in packets
    )


def payload_size(packet: Outgoing) -> int:
    """Return the bytes that a packet takes in a payload, with its separator."""
    return 2 + (len(packet.data) + 2) // 3 * 4 if isinstance(packet, Attachment) else 1 + len(packet)


def decode_payload(body: bytes, most: int) -> list[Outgoing]:
    """The packets of a payload. Raises `Malformed` if one is no Engine.IO packet, or there are more than `most`."""
    packets = body.split(_SEPARATOR, most)
    if len(packets) > most:
        raise Malformed(f"more than {most} packets in one payload")
    try:
        if not body.isascii():
            body.decode()
        return [_decode(packet) for packet in packets]
    except UnicodeDecodeError:
        raise Malformed("not UTF-8") from None
    except binascii.Error:
        raise Malformed("not base64") from None


def _decode(packet: bytes) -> Outgoing:
    if packet[:1] == b"b":
        return Attachment(binascii.a2b_base64(packet[1:], strict_mode=True))
    if packet[:1] not in KINDS:
        raise Malformed("not an Engine.IO packet")
    return packet


# Binary parts of JSON values: taken out of them for the wire, and put back.
#
# In a packet's JSON the object `{"_placeholder": true, "num": n}` stands for attachment number n. Placeholders and
# attachments have to match one to one: a hundred placeholders for one large attachment would make a small packet
# a large one for everybody who writes it out again.

_MARK, _NUMBER = "_placeholder", "num"


def detach(value: Any) -> tuple[Any, list[bytes]]:
    """A copy of a value with placeholders for the bytes in it, and these."""
    attachments: list[bytes] = []
    return _detach(value, attachments), attachments


def attach(value: Any, attachments: Sequence[bytes]) -> Any:
    """A copy of a value with these bytes in place of its placeholders. Raises `Malformed` if they do not match."""
    unused = dict(enumerate(attachments))
    try:
        whole = _attach(value, unused)
    except (KeyError, RecursionError):
        raise Malformed("the attachments do not match their placeholders") from None
    if unused:
        raise Malformed("an attachment has no placeholder")
    return whole


def _detach(value: Any, attachments: list[bytes]) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        attachments.append(bytes(value))
        return {_MARK: True, _NUMBER: len(attachments) - 1}
    if isinstance(value, dict):
        return {key: _detach(item, attachments) for key, item in value.items()}
    return [_detach(item, attachments) for item in value] if isinstance(value, list | tuple) else value


def _attach(value: Any, unused: dict[int, bytes]) -> Any:
    if isinstance(value, dict):
        if value.get(_MARK) is True:
            number = value.get(_NUMBER)
            return unused.pop(number if type(number) is int else -1)
        return {key: _attach(item, unused) for key, item in value.items()}
    return [_attach(item, unused) for item in value] if isinstance(value, list) else value
