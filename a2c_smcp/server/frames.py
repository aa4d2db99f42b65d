"""Requests and acks read off their text: only what routing needs is decoded, the rest stays as it came.

What is unusual in any way is not read here, so that there is one place that says what is wrong with it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from a2c_smcp.server.packets import Payload
from a2c_smcp.smcp import SMCP_NAMESPACE

__all__ = ["Ack", "Request", "ack_frame", "read_ack", "read_request", "request_frame"]

_EVENT, _ACK = f"42{SMCP_NAMESPACE},", f"43{SMCP_NAMESPACE},"
_NAME = '["client:'
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


class _Fields(msgspec.Struct):
    agent: Any = msgspec.UNSET
    robot_id: Any = msgspec.UNSET
    req_id: Any = msgspec.UNSET
    computer: Any = msgspec.UNSET
    office_id: Any = msgspec.UNSET
    tool_name: Any = msgspec.UNSET
    timeout: Any = msgspec.UNSET
    desktop_size: Any = msgspec.UNSET
    window: Any = msgspec.UNSET
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_fields = msgspec.json.Decoder(_Fields)
_arguments = msgspec.json.Decoder(list[msgspec.Raw])


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
    return Request(number, name, _payload(fields, body))


def read_ack(text: str) -> Ack | None:
    """`43/smcp,<id>[…]`, or `None`."""
    start = text.find("[", len(_ACK))
    number = text[len(_ACK) : start]
    if not (text.startswith(_ACK) and number.isdecimal() and number.isascii() and len(number) <= _LONGEST_ID):
        return None
    arguments = text[start:]
    try:
        _arguments.decode(arguments)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
    return Ack(int(number), arguments)


def request_frame(number: int, event: str, payload: Payload) -> str:
    return f'{_EVENT}{number}["{event}",{payload.text}]'


def ack_frame(number: str, arguments: str) -> str:
    return f"{_ACK}{number}{arguments}"


def _payload(fields: _Fields, text: str) -> Payload:
    given = {name: value for name in _NAMES if (value := getattr(fields, name)) is not msgspec.UNSET}
    if fields.params is not msgspec.UNSET:
        given["params"] = _UNREAD if bytes(fields.params)[:1] == b"{" else None
    return Payload(given, text)


_NAMES = tuple(name for name in _Fields.__struct_fields__ if name != "params")
