"""The table of what is observed on a Computer: a class each, with its facts, its audit line, and what it counts.

`computer.observation.add(observer)` adds a function that takes one of these classes: the audit file, the metrics, the
owner's console. With `often=True` it also receives calls. It is called in the event loop, when the thing happens and
before its answer leaves; it must not wait, nor change anything.

A tool call that was begun leaves one `ToolCallBegun` and one `ToolCallEnded`, whatever ends it; its duplicates leave
nothing. One that is refused before it begins leaves one `ToolCallEnded`, or, if it cannot even be read, one
`AgentRequestRefused` that `is_call`.

`by` is the one who answered: `client` is the person at the MCP client. For the owner it is `DecisionFor.by` or
`Answer.by` of the function that asks, such as `terminal` or `console`, else `owner`. `agent` is the agent that calls.
`grant` and `configuration` (`--yes`) have allowed the call without asking; with `nobody`, there was nobody to ask. A
question that was asked has two entries, one for the question and one for the answer. `waits`: a call waits for the
answer meanwhile; it does not if the question has left as its result (`questions: "result"`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

from a2c_smcp.audit.observers import Facts, Observed, Observers, known
from a2c_smcp.computer.calls.definitions import ToolChange
from a2c_smcp.computer.calls.in_flight import Outcome, size_of
from a2c_smcp.computer.calls.incoming import CallClock, IncomingCall
from a2c_smcp.computer.calls.table import ToolRoute
from a2c_smcp.computer.consent.approval import ApprovalRequest, Caller
from a2c_smcp.computer.consent.decision import Verdict
from a2c_smcp.device_events import SEALED_EVENT
from a2c_smcp.errors import SMCPError
from a2c_smcp.protocol.events import OLDER_FIELDS
from a2c_smcp.protocol.names import MAX_NAME
from a2c_smcp.protocol.questions import Question
from a2c_smcp.protocol.results import CallResult, call_result
from a2c_smcp.smcp import TOOL_CALL_EVENT
from a2c_smcp.telemetry.metrics import Metrics

_OWNER = "owner"


class ToolCallBegun(Observed):
    """A tool call was taken. It may still have to wait for approval."""

    call: IncomingCall

    def facts(self) -> Facts:
        return known("call begun", **_of(self.call.caller), req_id=self.call.req_id, tool=self.call.name)

    def entry(self) -> None:
        """A call has one line, at its end."""


class ToolCallEnded(Observed):
    """A tool call has its result, which is about to leave. Without a `server`, there is no such tool.

    `tool` is the name that the agent used, `own_name` the one that its MCP server gives it. `sent` and `answered` are
    sizes of arguments and result in bytes. `clock` has how much of its time the call waited, and the tool ran.
    """

    call: IncomingCall
    server: str | None
    own_name: str | None
    result: CallResult
    seconds: float
    clock: CallClock
    sent: int
    answered: int

    @property
    def trace(self) -> str | None:
        """The trace that the call belongs to: the W3C `traceparent` that its caller has sent."""
        found = self.call.options.meta.get("traceparent") if self.call.options else None
        return found if isinstance(found, str) and len(found) <= 128 and found.isprintable() else None

    def facts(self) -> Facts:
        call, result = self.call, self.result
        alias = self.own_name if self.own_name != call.name else None
        return known(
            "call",
            **_of(call.caller),
            req_id=call.req_id,
            server=self.server,
            tool=call.name,
            own_name=alias,
            outcome=result.outcome,
            end=result.end,
            code=result.code,
            ran=result.ran,
            seconds=self.seconds,
            waited_seconds=self.clock.waited,
            run_seconds=self.clock.ran,
            bytes_in=self.sent,
            bytes_out=self.answered,
            trace=self.trace,
        )

    def entry(self) -> Facts:
        def in_ms(name: str, value: Any) -> tuple[str, Any]:
            head, found, _ = name.rpartition("seconds")
            return (f"{head}ms", round(value * 1000, 3)) if found else (name, value)

        return dict(in_ms(*fact) for fact in self.facts().items())

    def count(self, metrics: Metrics) -> None:
        metrics.histogram("a2c_computer_call_duration_seconds").observe(self.seconds)
        metrics.histogram("a2c_computer_call_waited_seconds").observe(self.clock.waited)
        if self.clock.ran is not None:
            metrics.histogram("a2c_computer_call_run_seconds").observe(self.clock.ran)
        metrics.count("a2c_computer_calls_total", self.result.outcome)


class AgentRequestRefused(Observed):
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

    def facts(self) -> Facts:
        why = {"code": self.code, "reason": self.reason}
        if not self.is_call:
            return known("request refused", request=self.request, **_of(self.caller), req_id=self.req_id, **why)
        return known(
            "call",
            **_of(self.caller),
            tool=self.tool,
            sealed=self.is_sealed or None,
            outcome=call_result(self.code).outcome,
            req_id=self.req_id,
            **why,
        )

    def count(self, metrics: Metrics) -> None:
        metrics.count("a2c_computer_refused_total", str(self.code))


class CancelHeard(Observed):
    """An agent cancels a call."""

    caller: Caller
    req_id: str

    def facts(self) -> Facts:
        return known("cancel", **_of(self.caller), req_id=self.req_id)


class ApprovalAsked(Observed):
    """A person is asked whether a call may run: the owner, or the person at the MCP client."""

    request: ApprovalRequest
    req_id: str
    of: Literal["owner", "client"]
    waits: bool = True

    def facts(self) -> Facts:
        return known("approval asked", **_of_request(self.request), req_id=self.req_id, of=self.of)

    def count(self, metrics: Metrics) -> None:
        metrics.count("a2c_computer_approvals_waiting", by=self.waits)


class ApprovalAnswered(Observed):
    """The end of an approval. `decision` is one of `Decision`, or `none` (no answer)."""

    request: ApprovalRequest
    req_id: str
    decision: str
    by: str
    waits: bool = True

    def facts(self) -> Facts:
        return known(
            "approval", **_of_request(self.request), req_id=self.req_id, outcome=self.decision, by=self.by or _OWNER
        )

    def count(self, metrics: Metrics) -> None:
        metrics.count("a2c_computer_approvals_waiting", by=-self.waits)
        metrics.count("a2c_computer_approvals_total", self.by or _OWNER, self.decision)


class PolicyDecided(Observed):
    """The owner's rules have decided on a call: `allow`, `ask` or `deny`."""

    call: IncomingCall
    server: str
    then: str
    rule: str

    def facts(self) -> Facts:
        about = {"req_id": self.call.req_id, "server": self.server, "tool": self.call.name}
        return known("policy", **_of(self.call.caller), **about, outcome=self.then, rule=self.rule)


class QuestionAsked(Observed):
    """A tool asks something. `of` is who is asked."""

    question: Question
    of: Literal["owner", "agent"]
    waits: bool = True

    def facts(self) -> Facts:
        return known("question asked", **_of_question(self.question), of=self.of)

    def count(self, metrics: Metrics) -> None:
        metrics.count("a2c_computer_questions_waiting", by=self.waits)


class QuestionAnswered(Observed):
    """The end of a question: `accept`, `decline`, `cancel`, or `none` (no answer)."""

    question: Question
    action: str
    by: str
    waits: bool = True

    def facts(self) -> Facts:
        return known("question", **_of_question(self.question), outcome=self.action, by=self.by or _OWNER)

    def count(self, metrics: Metrics) -> None:
        metrics.count("a2c_computer_questions_waiting", by=-self.waits)
        metrics.count("a2c_computer_questions_total", self.by or _OWNER, self.action)


class SignInEnded(Observed):
    """The owner has signed in to an MCP server, or out, or has failed to."""

    server: str
    action: Literal["in", "out"]
    is_done: bool

    def facts(self) -> Facts:
        event = "sign-in" if self.action == "in" else "sign-out"
        return known(event, server=self.server, outcome="ok" if self.is_done else "error")


class ConfigShown(Observed):
    """An agent has read the configuration of this computer."""

    caller: Caller
    req_id: str

    def facts(self) -> Facts:
        return known("config read", **_of(self.caller), req_id=self.req_id)


class ToolDefinitionChanged(Observed):
    """The definition of a tool is no longer the pinned one. `asks`: it needs approval again."""

    server: str
    tool: str
    fields: tuple[str, ...]
    asks: bool

    def facts(self) -> Facts:
        outcome = "asks" if self.asks else "told"
        return known("tool changed", server=self.server, tool=self.tool, fields=list(self.fields), outcome=outcome)


class ServerStateChanged(Observed):
    """The state of an MCP server. `reason` has no secrets."""

    server: str
    state: str
    reason: str

    def facts(self) -> Facts:
        return known("server", server=self.server, state=self.state, reason=self.reason or None)


class BlobStored(Observed):
    """An agent has sent a file, which is in the landing folder now."""

    caller: Caller
    size: int
    sha256: str

    def facts(self) -> Facts:
        return known("file stored", **_of(self.caller), size=self.size, sha256=self.sha256)

    def count(self, metrics: Metrics) -> None:
        metrics.count("a2c_computer_blobs_total", "stored")
        metrics.count("a2c_computer_blob_bytes_total", "stored", by=self.size)


class BlobFetched(Observed):
    """An agent has begun to fetch a large content."""

    caller: Caller
    size: int

    def facts(self) -> Facts:
        return known("content fetched", **_of(self.caller), size=self.size)

    def count(self, metrics: Metrics) -> None:
        metrics.count("a2c_computer_blobs_total", "fetched")
        metrics.count("a2c_computer_blob_bytes_total", "fetched", by=self.size)


class FreezeChanged(Observed):
    """The owner has frozen this computer, or released it. `where`: prompt, console, command or program."""

    is_frozen: bool
    reason: str
    where: str

    def facts(self) -> Facts:
        return known("freeze" if self.is_frozen else "thaw", reason=self.reason or None, by=_OWNER, where=self.where)


class SeatChanged(Observed):
    """This computer has joined its office, or has lost the connection, or was refused."""

    office: str
    state: Literal["joined", "lost", "refused"]
    code: int | None = None

    def facts(self) -> Facts:
        return known("connection", office=self.office, outcome=self.state, code=self.code)

    def count(self, metrics: Metrics) -> None:
        metrics.counter("a2c_computer_connected").value = float(self.state == "joined")


class ComputerObservation(Observers[Observed]):
    """The observers of one Computer, and how its parts report."""

    def call_ended(
        self, call: IncomingCall, began: float, clock: CallClock, route: ToolRoute | None, outcome: Outcome
    ) -> None:
        """`began` is by `time.monotonic`."""
        server, own_name = (route.server, route.tool) if route else (None, None)
        sizes = size_of(call.params), 0 if isinstance(outcome, SMCPError) else size_of(outcome)
        took, result = time.monotonic() - began, _result_of(outcome)
        self.report_often(ToolCallEnded(call, server, own_name, result, took, clock, *sizes))

    def policy_decided(self, call: IncomingCall, route: ToolRoute, verdict: Verdict) -> None:
        self.report(PolicyDecided(call, route.server, verdict.then, verdict.rule))

    def tool_changed(self, server: str, tool: str, change: ToolChange) -> None:
        self.report(ToolDefinitionChanged(server, tool, tuple(change.fields), change.asks))

    def signed_in(self, server: str, is_done: bool) -> None:
        self.report(SignInEnded(server, "in", is_done))

    def signed_out(self, server: str) -> None:
        self.report(SignInEnded(server, "out", True))

    def server_changed(self, server: str, state: str, reason: str) -> None:
        self.report(ServerStateChanged(server, state, reason))

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


def _of(caller: Caller) -> dict[str, Any]:
    """Return the facts of a caller. The owner calls from no office."""
    return {
        "office": caller.office or None,
        "agent": caller.agent or None,
        "client": caller.client or None,
        "device": caller.device or None,
    }


def _of_request(request: ApprovalRequest) -> dict[str, Any]:
    return {**_of(request.caller), "server": request.server, "tool": request.name, "rule": request.rule or None}


def _of_question(question: Question) -> dict[str, Any]:
    where = {name: getattr(question, name) or None for name in ("office", "agent", "client", "tool", "req_id")}
    return {**where, "server": question.server}
