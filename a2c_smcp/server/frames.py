"""Requests and acks read off their text: only what routing needs is decoded, the rest stays as it came.

What is unusual in any way is not read here, so that there is one place that says what is wrong with it.
"""

from __future__ import annotations

from typing import NamedTuple

from a2c_smcp.protocol.codec import dumps
from a2c_smcp.server.fields import LARGE, Json, is_array, read_fields
from a2c_smcp.server.packets import Payload
from a2c_smcp.smcp import SMCP_NAMESPACE

__all__ = ["Ack", "Request", "ack_head", "notice_frame", "read_ack", "read_request", "request_head"]

_EVENT, _ACK = f"42{SMCP_NAMESPACE},".encode(), f"43{SMCP_NAMESPACE},".encode()
_NAME = b'["client:'
_LONGEST_ID = 15


class Request(NamedTuple):
    """An event that wants an ack. Of its payload only the fields are there that routing may look at."""

    id: int
    event: str
    payload: Payload


class Ack(NamedTuple):
    """The arguments of an ack, as the JSON of their array."""

    id: int
    json: Json


def read_request(frame: bytes) -> Request | None:
    """`42/smcp,<id>["client:<x>",{…}]`, or `None`."""
    start = frame.find(b"[", len(_EVENT))
    number = frame[len(_EVENT) : start]
    if not (frame.startswith(_EVENT) and _is_id(number) and frame.startswith(_NAME, start)):
        return None
    end = frame.find(b'"', start + 2)
    if frame[end + 1 : end + 3] != b",{" or frame[-1:] != b"]":
        return None
    event, body = frame[start + 2 : end].decode(), _part(frame, end + 2, -1)
    if "\\" in event or not event.isprintable():
        return None
    fields = read_fields(body)
    return None if fields is None else Request(int(number), event, Payload(fields, body))


def read_ack(frame: bytes) -> Ack | None:
    """`43/smcp,<id>[…]`, or `None`."""
    start = frame.find(b"[", len(_ACK))
    number = frame[len(_ACK) : start]
    if not (frame.startswith(_ACK) and _is_id(number)):
        return None
    arguments = _part(frame, start, len(frame))
    return Ack(int(number), arguments) if is_array(arguments) else None


def request_head(number: int, event: str) -> bytes:
    """What stands before the payload; `]` follows it."""
    return b'%s%d["%s",' % (_EVENT, number, event.encode())


def notice_frame(event: str, data: Json) -> bytes:
    return b"%s[%s,%s]" % (_EVENT, dumps(event).encode(), data)


def ack_head(number: int) -> bytes:
    """What stands before the arguments."""
    return b"%s%d" % (_ACK, number)


def _is_id(digits: bytes) -> bool:
    return digits.isdigit() and len(digits) <= _LONGEST_ID


def _part(frame: bytes, start: int, end: int) -> Json:
    """Without a copy where that is worth it."""
    return frame[start:end] if len(frame) < LARGE else memoryview(frame)[start:end]
