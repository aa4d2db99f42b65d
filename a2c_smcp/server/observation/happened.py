"""The table of what is observed on a Server: a class each, with its facts, its audit line, and what it counts.

An observer is a function that takes one of these classes; the operator's event stream and the log are two of them.
`app.observation.add(observer)` (or `hub.observation`) adds one; with `often=True` it also receives what happens often:
calls, updates and tells. It is called in the step of the event loop in which the thing happens, before the answer
leaves.

A recorder, such as the audit file and the metrics, is called with everything of one turn of the event loop, in order,
before the turn writes to a socket: its costs are paid once a turn, and little for each call.
`observation.record(recorder)` adds one. It receives an ended call as the `Call` itself; `call_ended` makes a
`CallEnded` of it. It does not receive what is under way: calls that begin, updates, tells.

Neither may wait, nor change anything; if one raises, the exception is logged and the Server goes on. Without observers
of calls and recorders, a call costs one test of `follows_requests`.

Each thing is reported once in a cluster, by one node:

- A request to a computer that was begun: `CallBegun`, then `CallEnded`, by the node that the agent is connected to.
  Duplicates, and answers that were kept for an agent that asks again, are the same call. If the agent has moved to
  another node meanwhile, that node reports the end, once the agent asks again there.
- A request that was refused before it began, or is not one to a computer: `EventRefused`, by the node of its sender. So
  a tool call leaves either one `CallEnded` or one `EventRefused` whose `event.is_call`. Recorders receive only the last
  end of one that was refused with 503 before it ran, and came again (`RefusedCalls`).
- A tool call of an MCP client that this Server's own bridge refuses (`server --mcp`), such as one for a tool that the
  office does not have, was never sent: `McpCallRefused`.
- Seats: by the node that committed the change. A client that is back on another connection has `TakenOver` its seats;
  it neither `Left` nor `Joined`.
- A client that was not let in: `HandshakeRefused`, at the HTTP request or at the CONNECT.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Literal, TypeAlias, get_args

from a2c_smcp.audit.observers import Facts, Observed, Observers, known, tell
from a2c_smcp.errors import SMCPError, Unavailable
from a2c_smcp.protocol.events import EVENTS, Action, EventSpec
from a2c_smcp.protocol.names import MAX_NAME, MAX_TOOL_NAME, fault_in
from a2c_smcp.protocol.offices import Member
from a2c_smcp.protocol.results import ANSWERED, OK, TOOL_ERROR, CallResult, call_result
from a2c_smcp.server.calls.call import LARGE_CALL, Call
from a2c_smcp.server.connections import Connection, Connections
from a2c_smcp.server.envelope import Answer, BinaryAnswer, Outcome, Refused
from a2c_smcp.server.routing_fields import RecordedRequest, ToolFields, read_result, read_tool
from a2c_smcp.smcp import GET_CONFIG_EVENT, TOOL_CALL_EVENT
from a2c_smcp.telemetry.metrics import Metrics

# fmt: off
EventName: TypeAlias = Literal[
    "call", "call begun", "cancel", "connected", "disconnected", "displaced", "joined", "left", "mcp client",
    "operator", "refused", "request", "request refused", "signed in", "slow reader cut", "taken over", "tell", "update",
]
# fmt: on
EVENT_NAMES: tuple[EventName, ...] = get_args(EventName)
"""All values of `event` in facts."""

_KNOWN = frozenset(event.name for event in EVENTS)


def event_label(event: EventSpec) -> str:
    """Return the label of an event in metrics; `other` for an unknown one: clients choose their names."""
    return event.name if event.name in _KNOWN else "other"


def _facts(event: EventName, **facts: object) -> Facts:
    return known(event, **facts)


def _who(connection: Connection) -> dict[str, Any]:
    return {"principal": connection.principal.id, **_where(connection)}


def _where(connection: Connection | None) -> dict[str, Any]:
    return {"address": connection.address, "device": connection.principal.device} if connection else {}


def _seat(seat: Member) -> dict[str, Any]:
    return {"office": seat.office_id, "role": seat.role, "name": seat.name, "principal": seat.owner}


def _call(call: Call) -> dict[str, Any]:
    who = {"office": call.caller.office_id, "agent": call.caller.name, "principal": call.caller.owner}
    return {"request": call.event.name, **who, "computer": call.target.name, "req_id": call.req_id or None}


class ClientConnected(Observed):
    """A client was let in."""

    connection: Connection

    def facts(self) -> Facts:
        return _facts("connected", **_who(self.connection), version=self.connection.version)


class HandshakeRefused(Observed):
    """A client was not let in. `principal` and `device` are known if only the proof of its device failed."""

    address: str | None
    error: SMCPError
    principal: str | None = None
    device: str | None = None

    def facts(self) -> Facts:
        return _facts(
            "refused",
            code=self.error.code,
            reason=self.error.about,
            principal=self.principal,
            device=self.device,
            address=self.address,
        )


class ClientGone(Observed):
    connection: Connection
    reason: str | None

    def facts(self) -> Facts:
        return _facts("disconnected", **_who(self.connection), reason=self.reason)


class Joined(Observed):
    seat: Member
    connection: Connection | None

    def facts(self) -> Facts:
        return _facts("joined", **_seat(self.seat), **_where(self.connection))


class Left(Observed):
    """A seat is free again. `is_lost`: its client did not say goodbye, and did not come back in time."""

    seat: Member
    is_lost: bool
    connection: Connection | None

    def facts(self) -> Facts:
        return _facts("left", **_seat(self.seat), **_where(self.connection), lost=self.is_lost or None)


class TakenOver(Observed):
    """A client that was lost is back, on another connection, and has its seat again (resume)."""

    seat: Member
    connection: Connection | None

    def facts(self) -> Facts:
        return _facts("taken over", **_seat(self.seat), **_where(self.connection))


class Displaced(Observed):
    """A member has lost its seat to another: the nodes could not reach each other for a while."""

    seat: Member
    error: SMCPError

    def facts(self) -> Facts:
        return _facts("displaced", **_seat(self.seat), code=self.error.code, reason=self.error.about)


class CallBegun(Observed):
    """A request to a computer was taken: a tool call (`call.event.is_call`), or another one."""

    call: Call
    connection: Connection | None

    def facts(self) -> Facts:
        return _facts("call begun", **_call(self.call), **_where(self.connection))


class CallEnded(Observed, gc=False):
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
        """The fields that may be recorded: `tool`, `params` as JSON, `meta.trace` (its `traceparent`)."""
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

    def facts(self) -> Facts:
        call, result = self.call, self.result
        return _facts(
            "call" if call.event.is_call else "request",
            **_call(call),
            **_where(self.connection),
            tool=self.tool,
            sealed=(call.event.is_call and call.event.is_sealed) or None,
            outcome=result.outcome,
            code=result.code,
            ran=result.ran,
            seconds=self.seconds,
            bytes_in=self.sent,
            bytes_out=self.answered,
            computer_device=self.answered_by,
            trace=self.trace,
        )

    def entry(self) -> Facts | None:
        """The line of a request that is no tool call: `client:get_config` only."""
        if self.call.event.name != GET_CONFIG_EVENT:
            return None
        facts = self.facts()
        milliseconds = round(facts.pop("seconds") * 1000, 3)
        return {**facts, "event": "config read", "ms": milliseconds}


class EventRefused(Observed):
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

    def facts(self) -> Facts:
        event, error, named = self.event, self.error, self.name_in_fields
        result = call_result(error.code, ran=error.outcome)
        where = {"office": named("office_id"), "computer": named("computer")}
        if event is None or not event.is_call:
            who = {"role": named("role"), "name": named("name"), "agent": named("agent")}
            return _facts(
                "request refused",
                request=event and event.name,
                **_who(self.connection),
                **where,
                **who,
                code=result.code,
                reason=error.about,
            )
        return _facts(
            "call",
            **where,
            agent=named("agent"),
            req_id=named("req_id"),
            **_who(self.connection),
            tool=None if event.is_sealed else named("tool_name"),
            sealed=event.is_sealed or None,
            outcome=result.outcome,
            code=result.code,
            ran=result.ran,
            bytes_in=self.size,
            reason=error.about,
        )

    def count(self, metrics: Metrics) -> None:
        if self.event and self.event.action is Action.FORWARD:
            metrics.count("a2c_calls_total", event_label(self.event), call_result(self.error.code).outcome)


class CancelAsked(Observed):
    """An agent cancels a tool call. `offices` are those in which this node knows it to be in flight."""

    connection: Connection
    req_id: str
    offices: frozenset[str]

    def facts(self) -> Facts:
        offices = sorted(self.offices) or None
        return _facts("cancel", req_id=self.req_id, offices=offices, **_who(self.connection))


class Updated(Observed):
    """A computer has announced a change (`server:update_<x>`) to an office."""

    connection: Connection
    event: EventSpec
    office_id: str

    def facts(self) -> Facts:
        return _facts("update", request=self.event.name, office=self.office_id, **_who(self.connection))


class Told(Observed):
    """A computer has told an agent something (`server:tell_<x>`)."""

    connection: Connection
    event: EventSpec
    agent: Member
    req_id: str | None

    def facts(self) -> Facts:
        agent = {"office": self.agent.office_id, "agent": self.agent.name, "req_id": self.req_id}
        return _facts("tell", request=self.event.name, **agent, **_who(self.connection))


class ReaderCut(Observed):
    """A client was disconnected because it did not read what was written to it."""

    address: str | None
    connection: Connection | None

    def facts(self) -> Facts:
        who = _who(self.connection) if self.connection else {"address": self.address}
        return _facts("slow reader cut", **who)


class McpClientSeen(Observed):
    """An MCP client uses the seat of an agent (`server --mcp`). The client has chosen its name."""

    office_id: str
    agent: str
    client: str
    principal: str

    def facts(self) -> Facts:
        seat = {"office": self.office_id, "agent": self.agent}
        return _facts("mcp client", **seat, client=self.client, principal=self.principal)


class McpCallRefused(Observed):
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

    def facts(self) -> Facts:
        result = call_result(self.error.code, ran="not_run")
        return _facts(
            "call",
            office=self.office_id,
            agent=self.agent,
            principal=self.principal,
            address=self.address,
            tool=self.shown_tool,
            outcome=result.outcome,
            code=result.code,
            ran=result.ran,
            reason=self.error.about,
        )

    def count(self, metrics: Metrics) -> None:
        metrics.count("a2c_calls_total", TOOL_CALL_EVENT, call_result(self.error.code).outcome)


class OperatorActed(Observed):
    """An operator has changed something. `via` is `api` or `console`; `about` says what, by names and ids."""

    action: str
    address: str | None
    via: str
    about: Mapping[str, str | None]

    def facts(self) -> Facts:
        return _facts("operator", action=self.action, via=self.via, address=self.address, **self.about)


def call_ended(call: Call, connections: Connections) -> CallEnded:
    """Return the end of a request that has its outcome now."""
    seconds = monotonic() - call.until + call.timeout
    return CallEnded(call, connections.get(call.caller_sid), connections.get(call.target_sid), seconds)


def recorded_fields(call: Call) -> RecordedRequest | ToolFields:
    """Return the fields of a request that may be recorded: only the tool of a large one that is forgotten."""
    envelope = call.envelope
    if envelope is None:
        return ToolFields(call.identity.tool)
    return envelope.recorded or read_tool(envelope.body)


def answered_size(outcome: Outcome | None) -> int:
    """The bytes of an answer."""
    return outcome.size if isinstance(outcome, Answer | BinaryAnswer) else 0


def result_of(event: EventSpec, outcome: Outcome) -> CallResult:
    """Return how a request ended, in one word."""
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


# Tells observers what happened, and gives the facts of it as one flat object.

_audit = logging.getLogger("a2c_smcp.audit")

_SENT_AGAIN = 5.0  # an agent waits a second at most, and has lost its connection for as long at most
_MOST_HELD, _EACH = 16 * 1024 * 1024, 2048  # bytes: of all, and of each beside its text
_RefusedKey: TypeAlias = tuple[str, str | None, str | None]
"""A call that may come again: principal, agent and `req_id`."""

Observer: TypeAlias = Callable[[Observed], None]
Recorded: TypeAlias = Call | Observed
"""The values that recorders receive: for a request that has ended, the call itself."""

Recorder: TypeAlias = Callable[[Sequence[Recorded]], None]


class RefusedCalls:
    """Tool calls that were refused with 503 before they ran, such as in an outage of the shared store.

    An agent sends such a call again, under its `req_id`. So one that is not seen again for some seconds is given to
    `record`; otherwise its next end stands for it: a call has one end.
    """

    def __init__(self, record: Callable[[Recorded], None]) -> None:
        self._record = record
        self._held: dict[_RefusedKey, tuple[Call | EventRefused, asyncio.TimerHandle]] = {}
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._held)

    def holds(self, refused: Call | EventRefused) -> bool:
        """True if it is recorded later, or not at all."""
        event = refused.event
        if isinstance(refused, Call):
            key: _RefusedKey = (refused.caller.owner, refused.caller.name, refused.req_id)
            ended = refused.result and refused.result[1:]
        else:
            named, ended = refused.name_in_fields, (refused.error.code, refused.error.outcome)
            key = (refused.connection.principal.id, named("agent"), named("req_id"))
        is_passing = event and event.is_call and ended == (Unavailable.code, "not_run")
        self.sent_again(key)
        if not (is_passing and key[1] and key[2] and self._size + refused.size + _EACH <= _MOST_HELD):
            return False
        self._size += refused.size + _EACH
        self._held[key] = refused, asyncio.get_running_loop().call_later(_SENT_AGAIN, self._give_up, key)
        return True

    def sent_again(self, key: _RefusedKey) -> None:
        """The call has come again."""
        if held := self._held.pop(key, None):
            held[1].cancel()
            self._size -= held[0].size + _EACH

    def close(self) -> None:
        """Record all."""
        for key in list(self._held):
            self._give_up(key, 0.0)

    def _give_up(self, key: _RefusedKey, waited: float = _SENT_AGAIN) -> None:
        refused, _ = self._held[key]
        self.sent_again(key)
        if isinstance(refused, Call):
            refused.until += waited  # its duration ends with its answer
        self._record(refused)


class Observation(Observers[Observed]):
    """The observers and recorders of one Server. The log is always told, of what does not happen often.

    `follows_requests`: true if observers or recorders want the end of each request. Recorders are called once in a turn
    of the event loop, or `at_once`: a recorder that must be told before an answer leaves needs that, unless the web
    server calls `settle` before it writes to a socket.
    """

    at_once = False

    def __init__(self) -> None:
        super().__init__()
        self._recorders: tuple[Recorder, ...] = ()
        self._gathered: list[Recorded] = []
        self.refused_calls = RefusedCalls(self._record)
        self.add(_log)

    def add(self, observer: Observer, *, often: bool = False) -> None:
        super().add(observer, often=often)
        self.follows_requests = self.is_watched or bool(self._recorders)

    def remove(self, observer: Observer) -> None:
        super().remove(observer)
        self.follows_requests = self.is_watched or bool(self._recorders)

    def record(self, recorder: Recorder) -> None:
        """Adds a recorder, until it is dropped."""
        self._recorders = (*self._recorders, recorder)
        self.follows_requests = True

    def drop(self, recorder: Recorder) -> None:
        self.refused_calls.close()
        self.settle()
        self._recorders = tuple(each for each in self._recorders if each != recorder)
        self.follows_requests = self.is_watched or bool(self._recorders)

    def report(self, happened: Observed) -> None:
        super().report(happened)
        if self._recorders:
            self._record(happened)

    def report_refused(self, refused: EventRefused | McpCallRefused) -> None:
        """Report a request that was refused before it began, if there are observers who `follows_requests`."""
        if self.is_watched:
            self.report_often(refused)
        if self._recorders and not (isinstance(refused, EventRefused) and self.refused_calls.holds(refused)):
            self._record(refused)

    def report_ended(self, call: Call, connections: Connections) -> None:
        """Report the end of a request, which has a `result`. Call it only if `follows_requests`."""
        if self.is_watched:
            self.report_often(call_ended(call, connections))
        if self._recorders and not (call.result is not None and call.result.code and self.refused_calls.holds(call)):
            self._gathered.append(call)
            if call.size >= LARGE_CALL:
                self.settle()  # after this the call forgets its request
            elif len(self._gathered) == 1:
                self._settle_in_time()

    def _record(self, happened: Recorded) -> None:
        self._gathered.append(happened)
        if len(self._gathered) == 1:
            self._settle_in_time()

    def _settle_in_time(self) -> None:
        if self.at_once:
            self.settle()
        else:  # at the end of the turn, if nothing is written to a socket before
            asyncio.get_running_loop().call_soon(self.settle)

    def settle(self) -> None:
        """Give recorders everything since the last time."""
        if gathered := self._gathered:
            self._gathered = []
            for recorder in self._recorders:
                tell(recorder, gathered)


def _log(happened: Observed) -> None:
    """The line in the log: `joined office='desk' role='agent' name='planner'`. Names hold no control characters."""
    if _audit.isEnabledFor(logging.INFO):
        facts = happened.facts()
        line = " ".join((facts["event"], *(f"{name}={fact!r}" for name, fact in facts.items() if name != "event")))
        _audit.info("%s", line, extra={"facts": facts})
