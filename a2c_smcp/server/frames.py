"""Requests and acks read off their text: only what routing needs is decoded, the rest stays as it came.

What is unusual in any way is not read here, so that there is one place that says what is wrong with it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from typing_extensions import TypedDict

from a2c_smcp.protocol.codec import dumps
from a2c_smcp.server.packets import Payload
from a2c_smcp.smcp import SMCP_NAMESPACE

__all__ = ["Ack", "Request", "ack_frame", "notice_frame", "read_ack", "read_request", "request_frame"]

_EVENT, _ACK = f"42{SMCP_NAMESPACE},", f"43{SMCP_NAMESPACE},"
_NAME = '["client:'
_OBJECT = ord("{")
_LONGEST_ID = 15


class Request(NamedTuple):
    """An event that wants an ack. Of its payload only the fields are there that routing may look at."""

    id: str
    event: str
    payload: Payload


class Ack(NamedTuple):
    """The arguments of an ack, as the text of their array."""

    id: int
    text: str


class _Unread(dict[str, Any]):
    """Stands for an object that nobody here has to look into."""


_UNREAD = _Unread()


class _Fields(TypedDict, total=False):
    agent: Any
    robot_id: Any
    req_id: Any
    computer: Any
    office_id: Any
    tool_name: Any
    timeout: Any
    desktop_size: Any
    window: Any
    params: msgspec.Raw


class _Array(msgspec.Struct, array_like=True):
    """Any array: its elements are checked, and made nothing of."""


_fields = msgspec.json.Decoder(_Fields)
_array = msgspec.json.Decoder(_Array)


def read_request(text: str) -> Request | None:
    """`42/smcp,<id>["client:<x>",{…}]`, or `None`."""
    start = text.find("[", len(_EVENT))
    number = text[len(_EVENT) : start]
    if not (text.startswith(_EVENT) and number.isdecimal() and number.isascii() and text.startswith(_NAME, start)):
        return None
    end = text.find('"', start + 2)
    name, body = text[start + 2 : end], text[end + 2 : -1]
    if "\\" in name or text[end + 1 : end + 3] != ",{" or text[-1] != "]":
        return None
    try:
        fields = _fields.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
    if params := fields.get("params"):
        fields["params"] = _UNREAD if memoryview(params)[0] == _OBJECT else None  # type: ignore[typeddict-item]
    return Request(number, name, Payload(fields, body))  # type: ignore[arg-type]


def read_ack(text: str) -> Ack | None:
    """`43/smcp,<id>[…]`, or `None`."""
    start = text.find("[", len(_ACK))
    number = text[len(_ACK) : start]
    if not (text.startswith(_ACK) and number.isdecimal() and number.isascii() and len(number) <= _LONGEST_ID):
        return None
    arguments = text[start:]
    try:
        _array.decode(arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
    return Ack(int(number), arguments)


def request_frame(number: int, event: str, payload: Payload) -> str:
    return f'{_EVENT}{number}["{event}",{payload.text}]'


def notice_frame(event: str, data: str) -> str:
    return f"{_EVENT}[{dumps(event)},{data}]"


def ack_frame(number: str, arguments: str) -> str:
    return f"{_ACK}{number}{arguments}"

