"""The result of a request: one of four types. Code that handles it must handle all four.

Here is also how an outcome is written as the JSON array of an ack (WIRE §3).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import TypeAlias

import msgspec

from a2c_smcp.engine.packets import Json
from a2c_smcp.errors import SMCPError, Unavailable
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.events import EventSpec
from a2c_smcp.protocol.results import error_ack
from a2c_smcp.server.routing_fields import ResultFields

__all__ = [
    "DONE",
    "NOTHING",
    "TOLD",
    "Answer",
    "BinaryAnswer",
    "Closing",
    "Moved",
    "Outcome",
    "Refused",
    "answer_with",
    "refusal_ack",
]


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
