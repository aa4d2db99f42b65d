"""What is reported, one class each. `Happened` is any of them."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import TypeAlias

import msgspec

from a2c_smcp.errors import SMCPError
from a2c_smcp.protocol.events import EventSpec
from a2c_smcp.protocol.names import MAX_NAME, MAX_TOOL_NAME, fault_in
from a2c_smcp.protocol.offices import Member
from a2c_smcp.protocol.results import ANSWERED, OK, TOOL_ERROR, CallResult, call_result
from a2c_smcp.server.calls.call import Call
from a2c_smcp.server.connections import Connection, Connections
from a2c_smcp.server.outcomes import Answer, BinaryAnswer, Outcome, Refused
from a2c_smcp.server.routing_fields import RecordedRequest, ToolFields, read_result, read_tool

__all__ = [
    "CallBegun",
    "CallEnded",
    "CancelAsked",
    "ClientConnected",
    "ClientGone",
    "Displaced",
    "EventRefused",
    "HandshakeRefused",
    "Happened",
    "Joined",
    "Left",
    "McpCallRefused",
    "McpClientSeen",
    "OperatorActed",
    "ReaderCut",
    "TakenOver",
    "Told",
    "Updated",
    "answered_size",
    "call_ended",
    "recorded_fields",
    "result_of",
]


class ClientConnected(msgspec.Struct, eq=False):
    """A client was let in."""

    connection: Connection


class HandshakeRefused(msgspec.Struct, eq=False):
    """A client was not let in. `principal` and `device` are known if only the proof of its device failed."""

    address: str | None
    error: SMCPError
    principal: str | None = None
    device: str | None = None


class ClientGone(msgspec.Struct, eq=False):
    connection: Connection
    reason: str | None


class Joined(msgspec.Struct, eq=False):
    seat: Member
    connection: Connection | None


class Left(msgspec.Struct, eq=False):
    """A seat is free again. `is_lost`: its client did not say goodbye, and did not come back in time."""

    seat: Member
    is_lost: bool
    connection: Connection | None


class TakenOver(msgspec.Struct, eq=False):
    """A client that was lost is back, on another connection, and has its seat again (resume)."""

    seat: Member
    connection: Connection | None


class Displaced(msgspec.Struct, eq=False):
    """A member has lost its seat to another: the nodes could not reach each other for a while."""

    seat: Member
    error: SMCPError


class CallBegun(msgspec.Struct, eq=False):
    """A request to a computer was taken: a tool call (`call.event.is_call`), or another one."""

    call: Call
    connection: Connection | None


class CallEnded(msgspec.Struct, eq=False, gc=False):
    """A request to a computer has its outcome, which is about to leave for the agent.

    `connection` is the agent's; `None` if the agent is away. `computer` is the computer's, if it is a client of this
    node. `seconds` is the time since the request came, `sent` and `answered` are sizes in bytes. What has to be read
    from the request is read when it is asked for, once: before the call forgets it (`Call.shrink`).
    """

    call: Call
    connection: Connection | None
    computer: Connection | None
    seconds: float
    request: RecordedRequest | ToolFields | None = None

    @property
    def result(self) -> CallResult:
        """The outcome as one word, such as `ok`, `tool_error` or `timeout`, with the code of an error."""
        assert self.call.result
        return self.call.result

    @property
    def fields(self) -> RecordedRequest | ToolFields:
        """What may be recorded of the request: `tool`, `params` as JSON, `meta.trace` (its `traceparent`)."""
        if self.request is None:
            self.request = recorded_fields(self.call)
        return self.request

    @property
    def trace(self) -> str | None:
        return self.fields.meta.trace if self.fields.meta else None

    @property
    def tool(self) -> str | None:
        """The tool, if the request is a tool call that is not sealed."""
        return self.fields.tool if self.call.event.is_call and not self.call.event.is_sealed else None

    @property
    def answered_by(self) -> str | None:
        """The device that the computer has proved, if it has answered, and is bound to one."""
        if not isinstance(self.call.outcome, Answer | BinaryAnswer):
            return None
        return self.computer.principal.device if self.computer else self.call.computer_device

    @property
    def sent(self) -> int:
        return self.call.size

    @property
    def answered(self) -> int:
        return answered_size(self.call.outcome)


class EventRefused(msgspec.Struct, eq=False):
    """An event was refused, and no call began. `event` is `None` if the name is not known.

    `fields` are the routing fields as far as they can be read. They may be wrong: `name_in_fields` reads one safely.
    """

    connection: Connection
    event: EventSpec | None
    error: SMCPError
    fields: Mapping[str, object] = {}
    size: int = 0

    def name_in_fields(self, field: str) -> str | None:
        """A field that should be a name; `None` if it is not a valid one."""
        value = self.fields.get(field)
        return value if isinstance(value, str) and len(value) <= MAX_NAME and value.isprintable() else None


class CancelAsked(msgspec.Struct, eq=False):
    """An agent cancels a tool call. `offices` are those in which this node knows it to be in flight."""

    connection: Connection
    req_id: str
    offices: frozenset[str]


class Updated(msgspec.Struct, eq=False):
    """A computer has announced a change (`server:update_<x>`) to an office."""

    connection: Connection
    event: EventSpec
    office_id: str


class Told(msgspec.Struct, eq=False):
    """A computer has told an agent something (`server:tell_<x>`)."""

    connection: Connection
    event: EventSpec
    agent: Member
    req_id: str | None


class ReaderCut(msgspec.Struct, eq=False):
    """A client was disconnected because it did not read what was written to it."""

    address: str | None
    connection: Connection | None


class McpClientSeen(msgspec.Struct, eq=False):
    """An MCP client uses the seat of an agent (`server --mcp`). The client has chosen its name."""

    office_id: str
    agent: str
    client: str
    principal: str


class McpCallRefused(msgspec.Struct, eq=False):
    """A tool call of an MCP client (`server --mcp`) was refused before its agent could send it.

    `tool` is the name that the client has given, which may be wrong: `shown_tool` reads it safely.
    """

    office_id: str
    agent: str
    principal: str
    address: str | None
    tool: str
    error: SMCPError

    @property
    def shown_tool(self) -> str | None:
        """The tool; `None` if this is not a valid name of one."""
        return None if fault_in(self.tool, MAX_TOOL_NAME) else self.tool


class OperatorActed(msgspec.Struct, eq=False):
    """An operator has changed something. `via` is `api` or `console`; `facts` say what, by names and ids."""

    action: str
    address: str | None
    via: str
    facts: Mapping[str, str | None]


Happened: TypeAlias = (
    ClientConnected
    | HandshakeRefused
    | ClientGone
    | Joined
    | Left
    | TakenOver
    | Displaced
    | CallBegun
    | CallEnded
    | EventRefused
    | CancelAsked
    | Updated
    | Told
    | ReaderCut
    | McpClientSeen
    | McpCallRefused
    | OperatorActed
)


def call_ended(call: Call, connections: Connections) -> CallEnded:
    """That a request has its outcome now."""
    seconds = monotonic() - call.until + call.timeout
    return CallEnded(call, connections.get(call.caller_sid), connections.get(call.target_sid), seconds)


def recorded_fields(call: Call) -> RecordedRequest | ToolFields:
    """What may be recorded of a request: as it was read when it came, if it was an ordinary one.

    A large one that is forgotten has its tool only.
    """
    envelope = call.envelope
    if envelope is None:
        return ToolFields(call.identity.tool)
    return envelope.recorded or read_tool(envelope.body)


def answered_size(outcome: Outcome | None) -> int:
    """The bytes of an answer."""
    return outcome.size if isinstance(outcome, Answer | BinaryAnswer) else 0


def result_of(event: EventSpec, outcome: Outcome) -> CallResult:
    """How a request ended, in one word."""
    if isinstance(outcome, Answer):
        read = outcome.read or read_result(outcome.body)
        if read is not None and read.error is None:
            return TOOL_ERROR if read.is_error else ANSWERED if event.is_sealed else OK
    elif isinstance(outcome, Refused):
        return call_result(outcome.error.code, ran=outcome.error.outcome if event.is_call else None)
    elif isinstance(outcome, BinaryAnswer):
        read = read_result(outcome.body)
    else:
        return call_result(SMCPError.code)
    if read is None:
        return call_result(SMCPError.code if event.is_call else None)
    return call_result(read.code, is_error=read.is_error, ran=read.ran, is_sealed=event.is_sealed)
