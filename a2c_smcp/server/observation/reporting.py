"""Tells observers what happened, and gives the facts of it as one flat object."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any, Literal, TypeAlias, get_args

from a2c_smcp.audit.observers import Observers, tell
from a2c_smcp.protocol.offices import Member
from a2c_smcp.protocol.results import call_result
from a2c_smcp.server.calls.call import LARGE_CALL, Call
from a2c_smcp.server.connections import Connection, Connections
from a2c_smcp.server.observation.happened import (
    CallBegun,
    CallEnded,
    CancelAsked,
    ClientConnected,
    ClientGone,
    Displaced,
    EventRefused,
    HandshakeRefused,
    Happened,
    Joined,
    Left,
    McpCallRefused,
    McpClientSeen,
    OperatorActed,
    ReaderCut,
    TakenOver,
    Told,
    Updated,
    call_ended,
)

__all__ = ["EVENT_NAMES", "Observation", "Observer", "Recorded", "Recorder", "describe"]

_audit = logging.getLogger("a2c_smcp.audit")

Observer: TypeAlias = Callable[[Happened], None]
Recorded: TypeAlias = Call | Happened
"""What recorders are told: of a request that has ended, the call itself."""

Recorder: TypeAlias = Callable[[Sequence[Recorded]], None]

# fmt: off
EventName: TypeAlias = Literal[
    "call", "call begun", "cancel", "connected", "disconnected", "displaced", "joined", "left", "mcp client",
    "operator", "refused", "request", "request refused", "slow reader cut", "taken over", "tell", "update",
]
# fmt: on
EVENT_NAMES: tuple[EventName, ...] = get_args(EventName)
"""What `describe` says as `event`."""


class Observation(Observers[Happened]):
    """The observers and recorders of one Server. The log is always told, of what does not happen often.

    `follows_requests`: whether somebody wants to be told how each request has ended. Recorders are told once in a turn
    of the event loop, or `at_once`: a recorder that must be told before an answer leaves needs that, unless the web
    server calls `settle` before it writes to a socket.
    """

    at_once = False

    def __init__(self) -> None:
        super().__init__()
        self._recorders: tuple[Recorder, ...] = ()
        self._gathered: list[Recorded] = []
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
        self.settle()
        self._recorders = tuple(each for each in self._recorders if each != recorder)
        self.follows_requests = self.is_watched or bool(self._recorders)

    def report(self, happened: Happened) -> None:
        super().report(happened)
        if self._recorders:
            self._record(happened)

    def report_refused(self, refused: EventRefused | McpCallRefused) -> None:
        """Tells that a request was refused before it began, if somebody `follows_requests`."""
        if self.is_watched:
            self.report_often(refused)
        if self._recorders:
            self._record(refused)

    def report_ended(self, call: Call, connections: Connections) -> None:
        """Tells how a request has ended, which has a `result`. Call it only if `follows_requests`."""
        if self.is_watched:
            self.report_often(call_ended(call, connections))
        if self._recorders:
            self._gathered.append(call)
            if call.size >= LARGE_CALL:
                self.settle()  # after this the call forgets its request
            elif len(self._gathered) == 1:
                self._settle_in_time()

    def _record(self, happened: Happened) -> None:
        self._gathered.append(happened)
        if len(self._gathered) == 1:
            self._settle_in_time()

    def _settle_in_time(self) -> None:
        if self.at_once:
            self.settle()
        else:  # at the end of the turn, if nothing is written to a socket before
            asyncio.get_running_loop().call_soon(self.settle)

    def settle(self) -> None:
        """Tells recorders what has happened since the last time."""
        if gathered := self._gathered:
            self._gathered = []
            for recorder in self._recorders:
                tell(recorder, gathered)


def _log(happened: Happened) -> None:
    """The line in the log: `joined office='desk' role='agent' name='planner'`. Names hold no control characters."""
    if _audit.isEnabledFor(logging.INFO):
        facts = describe(happened)
        line = " ".join((facts["event"], *(f"{name}={fact!r}" for name, fact in facts.items() if name != "event")))
        _audit.info("%s", line, extra={"facts": facts})


@singledispatch
def describe(happened: Happened) -> dict[str, Any]:
    """The facts as a flat object: `event`, and who, from where, which office. Facts that are not known are left out.

    It has no secrets and no payloads: neither credentials nor sids, arguments or results.
    """
    raise NotImplementedError(type(happened).__name__)


@describe.register
def _(happened: ClientConnected) -> dict[str, Any]:
    return _facts("connected", **_who(happened.connection), version=happened.connection.version)


@describe.register
def _(happened: HandshakeRefused) -> dict[str, Any]:
    return _facts(
        "refused",
        code=happened.error.code,
        reason=happened.error.about,
        principal=happened.principal,
        device=happened.device,
        address=happened.address,
    )


@describe.register
def _(happened: ClientGone) -> dict[str, Any]:
    return _facts("disconnected", **_who(happened.connection), reason=happened.reason)


@describe.register
def _(happened: Joined) -> dict[str, Any]:
    return _facts("joined", **_seat(happened.seat), **_where(happened.connection))


@describe.register
def _(happened: Left) -> dict[str, Any]:
    return _facts("left", **_seat(happened.seat), **_where(happened.connection), lost=happened.is_lost or None)


@describe.register
def _(happened: TakenOver) -> dict[str, Any]:
    return _facts("taken over", **_seat(happened.seat), **_where(happened.connection))


@describe.register
def _(happened: Displaced) -> dict[str, Any]:
    return _facts("displaced", **_seat(happened.seat), code=happened.error.code, reason=happened.error.about)


@describe.register
def _(happened: CallBegun) -> dict[str, Any]:
    return _facts("call begun", **_call(happened.call), **_where(happened.connection))


@describe.register
def _(happened: CallEnded) -> dict[str, Any]:
    call, result = happened.call, happened.result
    tool: dict[str, Any] = {}
    if call.event.is_call:
        tool = {"tool": happened.tool} | ({"sealed": True} if call.event.is_sealed else {})
    sizes = {"bytes_in": happened.sent, "bytes_out": happened.answered}
    return {
        **_facts("call" if call.event.is_call else "request", **_call(call), **_where(happened.connection)),
        **tool,
        **_facts(None, outcome=result.outcome, code=result.code, ran=result.ran, seconds=happened.seconds, **sizes),
        **_facts(None, computer_device=happened.answered_by, trace=happened.trace),
    }


@describe.register
def _(happened: EventRefused) -> dict[str, Any]:
    event, named = happened.event, happened.name_in_fields
    result = call_result(happened.error.code, ran=happened.error.outcome)
    where = {"office": named("office_id"), "computer": named("computer")}
    if event is None or not event.is_call:
        who = {"role": named("role"), "name": named("name"), "agent": named("agent")}
        name = event.name if event else None
        why = {"code": result.code, "reason": happened.error.about}
        return _facts("request refused", request=name, **_who(happened.connection), **where, **who, **why)
    tool = {"tool": None, "sealed": True} if event.is_sealed else {"tool": named("tool_name")}
    who = {"agent": named("agent"), "req_id": named("req_id"), **_who(happened.connection)}
    return {
        **_facts("call", **where, **who),
        **tool,
        **_facts(None, outcome=result.outcome, code=result.code, ran=result.ran, bytes_in=happened.size),
        **_facts(None, reason=happened.error.about),
    }


@describe.register
def _(happened: CancelAsked) -> dict[str, Any]:
    offices = sorted(happened.offices) or None
    return _facts("cancel", req_id=happened.req_id, offices=offices, **_who(happened.connection))


@describe.register
def _(happened: Updated) -> dict[str, Any]:
    return _facts("update", request=happened.event.name, office=happened.office_id, **_who(happened.connection))


@describe.register
def _(happened: Told) -> dict[str, Any]:
    agent = {"office": happened.agent.office_id, "agent": happened.agent.name, "req_id": happened.req_id}
    return _facts("tell", request=happened.event.name, **agent, **_who(happened.connection))


@describe.register
def _(happened: ReaderCut) -> dict[str, Any]:
    who = _who(happened.connection) if happened.connection else {"address": happened.address}
    return _facts("slow reader cut", **who)


@describe.register
def _(happened: McpClientSeen) -> dict[str, Any]:
    seat = {"office": happened.office_id, "agent": happened.agent}
    return _facts("mcp client", **seat, client=happened.client, principal=happened.principal)


@describe.register
def _(happened: McpCallRefused) -> dict[str, Any]:
    result = call_result(happened.error.code, ran="not_run")
    who = {"office": happened.office_id, "agent": happened.agent, "principal": happened.principal}
    return {
        **_facts("call", **who, address=happened.address),
        "tool": happened.shown_tool,
        **_facts(None, outcome=result.outcome, code=result.code, ran=result.ran, reason=happened.error.about),
    }


@describe.register
def _(happened: OperatorActed) -> dict[str, Any]:
    return _facts("operator", action=happened.action, via=happened.via, address=happened.address, **happened.facts)


def _facts(event: EventName | None, **facts: object) -> dict[str, Any]:
    known = {name: fact for name, fact in facts.items() if fact is not None}
    return {"event": event, **known} if event else known


def _who(connection: Connection) -> dict[str, Any]:
    return {"principal": connection.principal.id, **_where(connection)}


def _where(connection: Connection | None) -> dict[str, Any]:
    return {"address": connection.address, "device": connection.principal.device} if connection else {}


def _seat(seat: Member) -> dict[str, Any]:
    return {"office": seat.office_id, "role": seat.role, "name": seat.name, "principal": seat.owner}


def _call(call: Call) -> dict[str, Any]:
    who = {"office": call.caller.office_id, "agent": call.caller.name, "principal": call.caller.owner}
    return {"request": call.event.name, **who, "computer": call.target.name, "req_id": call.req_id or None}
