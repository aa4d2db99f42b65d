"""The approval of a call: by the owner, or by the person at its MCP client (`--approve-by client`).

With `--approve-by client`, calls that can be asked are put to their MCP client, and only to it. All others go to the
owner, as without it.

MCP servers of 2026-07-28 that ask something end a call with a result, and the agent calls again with the server's own
state (`questions: "result"`). Such a request goes on with a call that was approved: the same tool with the same
arguments and the state that this call has returned. It is let through once (`_ApprovedRounds`).

With a question about a tool whose definition has changed, the difference is shown (`pins.py`). The owner's yes pins the
new definition; one at the MCP client is for this call only. If the definition changes meanwhile, nothing
runs. The agent gets the difference with the refusal, and in the `_meta` of the result.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from a2c_smcp.computer.calls.catalog import ToolCatalog
from a2c_smcp.computer.calls.definitions import CHANGED, ToolChange
from a2c_smcp.computer.calls.in_flight import digest_of
from a2c_smcp.computer.calls.incoming import IncomingCall
from a2c_smcp.computer.calls.table import ToolRoute
from a2c_smcp.computer.consent.approval import OWNER, ApprovalRequest, Approvals, Caller, DecisionFor
from a2c_smcp.computer.consent.decision import Verdict
from a2c_smcp.computer.consent.pins import PinnedTools
from a2c_smcp.computer.consent.risk import Risk
from a2c_smcp.computer.observation import ApprovalAnswered, ApprovalAsked, ComputerObservation
from a2c_smcp.computer.questions.client_approval import ClientApprovals, can_be_asked
from a2c_smcp.errors import ApprovalRefused, CallTimeout, ToolNotFound
from a2c_smcp.telemetry import conventions, tracing

_ROUND_TIME = 600.0  # seconds for the answers to an MCP server's questions
_MOST_ROUNDS = 256


class Approved(NamedTuple):
    """The call to run, or the `question` that is returned in its place. `change`: what was approved with it."""

    call: IncomingCall
    question: dict[str, Any] | None = None
    change: ToolChange | None = None

    def told(self, result: dict[str, Any]) -> dict[str, Any]:
        """The result of the call. The agent may still know the tool as it was: its change is in `_meta`."""
        if self.change is None:
            return result
        meta = result.get("_meta")
        return {**result, "_meta": {**(meta if isinstance(meta, dict) else {}), "a2c_changed": self.change.to_wire()}}


@dataclass(eq=False)
class CallApproval:
    """Decides whether a call may run, after asking if need be."""

    _approvals: Approvals
    _clients: ClientApprovals
    _catalog: ToolCatalog
    _pins: PinnedTools
    _observation: ComputerObservation
    _risk_of: Callable[[Caller, ToolRoute, dict[str, Any]], Awaitable[Risk]]
    _rounds: _ApprovedRounds = field(default_factory=lambda: _ApprovedRounds())

    def allows(
        self, call: IncomingCall, route: ToolRoute, shown: dict[str, Any], verdict: Verdict | None = None
    ) -> bool:
        """True if a call may run without asking. An answer to a question for approval is always examined."""
        if not self._approvals.allows(call.caller, route, verdict) or self._clients.is_state(call):
            return False
        if (verdict.then == "ask") if verdict else not route.meta.auto_apply:
            request = _request(call, route, shown, verdict, asyncio.get_running_loop().time())
            self._observation.report(ApprovalAnswered(request, call.req_id, "yes", "grant", waits=False))
            self._approvals.note_use(call.caller, route)
        self._note(call.caller, route)
        return True

    async def approve(
        self,
        call: IncomingCall,
        route: ToolRoute,
        shown: dict[str, Any],
        deadline: float,
        verdict: Verdict | None = None,
    ) -> Approved:
        """Ask for approval. `shown` are the arguments, masked. Raises `SMCPError`, or `TimeoutError`."""
        request = _request(call, route, shown, verdict, deadline)
        if self._clients.is_state(call):
            with self._answering(call, request, "client", waits=False) as given:
                answered = self._clients.answered(call, _tool(route), given.append)
            return Approved(answered, change=route.change)
        if self._rounds.take(call, route):
            return Approved(call)
        try:
            with tracing.span(conventions.approval, None, route.server, route.tool):
                if call.caller is not OWNER and (self._decider(route)[1] or self._approvals.are_by_client):
                    async with asyncio.timeout_at(deadline):
                        risk = await self._risk_of(call.caller, route, shown)
                    request = replace(request, risk=risk)
                approved = await self._ask(call, route, request, deadline, verdict)
        except ApprovalRefused as refusal:
            raise _with_change(refusal, route.change) from None
        if approved.question is None:
            self._note(call.caller, route)
        return approved

    def _note(self, caller: Caller, route: ToolRoute) -> None:
        if caller is not OWNER:
            self._approvals.memory.note(caller.known_as, caller.seat, route.server, route.tool)

    async def _ask(
        self, call: IncomingCall, route: ToolRoute, request: ApprovalRequest, deadline: float, verdict: Verdict | None
    ) -> Approved:
        if not (self._approvals.are_by_client and can_be_asked(call)):
            return await self._ask_owner(call, route, request, deadline, verdict)
        if call.options and call.options.questions == "result":
            question = self._clients.put(call, request, _tool(route), deadline)
            self._observation.report(ApprovalAsked(request, call.req_id, "client", waits=False))
            return Approved(call, question)
        self._observation.report(ApprovalAsked(request, call.req_id, "client"))
        with self._answering(call, request, "client") as given:
            async with asyncio.timeout_at(deadline):
                await self._clients.require(call, request, given.append)
        self.require_same(call, route)
        return Approved(call, change=route.change)

    async def _ask_owner(
        self, call: IncomingCall, route: ToolRoute, request: ApprovalRequest, deadline: float, verdict: Verdict | None
    ) -> Approved:
        """Ask the owner. A yes pins a changed definition, unless they call it themselves, and were not asked."""
        if route.asks_again:
            self._approvals.withdraw(route.server, route.tool)  # of this office, too, if it was joined meanwhile
        by, is_asked = self._decider(route)
        if is_asked:
            self._observation.report(ApprovalAsked(request, call.req_id, "owner"))
        with self._answering(call, request, by, waits=is_asked) as given:
            async with asyncio.timeout_at(deadline):
                await self._approvals.require(request, route, verdict, given.append)
        self.require_same(call, route)
        if route.change and call.caller.agent:
            self._pins.accept(route.server, route.tool, route.digest)
        if is_asked and call.caller is not OWNER:
            self._approvals.memory.allow(call.caller.known_as, route.server, route.tool, request.arguments)
            self._approvals.on_allowed()
        return Approved(call, change=route.change)

    def person_at_client(self, call: IncomingCall) -> str:
        """The person at the MCP client, in words, if the approval of a call is theirs."""
        return f"the person at {call.caller.who}" if self._approvals.are_by_client and can_be_asked(call) else ""

    def _decider(self, route: ToolRoute) -> tuple[str, bool]:
        """Return who decides in the owner's name, and True if a person is asked."""
        if not self._approvals.can_ask(route):
            return "nobody", False
        return ("configuration", False) if self._approvals.approves_all else ("owner", True)

    @contextmanager
    def _answering(
        self, call: IncomingCall, request: ApprovalRequest, by: str, *, waits: bool = True
    ) -> Iterator[list[DecisionFor]]:
        """Encloses the wait for an answer, which is put into the list. How it ended is reported."""
        given: list[DecisionFor] = []
        try:
            yield given
        except TimeoutError:
            person = "the owner" if by == "owner" else self.person_at_client(call)
            silent = CallTimeout(
                f"{person} did not answer within {call.timeout:g} s; nothing was run", outcome="not_run"
            )
            silent.details["reason"] = f"{by}_silent"
            raise silent from None
        finally:
            decision = given[0].decision if given else "none"
            word = decision if isinstance(decision, str) else "yes" if decision else "no"
            who = (given[0].by if given else "") or by
            self._observation.report(ApprovalAnswered(request, call.req_id, word, who, waits))

    def require_same(self, call: IncomingCall, route: ToolRoute, *, is_approved: bool = True) -> None:
        """Raise if the tool is no longer the one that was approved, or whose arguments were checked."""
        now = self._catalog.resolve(call.name)
        if (now.server, now.tool) != (route.server, route.tool):
            raise ToolNotFound(f"{call.name!r} has become another tool", toolId=call.name)
        if now.digest != route.digest and (is_approved or now.asks_again):
            self._approvals.withdraw(route.server, route.tool)
        elif now.schema is route.schema and now.hints == route.hints:
            return
        refusal = ApprovalRefused(f"the definition of {call.name!r} has changed since the call was made: call again")
        raise _with_change(refusal, now.change)

    def goes_on_later(self, call: IncomingCall, route: ToolRoute, result: Mapping[str, Any]) -> None:
        """An approved call has ended with an `InputRequiredResult`: the request that goes on with it is approved."""
        self._rounds.add(call, route, result.get("requestState"))

    def cancel(self, caller: Caller, req_id: str) -> None:
        self._clients.cancel(caller, req_id)

    def drop(self, matches: Callable[[Caller], bool]) -> None:
        """Drop what is kept for these agents."""
        self._clients.drop(matches)
        self._rounds.drop(matches)

    def close(self) -> None:
        self.drop(lambda caller: True)


def _request(
    call: IncomingCall, route: ToolRoute, shown: dict[str, Any], verdict: Verdict | None, deadline: float
) -> ApprovalRequest:
    rule, every_time = (verdict.rule, verdict.every_time) if verdict and verdict.is_by_rule else ("", False)
    changed = route.change.diff if route.change else ""
    until = time.time() + deadline - asyncio.get_running_loop().time()
    return ApprovalRequest(call.caller, call.name, route.server, route.tool, shown, changed, rule, every_time, until)


class _ApprovedRounds:
    """The states that approved calls have returned. Each lets one request through."""

    def __init__(self) -> None:
        self._until: OrderedDict[tuple[Caller, bytes], float] = OrderedDict()

    def add(self, call: IncomingCall, route: ToolRoute, state: object) -> None:
        self._until[_round(call, route, state)] = time.monotonic() + _ROUND_TIME
        while len(self._until) > _MOST_ROUNDS:
            self._until.popitem(last=False)

    def take(self, call: IncomingCall, route: ToolRoute) -> bool:
        """Use up the permit of an approved call. True if there was one."""
        options = call.options
        if options is None or options.input_responses is None:
            return False
        return self._until.pop(_round(call, route, options.request_state), 0.0) > time.monotonic()

    def drop(self, matches: Callable[[Caller], bool]) -> None:
        for key in [key for key in self._until if matches(key[0])]:
            del self._until[key]


def _round(call: IncomingCall, route: ToolRoute, state: object) -> tuple[Caller, bytes]:
    return call.caller, digest_of([call.caller.client, *_tool(route), call.name, call.params, state])


def _tool(route: ToolRoute) -> tuple[str, str, str]:
    """The tool that is to be approved, with the digest of its definition."""
    return route.server, route.tool, route.digest


def _with_change(refusal: ApprovalRefused, change: ToolChange | None) -> ApprovalRefused:
    """The refusal, with the difference for the agent."""
    if change is None or "changed" in refusal.details:
        return refusal
    told = change.to_wire()
    return ApprovalRefused(f"{refusal.about}; {CHANGED}:\n{told['diff']}", **refusal.details, changed=told)
