"""An event's payload as an envelope: its routing fields, and the payload as the bytes it came as.

Only the routing fields are decoded (`routing_fields.py`). The payload is passed on untouched: every character that a
client wrote arrives. In a payload with binary parts, the JSON has placeholders and the attachments travel beside it;
only there the JSON is parsed, to check that each placeholder has its attachment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import TypeAlias, cast

import msgspec

from a2c_smcp.engine.events import Ack, Event, Fault, Faulty
from a2c_smcp.engine.packets import LARGE, Json, Malformed, attach
from a2c_smcp.errors import BadRequest, SMCPError, TooLarge, Unavailable, UnsupportedEvent
from a2c_smcp.protocol.codec import dumps, loads, loads_exactly
from a2c_smcp.protocol.events import EventSpec, lookup
from a2c_smcp.protocol.offices import RoutingFields
from a2c_smcp.protocol.results import error_ack
from a2c_smcp.server.routing_fields import NAMES, RecordedRequest, ResultFields, is_array, read_fields, result_in

# The result of a request: one of four types. Code that handles it must handle all four.
#
# Here is also how an outcome is written as the JSON array of an ack (WIRE §3).


class Answer(msgspec.Struct, eq=False):
    """The arguments of an ack: a JSON array, as it came. `read` is what was found in it when it was checked."""

    body: Json
    read: ResultFields | None = None

    @property
    def size(self) -> int:
        return len(self.body)


class BinaryAnswer(msgspec.Struct, eq=False):
    """The arguments of an ack, with placeholders in their JSON for the attachments."""

    body: Json
    attachments: Sequence[bytes]

    @property
    def size(self) -> int:
        return len(self.body) + sum(map(len, self.attachments))


class Refused:
    """An error, without its traceback: the traceback would keep the request in memory."""

    __slots__ = ("error",)

    def __init__(self, error: SMCPError) -> None:
        error.__traceback__ = None
        self.error = error


class Moved(Enum):
    """No answer from where the request was sent. Only requests between nodes end like this."""

    GONE = auto()
    """The member has no seat under this session any more. The request was not passed on to it."""
    LOST = auto()
    """The node has gone. Whether the request was passed on is not known."""
    UNHEARD = auto()
    """No process reads the inbox of the node: the request has not arrived."""


Outcome: TypeAlias = Answer | BinaryAnswer | Refused | Moved

NOTHING = Answer(b"[]")
"""The empty ack."""

DONE = Answer(b"[true,null]")
"""The ack of a join or a leave."""

TOLD = Answer(b'[{"delivered":true}]')
"""The ack of what a computer tells an agent."""

UNTOLD = Answer(b'[{"delivered":false}]')
"""The ack of what is meant for a seat that the agent of the office does not have."""


class Closing(Unavailable):
    """This Server shuts down. Another node may answer, once the client has connected there."""

    def __init__(self, **details: str) -> None:
        super().__init__("the server is shutting down", **details)


def answer_with(value: object) -> Answer:
    """An ack with one argument."""
    return Answer(f"[{dumps(value)}]".encode())


def refusal_ack(event: EventSpec | None, error: SMCPError) -> bytes:
    """The arguments of an ack that refuses, in the shape that the sender of this event expects."""
    shape = error_ack(event, error)
    return (dumps(list(shape)) if isinstance(shape, tuple) else f"[{dumps(shape)}]").encode()


HEAD_ROOM = 64
"""Bytes that the head of a packet may take: a packet that is passed on gets another head, and must still fit."""

_HEAD = re.compile(rb'\s*\[\s*("(?:[^"\\]|\\.){0,1024}")\s*(,?)\s*', re.DOTALL)
_END = ord("]")
_MOST_BESIDE_ATTACHMENTS = 256 * 1024
"""Bytes of JSON beside attachments, which is parsed as a whole."""


class Envelope(msgspec.Struct, eq=False):
    """A payload: the JSON object it came as, and its binary parts. Routing fields are decoded when they are used.

    `recorded` has those of a request that took a cached route, if they may be recorded.
    """

    body: Json
    attachments: Sequence[bytes] = ()
    read: dict[str, object] | None = None
    recorded: RecordedRequest | None = None

    @property
    def fields(self) -> RoutingFields:
        """The routing fields. Their types are as declared once `codec.decode` has checked them."""
        if self.read is None:
            self.read = read_fields(self.body)
        if self.read is None:
            payload = loads(_text(self.body))
            self.read = {name: payload[name] for name in NAMES & payload.keys()}
        return cast(RoutingFields, self.read)

    @property
    def size(self) -> int:
        return len(self.body) + sum(map(len, self.attachments)) if self.attachments else len(self.body)


def name_in(event: Json) -> str:
    """The name of an event `["<name>",…]`; empty if it cannot be read."""
    head = _HEAD.match(event)
    if head is None:
        return ""
    try:
        name = loads(head[1].decode())
    except (BadRequest, UnicodeDecodeError):
        return ""
    return name if isinstance(name, str) else ""


def spec_of(event: Event | Faulty) -> EventSpec | None:
    """The row of an event; `None` if there is none of its name."""
    try:
        return lookup(name_in(b"[%s]" % event.name if isinstance(event, Faulty) else event.body))
    except UnsupportedEvent:
        return None


def size_of(event: Event | Ack | Faulty) -> int:
    return 0 if isinstance(event, Faulty) else len(event.body) + sum(map(len, event.attachments))


def fields_of(event: Event | Faulty) -> Mapping[str, object]:
    """The routing fields of an event that may be wrong; none if they cannot be read."""
    with suppress(SMCPError):
        if isinstance(event, Event):
            return cast(Mapping[str, object], read_payload(event.body).fields)
    return {}


def fault_of(faulty: Faulty) -> SMCPError:
    if faulty.fault is Fault.TOO_LARGE:
        return TooLarge(faulty.reason, size=faulty.size, limit=faulty.limit)
    return BadRequest(faulty.reason)


def read_payload(event: Json, attachments: Sequence[bytes] = ()) -> Envelope:
    """The one argument of an event. Raises `BadRequest` or `TooLarge`."""
    if attachments:
        _check_attachments(event, attachments)
    head = _HEAD.match(event)
    if head and head[2]:
        whole = event if event[-1] == _END else bytes(event).rstrip()
        body = whole[head.end() : -1]
        fields = read_fields(body) if whole[-1] == _END else None
        if fields is not None:
            return Envelope(body, attachments, fields)
    return _parsed(event, attachments)


def _parsed(event: Json, attachments: Sequence[bytes]) -> Envelope:
    """A small payload that is unusual, such as one with half a surrogate pair, or wrong: it is parsed as a whole."""
    if len(event) >= LARGE:
        raise BadRequest("an event carries one object")
    arguments = loads(_text(event))
    if not (isinstance(arguments, list) and arguments and isinstance(arguments[0], str)):
        raise BadRequest("an event is an array that begins with its name")
    head = _HEAD.match(event)
    if len(arguments) != 2 or head is None:
        raise BadRequest("an event carries one object")
    payload = arguments[1]
    if not isinstance(payload, dict):
        raise BadRequest("the payload must be an object")
    body = bytes(event[head.end() :]).rstrip()[:-1]
    return Envelope(body, attachments, {name: payload[name] for name in NAMES & payload.keys()})


def read_answer(ack: Json, attachments: Sequence[bytes] = ()) -> Answer | BinaryAnswer:
    """The arguments of an ack. Raises `BadRequest` or `TooLarge`."""
    if attachments:
        _check_attachments(ack, attachments)
        return BinaryAnswer(ack, attachments)
    result = result_in(ack)
    if result is None and not is_array(ack) and (len(ack) >= LARGE or not isinstance(loads(_text(ack)), list)):
        raise BadRequest("an ack is an array")
    return Answer(ack, result)


def _check_attachments(packet: Json, attachments: Sequence[bytes]) -> None:
    if len(packet) > _MOST_BESIDE_ATTACHMENTS:
        size, limit = len(packet), _MOST_BESIDE_ATTACHMENTS
        raise TooLarge(f"{size} bytes of JSON beside attachments, at most {limit} are taken", size=size, limit=limit)
    arguments = loads_exactly(_text(packet))
    if not isinstance(arguments, list):
        raise BadRequest("a packet with attachments is an array")
    try:
        attach(arguments, attachments)
    except Malformed as error:
        raise BadRequest(str(error)) from None


def _text(packet: Json) -> str:
    try:
        return str(packet, "utf-8")
    except UnicodeDecodeError:
        raise BadRequest("not UTF-8") from None
