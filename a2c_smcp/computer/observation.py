"""What happens on a Computer, reported as typed values to observers in the same process.

`computer.observation.add(observer)` adds a function that takes one of the classes of `ComputerHappened`: the audit
file, the metrics, the owner's console. With `often=True` it is also told of calls. It is called in the event loop, when
the thing happens and before its answer leaves; it must not wait, nor change anything. Every class has `facts()`: a
flat object for JSON, without secrets, arguments or results.

A tool call that was begun leaves one `ToolCallBegun` and one `ToolCallEnded`, whatever ends it; its duplicates leave
nothing. One that is refused before it begins leaves one `ToolCallEnded`, or, if it cannot even be read, one
`AgentRequestRefused` that `is_call`.

Who answered (`by`): `client` is the person at the MCP client. For the owner it is what the function that asks has put
into `DecisionFor.by` or `Answer.by`, such as `terminal` or `console`, else `owner`. `agent` is the agent that calls.
`grant` and `configuration` (`--yes`) have allowed the call without asking; `nobody`: there is nobody to ask. What was
put to somebody has an entry that it was asked, and one for the answer. `waits`: a call waits for the answer meanwhile;
it does not if the question has left as its result (`questions: "result"`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from a2c_smcp.audit.observers import Observers
from a2c_smcp.computer.approval import ApprovalRequest, Caller
from a2c_smcp.computer.calls.in_flight import Outcome, size_of
from a2c_smcp.computer.calls.incoming import IncomingCall
from a2c_smcp.computer.policy.decision import Verdict
from a2c_smcp.computer.tools.definitions import ToolChange
from a2c_smcp.computer.tools.table import ToolRoute
from a2c_smcp.device_events import SEALED_EVENT
from a2c_smcp.errors import SMCPError
from a2c_smcp.protocol.events import OLDER_FIELDS
from a2c_smcp.protocol.names import MAX_NAME
from a2c_smcp.protocol.questions import Question
from a2c_smcp.protocol.results import CallResult, call_result
from a2c_smcp.smcp import TOOL_CALL_EVENT

__all__ = [
    "AgentRequestRefused",
    "ApprovalAnswered",
    "ApprovalAsked",
    "BlobFetched",
    "BlobStored",
    "CancelHeard",
    "ComputerHappened",
    "ComputerObservation",
    "ConfigShown",
    "PolicyDecided",
    "QuestionAnswered",
    "QuestionAsked",
    "SeatChanged",
    "ServerStateChanged",
    "SignInEnded",
    "ToolCallBegun",
    "ToolCallEnded",
    "ToolDefinitionChanged",
]


class ToolCallBegun(msgspec.Struct, eq=False):
    """A tool call was taken. It may still have to wait for approval."""

    call: IncomingCall

    def facts(self) -> dict[str, Any]:
        return _facts("call begun", **_of(self.call.caller), req_id=self.call.req_id, tool=self.call.name)


class ToolCallEnded(msgspec.Struct, eq=False):
    """A tool call has its result, which is about to leave. Without a `server`, there is no such tool.

    `tool` is the name that the agent used, `own_name` the one that its MCP server gives it. `sent` and `answered` are
    sizes of arguments and result in bytes.
    """

    call: IncomingCall
    server: str | None
    own_name: str | None
    result: CallResult
    seconds: float
    sent: int
    answered: int

    @property
    def trace(self) -> str | None:
        """The trace that the call belongs to: the W3C `traceparent` that its caller has sent."""
        found = self.call.options.meta.get("traceparent") if self.call.options else None
        return found if isinstance(found, str) and len(found) <= 128 and found.isprintable() else None

    def facts(self) -> dict[str, Any]:
        call, result = self.call, self.result
        alias = self.own_name if self.own_name != call.name else None
        return _facts(
            "call",
            **_of(call.caller),
            req_id=call.req_id,
            server=self.server,
            tool=call.name,
            own_name=alias,
            outcome=result.outcome,
            code=result.code,
            ran=result.ran,
            seconds=self.seconds,
            bytes_in=self.sent,
            bytes_out=self.answered,
            trace=self.trace,
        )


class AgentRequestRefused(msgspec.Struct, eq=False):
    """A request was refused, and no call began. `request` is the name of its event."""

    caller: Caller
    request: str
    code: int
    reason: str
    req_id: str | None = None
    tool: str | None = None
    is_call: bool = False
    is_sealed: bool = False

    @classmethod
    def of(cls, office: str, request: str, data: Mapping[str, Any], error: SMCPError) -> AgentRequestRefused:
        """Of a request that may be wrong: only names that are some are taken from it."""
        is_sealed = request == SEALED_EVENT
        caller = Caller(office, _name_in(data, "agent") or _name_in(data, OLDER_FIELDS["agent"]) or "")
        about = _name_in(data, "req_id"), _name_in(data, "tool_name")
        return cls(caller, request, error.code, error.about, *about, is_sealed or request == TOOL_CALL_EVENT, is_sealed)

    def facts(self) -> dict[str, Any]:
        told = {"req_id": self.req_id, "code": self.code, "reason": self.reason}
        if not self.is_call:
            return _facts("request refused", request=self.request, **_of(self.caller), **told)
        sealed = {"sealed": True} if self.is_sealed else {}
        outcome = call_result(self.code).outcome
        return {
            **_facts("call", **_of(self.caller)),
            "tool": self.tool,
            **sealed,
            **_facts("", outcome=outcome, **told),
        }


class CancelHeard(msgspec.Struct, eq=False):
    """An agent cancels a call."""

    caller: Caller
    req_id: str

    def facts(self) -> dict[str, Any]:
        return _facts("cancel", **_of(self.caller), req_id=self.req_id)


class ApprovalAsked(msgspec.Struct, eq=False):
    """A person is asked whether a call may run: the owner, or the person at the MCP client."""

    request: ApprovalRequest
    req_id: str
    of: Literal["owner", "client"]
    waits: bool = True

    def facts(self) -> dict[str, Any]:
        return _facts("approval asked", **_of_request(self.request), req_id=self.req_id, of=self.of)


class ApprovalAnswered(msgspec.Struct, eq=False):
    """How that ended. `decision` is `yes`, `no`, `always`, `always_for_agent`, or `none`: nobody has answered."""

    request: ApprovalRequest
    req_id: str
    decision: str
    by: str
    waits: bool = True

    def facts(self) -> dict[str, Any]:
        return _facts(
            "approval", **_of_request(self.request), req_id=self.req_id, outcome=self.decision, by=self.by or "owner"
        )


class PolicyDecided(msgspec.Struct, eq=False):
    """The owner's rules have decided on a call: `allow`, `ask` or `deny`."""

    call: IncomingCall
    server: str
    then: str
    rule: str

    def facts(self) -> dict[str, Any]:
        about = {"req_id": self.call.req_id, "server": self.server, "tool": self.call.name}
        return _facts("policy", **_of(self.call.caller), **about, outcome=self.then, rule=self.rule)


class QuestionAsked(msgspec.Struct, eq=False):
    """A tool asks something. `of` is who is asked."""

    question: Question
    of: Literal["owner", "agent"]
    waits: bool = True

    def facts(self) -> dict[str, Any]:
        return _facts("question asked", **_of_question(self.question), of=self.of)


class QuestionAnswered(msgspec.Struct, eq=False):
    """How that ended: `accept`, `decline`, `cancel`, or `none`: nobody has answered."""

    question: Question
    action: str
    by: str
    waits: bool = True

    def facts(self) -> dict[str, Any]:
        return _facts("question", **_of_question(self.question), outcome=self.action, by=self.by or "owner")


class SignInEnded(msgspec.Struct, eq=False):
    """The owner has signed in to an MCP server, or out, or has failed to."""

    server: str
    action: Literal["in", "out"]
    is_done: bool

    def facts(self) -> dict[str, Any]:
        event = "sign-in" if self.action == "in" else "sign-out"
        return _facts(event, server=self.server, outcome="ok" if self.is_done else "error")


class ConfigShown(msgspec.Struct, eq=False):
    """An agent has read the configuration of this computer."""

    caller: Caller
    req_id: str

    def facts(self) -> dict[str, Any]:
        return _facts("config read", **_of(self.caller), req_id=self.req_id)


class ToolDefinitionChanged(msgspec.Struct, eq=False):
    """The definition of a tool is no longer the pinned one. `asks`: it needs approval again."""

    server: str
    tool: str
    fields: tuple[str, ...]
    asks: bool

    def facts(self) -> dict[str, Any]:
        outcome = "asks" if self.asks else "told"
        return _facts("tool changed", server=self.server, tool=self.tool, fields=list(self.fields), outcome=outcome)


class ServerStateChanged(msgspec.Struct, eq=False):
    """The state of an MCP server. `reason` has no secrets."""

    server: str
    state: str
    reason: str

    def facts(self) -> dict[str, Any]:
        return _facts("server", server=self.server, state=self.state, reason=self.reason or None)


class BlobStored(msgspec.Struct, eq=False):
    """An agent has sent a file, which is in the landing folder now."""

    caller: Caller
    size: int
    sha256: str

    def facts(self) -> dict[str, Any]:
        return _facts("file stored", **_of(self.caller), size=self.size, sha256=self.sha256)


class BlobFetched(msgspec.Struct, eq=False):
    """An agent has begun to fetch a large content."""

    caller: Caller
    size: int

    def facts(self) -> dict[str, Any]:
        return _facts("content fetched", **_of(self.caller), size=self.size)


class SeatChanged(msgspec.Struct, eq=False):
    """This computer has joined its office, or has lost the connection, or was refused."""

    office: str
    state: Literal["joined", "lost", "refused"]
    code: int | None = None

    def facts(self) -> dict[str, Any]:
        return _facts("connection", office=self.office, outcome=self.state, code=self.code)


ComputerHappened: TypeAlias = (
    ToolCallBegun
    | ToolCallEnded
    | AgentRequestRefused
    | CancelHeard
    | ApprovalAsked
    | ApprovalAnswered
    | PolicyDecided
    | QuestionAsked
    | QuestionAnswered
    | SignInEnded
    | ConfigShown
    | ToolDefinitionChanged
    | ServerStateChanged
    | BlobStored
    | BlobFetched
    | SeatChanged
)


class ComputerObservation(Observers[ComputerHappened]):
    """The observers of one Computer, and how its parts report."""

    def call_ended(self, call: IncomingCall, began: float, route: ToolRoute | None, outcome: Outcome) -> None:
        """`began` is by `time.monotonic`."""
        server, own_name = (route.server, route.tool) if route else (None, None)
        sizes = size_of(call.params), 0 if isinstance(outcome, SMCPError) else size_of(outcome)
        took, result = time.monotonic() - began, _result_of(outcome)
        self.report_often(ToolCallEnded(call, server, own_name, result, took, *sizes))

    def policy_decided(self, call: IncomingCall, route: ToolRoute, verdict: Verdict) -> None:
        self.report(PolicyDecided(call, route.server, verdict.then, verdict.rule))

    def tool_changed(self, server: str, tool: str, change: ToolChange) -> None:
        self.report(ToolDefinitionChanged(server, tool, tuple(change.fields), change.asks))

    def signed_in(self, server: str, is_done: bool) -> None:
        self.report(SignInEnded(server, "in", is_done))

    def blob_fetched(self, caller: Caller, size: int) -> None:
        self.report(BlobFetched(caller, size))

    def blob_stored(self, caller: Caller, size: int, sha256: str) -> None:
        self.report(BlobStored(caller, size, sha256))


def _result_of(outcome: Outcome) -> CallResult:
    if isinstance(outcome, SMCPError):
        return call_result(outcome.code, ran=outcome.outcome)
    error = SMCPError.from_wire(outcome) if "error" in outcome else None
    is_error = bool(outcome.get("isError"))
    return call_result(error.code, ran=error.outcome) if error else call_result(None, is_error=is_error)


def _name_in(data: Mapping[str, Any], field: str) -> str | None:
    value = data.get(field)
    return value if isinstance(value, str) and len(value) <= MAX_NAME and value.isprintable() else None


def _facts(event: str, **facts: object) -> dict[str, Any]:
    known = {name: fact for name, fact in facts.items() if fact is not None}
    return {"event": event, **known} if event else known


def _of(caller: Caller) -> dict[str, Any]:
    """Who calls. The owner calls from no office."""
    return {
        "office": caller.office or None,
        "agent": caller.agent or None,
        "client": caller.client or None,
        "device": caller.device or None,
    }


def _of_request(request: ApprovalRequest) -> dict[str, Any]:
    return {**_of(request.caller), "server": request.server, "tool": request.name, "rule": request.rule or None}


def _of_question(question: Question) -> dict[str, Any]:
    where = {"office": question.office, "agent": question.agent, "client": question.client or None}
    return {**where, "server": question.server, "tool": question.tool, "req_id": question.req_id}
