"""One tool call, from its arrival to a result that may leave the Computer.

`CallRun.run` is the list of its steps (WIRE §5). Each step ends at the call's deadline; the transform and the last scan
have half a second more, so that the timeout of a script is reported rather than ours. Every error becomes a result with
`isError`, which is masked as well. Each call runs in a task of its own (`CallsInFlight`), which outlives the connection
that it came by.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from a2c_smcp.computer.calls.approving import Approved, CallApproval
from a2c_smcp.computer.calls.catalog import FUNCTIONS, check_arguments, fits_at_once
from a2c_smcp.computer.calls.in_flight import Begin, CallsInFlight, Outcome, Result, digest_of
from a2c_smcp.computer.calls.incoming import CallClock, IncomingCall, OnProgress, ResultDelivery, caller_of, key_of
from a2c_smcp.computer.calls.journal import Key
from a2c_smcp.computer.calls.live import CallTool, LiveCalls
from a2c_smcp.computer.calls.table import ToolRoute
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.consent.freeze import FreezeState
from a2c_smcp.computer.consent.gate import AdmittedCall
from a2c_smcp.computer.content.blob_handles import Blobs
from a2c_smcp.computer.content.lists import masked_error
from a2c_smcp.computer.observation import CancelHeard, ToolCallBegun
from a2c_smcp.computer.owner import Owner
from a2c_smcp.computer.questions.client_approval import ClientApprovals
from a2c_smcp.computer.sign_in import refused_call
from a2c_smcp.computer.tells import CallTells
from a2c_smcp.computer.types import AttributedCall
from a2c_smcp.errors import BadRequest, CallFrozen, CallTimeout, Frozen, ScannerRefused, SMCPError, ToolNotFound
from a2c_smcp.mcp_events import CallState
from a2c_smcp.mcp_host.failures import AuthRequired
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from a2c_smcp.protocol.questions import is_input_required
from a2c_smcp.protocol.results import failed_call
from a2c_smcp.protocol.structure import ANSWER, ARGUMENTS
from a2c_smcp.telemetry import conventions, tracing
from a2c_smcp.telemetry.conventions import LiveSpan

_TRANSFORM_MARGIN = 0.5  # seconds that a transform may take beyond the timeout of the call
_ASKED = "waits for approval at the MCP client"


class ToolCalls:
    """All tool calls of a computer. Answers larger than `max_message` bytes are replaced by an error."""

    def __init__(self, name: str, owner: Owner, blobs: Blobs, max_message: int) -> None:
        self.owner = owner
        self.catalog, self.mask, self.observation = owner.catalog, owner.mask, owner.observation
        self.listeners = owner.listeners
        clients = ClientApprovals(name, owner.questions, owner.mask)
        self.approval = CallApproval(
            owner.approvals, clients, owner.catalog, owner.pins, owner.observation, owner.risk_of
        )
        self.delivery = ResultDelivery(blobs, max_message)
        self.in_flight = CallsInFlight()
        self.live = LiveCalls(owner.answering, owner.listeners, owner.mask)
        self._told: set[Key] = set()

    def start(self, call: IncomingCall, then: Callable[[Result], None]) -> None:
        """Run a call in the background, unless it is a duplicate, and call `then` with its result. Never raises."""
        telling, clock = self._telling(call), CallClock()
        began = time.monotonic()

        def ended(outcome: Outcome) -> None:
            self.observation.call_ended(call, began, clock, self._route(call), outcome)

        def answer(outcome: Outcome) -> None:
            if telling:
                self._told.discard(call.key)
                self.listeners.remove(call.key, telling)
                telling.end()  # the last report leaves before the answer
            then(self.failed(call, outcome) if isinstance(outcome, SMCPError) else outcome)

        report = ended if self.observation.is_watched else None

        def work(begin: Begin) -> Coroutine[Any, Any, Result]:
            return CallRun(self, call, begin, clock).run()

        try:
            if frozen := self.owner.frozen:
                may_have_run = self.in_flight.may_have_run(call.caller, call.req_id)
                raise frozen.named(Frozen, outcome="unknown" if may_have_run else "not_run")
            self.in_flight.start(call.caller, call.req_id, call.what, work, answer, report)
        except SMCPError as error:
            if report:
                report(error)
            answer(error)

    def _telling(self, call: IncomingCall) -> CallTells | None:
        """Tells the agent about the call until it ends; `None` if it does not want that, or is told already."""
        options = call.options
        if options is None or not (options.progress or options.states) or call.key in self._told:
            return None
        telling = CallTells(self.owner.tells, call.caller, call.req_id, progress=options.progress)
        self._told.add(call.key)
        self.listeners.add(call.key, telling)
        return telling

    async def result_of(self, call: IncomingCall, on_progress: OnProgress | None = None) -> Result:
        """Run a call, and return the result as it is sent to the agent."""
        answered: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        async with self.listeners.listening(call.key, on_progress) if on_progress else nullcontext():
            self.start(call, lambda result: None if answered.done() else answered.set_result(result))
            return await answered

    def cancel(self, caller: Caller, req_id: str) -> None:
        """End a call of this agent, also if it comes after its cancel."""
        self.observation.report(CancelHeard(caller, req_id))
        self.in_flight.cancel(caller, req_id)
        self._end_questions(caller, req_id)

    def withdraw_call(self, caller: Caller, req_id: str) -> None:
        """Cancel a call of this agent if it waits for somebody. A call that runs goes on."""
        self.in_flight.withdraw(lambda key: key == key_of(caller, req_id), self.owner.answering.asking)
        self._end_questions(caller, req_id)

    def _end_questions(self, caller: Caller, req_id: str) -> None:
        """End what has questions as its result, and waits for the next request."""
        self.live.parked.cancel(caller, req_id)
        self.approval.cancel(caller, req_id)

    def withdraw(self, matches: Callable[[Caller], bool]) -> None:
        """Cancel the calls of these agents that wait for somebody. Those that run go on, and their results are kept."""
        self.in_flight.withdraw(lambda key: matches(caller_of(key)), self.owner.answering.asking)
        self.live.parked.drop(matches)
        self.approval.drop(matches)

    def drop(self, matches: Callable[[Caller], bool]) -> None:
        """Cancel the calls of these agents, and drop what is kept for them."""
        self.in_flight.drop(matches)
        self.live.parked.drop(matches)
        self.approval.drop(matches)

    def freeze(self, state: FreezeState) -> None:
        """Cancel all calls, and what waits for their next requests."""
        self.in_flight.freeze(lambda: state.named(CallFrozen))
        self.end_rounds()

    def end_rounds(self) -> None:
        """End what waits for the next request of an agent."""
        self.live.parked.drop(lambda caller: True)
        self.approval.close()

    async def close(self) -> None:
        await self.in_flight.close()
        await self.live.parked.close()
        self.approval.close()

    def failed(self, call: IncomingCall, error: SMCPError) -> Result:
        """An error as a result, without secrets."""
        error.__traceback__ = None  # the error may be kept for duplicates, and must not hold the arguments of this call
        route = self._route(call)
        server = route.server if route else None
        return self.delivery.within_limit(self.mask.data(failed_call(error), ANSWER, server))

    def _route(self, call: IncomingCall) -> ToolRoute | None:
        with suppress(SMCPError):
            return self.catalog.resolve(call.name)
        return None


class CallRun:
    """One call that runs, and what is known of it so far. `run` is the order of the steps."""

    route: ToolRoute
    shown: dict[str, Any]
    """The arguments, masked."""
    record: AttributedCall
    """The call in the history, with how it ended."""

    def __init__(self, calls: ToolCalls, call: IncomingCall, begin: Begin, clock: CallClock) -> None:
        self.calls, self.call, self._begin, self.clock = calls, call, begin, clock
        self.deadline = asyncio.get_running_loop().time() + call.timeout
        self.resumes = calls.live.resumes(call)
        self.admission: AdmittedCall | None = None
        self.approved: Approved | None = None

    async def run(self) -> Result:
        """The result as it is sent. Each step raises `SMCPError` to end the call."""
        if self.calls.observation.is_watched:
            self.calls.observation.report_often(ToolCallBegun(self.call))
        with self._traced() as span, self.calls.listeners.timed(self.call.key, self.clock):
            await self._resolve()
            await self._check_arguments(self.call.params)
            self.shown = self.calls.mask.data(self.call.params, ARGUMENTS, self.route.server)
            with self._recorded():
                async with self._admitted() as self.admission:
                    result = await self._approve()
                    if result is None:
                        await self._scan_arguments()
                        try:
                            raw = await self._send()
                        except AuthRequired as failure:
                            result = self._sign_in_needed(failure)
                        except SMCPError as error:
                            result = await self._scan_error(error)
                        else:
                            result = await self._finish(raw)
                        result = await self._deliver(result)
            if result.get("isError"):
                span.fail(conventions.TOOL_ERROR)
            return result

    # Before the tool runs

    async def _resolve(self) -> None:
        """Find the tool, and refuse one that the agent is not shown before anything is said about its arguments."""
        calls, call = self.calls, self.call
        try:
            self.route = calls.catalog.resolve(call.name)
        except ToolNotFound:
            self.route = await self._awaited()
        if calls.owner.gate is not None:
            calls.owner.gate.require_shown(call, self.route)

    async def _awaited(self) -> ToolRoute:
        """The tool, once the MCP servers that may have it have started."""
        began = time.monotonic()
        starting = ", ".join(map(repr, self.calls.owner.host.starting))
        self._become("queued", f"the start of {starting}")
        try:
            async with asyncio.timeout_at(self.deadline):
                return await self.calls.catalog.await_tool(self.call.name)
        except TimeoutError:
            starting = ", ".join(map(repr, self.calls.owner.host.starting))
            raise CallTimeout(f"{self.call.name!r} may be a tool of {starting}, still starting") from None
        finally:
            tracing.record_wait(conventions.queue, began, "start")

    async def _check_arguments(self, arguments: dict[str, Any]) -> None:
        """A slow schema is checked in another process, which may be busy: hence the deadline."""
        call, route = self.call, self.route
        if fits_at_once(route.schema, arguments):
            return
        self._become("queued", "the check of its arguments")
        try:
            async with asyncio.timeout_at(self.deadline):
                await check_arguments(route.schema, arguments, f"tool {route.tool!r} of server {route.server!r}")
        except TimeoutError:
            late = f"the arguments of {call.name!r} could not be checked within {call.timeout:g} s"
            raise CallTimeout(late) from None

    def _admitted(self) -> AbstractAsyncContextManager[AdmittedCall | None]:
        """The policy decides; its budgets count the call while it runs."""
        gate = self.calls.owner.gate
        return gate.admitted(self.call, self.route, self.deadline, resumes=self.resumes) if gate else nullcontext()

    async def _approve(self) -> Result | None:
        """Ask for approval, if the call needs it. Returns the question if that leaves as the result."""
        approval, verdict = self.calls.approval, self.admission.verdict if self.admission else None
        if approval.allows(self.call, self.route, self.shown, verdict) or self.resumes:
            return None
        person = approval.person_at_client(self.call) or self.calls.listeners.owner
        with self.calls.listeners.waiting(self.call.key, person):
            self.approved = await approval.approve(self.call, self.route, self.shown, self.deadline, verdict)
        if self.approved.question is not None:
            self.record["error"] = _ASKED
            return self.calls.delivery.within_limit(self.approved.question)
        self.call = self.approved.call
        if self.admission:
            await self.admission.decide_again()
        return None

    async def _scan_arguments(self) -> None:
        """Let scanners check the arguments, and replace them: not those of a call that runs already."""
        if not self.calls.owner.scanners.before:
            return
        passed = await self.calls.owner.scanners.arguments(self.call, self.route, self.deadline)
        if digest_of(passed) == digest_of(self.call.params) or self.resumes:
            return
        self.record["parameters"] = self.calls.mask.data(passed, ARGUMENTS, self.route.server)
        try:
            await self._check_arguments(passed)
        except BadRequest:
            raise ScannerRefused(f"the arguments that replace those of {self.call.name!r} do not fit") from None
        self.call = replace(self.call, replaced=passed)

    # The tool, and its result

    async def _send(self) -> Result:
        """Run the tool. Its result is as the MCP server has sent it."""
        calls, call, route = self.calls, self.call, self.route
        host, loop = calls.owner.host, asyncio.get_running_loop()
        is_function = route.server == FUNCTIONS and FUNCTIONS not in host.configs
        send: CallTool = (
            calls.catalog.functions.call_tool if is_function else host.manager[route.server].requests.call_tool
        )
        request = ToolRequest(
            route.tool,
            call.arguments,
            max(self.deadline - loop.time(), 0.001),
            on_progress=self._report if not is_function or calls.listeners.has(call.key) else None,
            begin=self._begin_in_time,
            on_input=calls.owner.answering.of_call(call, route.server, self.deadline),
            on_unnamed=calls.owner.answering.of_owner(route.server),
            meta=call.options.meta if call.options else {},
        )
        if self.admission:
            send = self.admission.counting(send)
        self._become("queued", f"the MCP server {route.server!r}")
        try:
            if call.options is None or not call.options.is_live:
                return await send(request)
            return await calls.live.call(call, route.server, self.deadline, request, send)
        finally:
            self.clock.end()
            calls.owner.statistics.add(route.server, self.clock.ran or 0.0)

    async def _finish(self, raw: Result) -> Result:
        """The result masked, transformed and scanned."""
        if refusal := self.calls.delivery.refusal(self.call, raw):
            return refusal  # before time is spent on masking it
        result = await self.calls.mask.answer(raw, ANSWER, self.route.server)
        result = await self._scan_result(await self._transform(result))
        self.record["success"] = not result.get("isError")
        return result

    async def _deliver(self, result: Result) -> Result:
        """The result made to fit. After an approval, the agent is told what was approved."""
        if self.approved:
            if is_input_required(result):
                self.calls.approval.goes_on_later(self.call, self.route, result)
            result = self.approved.told(result)
        return await self.calls.delivery.of(self.call, result)

    def _sign_in_needed(self, failure: AuthRequired) -> Result:
        calls, server = self.calls, self.route.server
        self.record["error"] = calls.mask.text(failure.message, server)
        return calls.mask.data(refused_call(failure, server, calls.owner.host.bundle_ids.of(server)), ANSWER, server)

    def _begin_in_time(self) -> None:
        """Begin the call unless its deadline is over, or its tool has changed: its server may just have been started.

        After a standstill of the process no timer may have run yet.
        """
        if asyncio.get_running_loop().time() >= self.deadline:
            raise TimeoutError
        self.calls.approval.require_same(self.call, self.route, is_approved=self.approved is not None)
        self._begin()
        self._become("running")

    def _become(self, state: CallState, reason: str = "") -> None:
        self.calls.listeners.changed(self.call.key, state, reason)

    def _report(self, progress: float, total: float | None, message: str | None) -> None:
        mask, server = self.calls.mask, self.route.server
        self.calls.listeners.report(self.call.key, progress, total, message, lambda text: mask.text(text, server))

    async def _transform(self, result: Result) -> Result:
        transform = self.calls.owner.host.transform(self.route)
        if transform.is_none or is_input_required(result):
            return result
        params = self.calls.mask.data(self.call.arguments, ARGUMENTS, self.route.server)
        async with asyncio.timeout_at(self._late_deadline()):
            result = await transform.apply(result, tool_name=self.call.name, parameters=params)
        return self.calls.mask.data(result, ANSWER, self.route.server)

    async def _scan_result(self, result: Result) -> Result:
        if not self.calls.owner.scanners.after:
            return result
        passed = await self.calls.owner.scanners.result(self.call, self.route, result, self._late_deadline())
        return result if passed is result else self.calls.mask.data(passed, ANSWER, self.route.server)

    async def _scan_error(self, error: SMCPError) -> Result:
        """The text of an error may be that of the MCP server. Raises the error itself if it passes as it is."""
        if not self.calls.owner.scanners.after:
            raise error
        self.record["error"] = masked_error(error, self.calls.mask, self.route.server).message
        told = self.calls.failed(self.call, error)
        passed = await self._scan_result(told)
        if passed is told:
            raise error
        return passed

    def _late_deadline(self) -> float:
        """The deadline of what comes after the tool. With `extend` the call may have had longer than its timeout."""
        extends = self.call.options is not None and self.call.options.extend
        base = asyncio.get_running_loop().time() + self.call.timeout if extends else self.deadline
        return base + _TRANSFORM_MARGIN

    # Around it

    def _traced(self) -> LiveSpan:
        """One span of the trace that its agent names."""
        call, caller = self.call, self.call.caller
        meta = call.options.meta if call.options else None
        names = call.name, caller.office, caller.agent
        return tracing.span(conventions.computer_call, meta, *names, req_id=call.req_id)

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        """Keep the call in the history, with how it ended."""
        calls, call, route = self.calls, self.call, self.route
        self.record = record = AttributedCall(
            timestamp=datetime.now(UTC).isoformat(),
            req_id=call.req_id,
            server=route.server,
            tool=route.tool,
            parameters=self.shown,
            timeout=call.timeout,
            success=False,
            error=None,
            caller=call.caller.who,
            state=self.clock.state,
        )
        calls.owner.history.append(record)
        try:
            with calls.listeners.watched(call.key, record, self.clock):
                yield
        except TimeoutError:
            record["error"] = f"no answer within {call.timeout:g} s"
            raise CallTimeout(f"{call.name!r} did not finish within {call.timeout:g} s") from None
        except asyncio.CancelledError:
            record["error"] = "cancelled"
            raise
        except SMCPError as error:  # masked here: if its server is gone, the route is not found again
            record["error"] = masked_error(error, calls.mask, route.server).message
            raise
        except BaseException as error:
            record["error"] = calls.mask.text(str(error) or SMCPError().message, route.server)
            raise
