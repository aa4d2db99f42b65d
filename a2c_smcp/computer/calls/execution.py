"""One tool call, from its arrival to a result that may leave the Computer.

The order is that of WIRE §5: find the tool, check the arguments, decide by the policy if there is one
(`policy/gate.py`), ask the owner for approval, scan the arguments, write the call into the journal, run the tool, mask
secrets in its result, transform it, scan it, make it fit (`delivery.py`). Scanners are the owner's own (`scanners/`).
Every step ends at the call's deadline. The transform and the last scan have half a second more, so that the timeout of
a script is reported rather than ours. Whatever goes wrong becomes a result
with `isError`, which is masked as well. Each call runs in a task of its own (`CallsInFlight`), which outlives the
connection that it came by.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.calls.approving import CallApproval
from a2c_smcp.computer.calls.delivery import ResultDelivery
from a2c_smcp.computer.calls.in_flight import Begin, CallsInFlight, Outcome, Work, result_of
from a2c_smcp.computer.calls.incoming import IncomingCall
from a2c_smcp.computer.calls.journal import Key
from a2c_smcp.computer.calls.live import CallTool, LiveCalls, is_input_required
from a2c_smcp.computer.calls.reports import CallStatistics, OnProgress, ProgressListeners, traced
from a2c_smcp.computer.hosting import Hosting
from a2c_smcp.computer.observation import CancelHeard, ComputerObservation, ToolCallBegun
from a2c_smcp.computer.policy.gate import AdmittedCall, PolicyGate
from a2c_smcp.computer.questions.answering import Answering
from a2c_smcp.computer.scanners.scanners import Scanners
from a2c_smcp.computer.secrets import ANSWER, ARGUMENTS, Mask
from a2c_smcp.computer.sign_in.refusals import refused_call
from a2c_smcp.computer.tells import ProgressTells, Tells
from a2c_smcp.computer.tools.arguments import check_arguments, fits_at_once
from a2c_smcp.computer.tools.catalogue import Catalogue
from a2c_smcp.computer.tools.functions import FUNCTIONS
from a2c_smcp.computer.tools.table import ToolRoute
from a2c_smcp.computer.types import AttributedCall
from a2c_smcp.errors import BadRequest, CallTimeout, ScannerRefused, SMCPError, ToolNotFound
from a2c_smcp.mcp_host.failures import AuthRequired
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from a2c_smcp.protocol.results import failed_call
from a2c_smcp.telemetry import conventions, tracing

__all__ = ["Execution"]

_TRANSFORM_MARGIN = 0.5  # seconds that a transform may take beyond the timeout of the call
_HISTORY = 100
_ASKED = "waits for approval at the MCP client"


class Execution:
    """Runs tool calls. `host` is called for each of them, since a Computer gets a new one whenever it is started."""

    def __init__(
        self,
        host: Callable[[], Hosting],
        catalogue: Catalogue,
        approval: CallApproval,
        answering: Answering,
        tells: Tells,
        mask: Mask,
        delivery: ResultDelivery,
        scanners: Scanners,
        gate: PolicyGate | None,
        observation: ComputerObservation,
    ) -> None:
        self._observation = observation
        self.calls = CallsInFlight()
        self.history: deque[AttributedCall] = deque(maxlen=_HISTORY)
        self.statistics = CallStatistics()
        self._host = host
        self._catalogue = catalogue
        self._approval = approval
        self._mask = mask
        self._delivery = delivery
        self._scanners = scanners
        self._gate = gate
        self.listeners = ProgressListeners()
        self._answering = answering
        self.live = LiveCalls(answering, self.listeners, mask)
        self._tells = tells
        self._told: set[Key] = set()

    async def result_of(self, call: IncomingCall, on_progress: OnProgress | None = None) -> dict[str, Any]:
        """The result as it is sent to the agent. An `SMCPError` is also returned as a result, never raised."""
        try:
            if on_progress is None:
                return await self._once(call)
            async with self.listeners.listening(call.key, on_progress):
                return await self._once(call)
        except SMCPError as error:
            return self.failed(call, error)

    def cancel(self, agent: str, req_id: str, office: str = "") -> None:
        """End a call of this agent, also if it comes after its cancel."""
        self._observation.report(CancelHeard(Caller(office, agent), req_id))
        self.calls.cancel(agent, req_id)
        self.live.parked.cancel(agent, req_id)
        self._approval.cancel(agent, req_id)

    def forget(self, office: str, agent: str | None = None) -> None:
        """Drop what is kept for an agent that has left, or for an office that this computer has left."""
        self.calls.forget(office, agent)
        self.live.parked.forget(office, agent)
        self._approval.forget(office, agent)

    def keep_only(self, office: str, agent: str) -> None:
        """Drop what is kept for other agents: this one has entered the office."""
        self.calls.keep_only(office, agent)
        self.live.parked.keep_only(office, agent)
        self._approval.keep_only(office, agent)

    async def close(self) -> None:
        await self.calls.close()
        await self.live.parked.close()
        self._approval.close()

    def start(self, call: IncomingCall, then: Callable[[Outcome], None]) -> None:
        """Run a call in the background and call `then` with its result or error.

        Raises `SMCPError` if the call cannot begin; `then` is not called in that case.
        """
        if call.options is None or not call.options.progress or call.key in self._told:
            self._start(call, then)
        else:
            self._start_telling(call, then)

    def _start_telling(self, call: IncomingCall, then: Callable[[Outcome], None]) -> None:
        """As `start`, and tell the agent the progress until the call ends."""
        telling = ProgressTells(self._tells, call.caller, call.req_id)
        self._told.add(call.key)
        self.listeners.add(call.key, telling)

        def stop() -> None:
            self._told.discard(call.key)
            self.listeners.remove(call.key, telling)
            telling.end()  # the last report leaves before the answer

        def stop_and_answer(outcome: Outcome) -> None:
            stop()
            then(outcome)

        try:
            self._start(call, stop_and_answer)
        except SMCPError:
            stop()
            raise

    def failed(self, call: IncomingCall, error: SMCPError) -> dict[str, Any]:
        """An error as a result, without secrets."""
        error.__traceback__ = None  # the error may be kept for duplicates, and must not hold the arguments of this call
        return self._delivery.fitting(self._mask.data(failed_call(error), ANSWER, self._server_of(call)))

    def _server_of(self, call: IncomingCall) -> str | None:
        """The server whose secrets may be in an error."""
        try:
            return self._catalogue.resolve(call.name).server
        except SMCPError:
            return None

    async def _once(self, call: IncomingCall) -> dict[str, Any]:
        return await result_of(partial(self._start, call))

    def _start(self, call: IncomingCall, then: Callable[[Outcome], None]) -> None:
        """Run a call unless it is a duplicate. Its end is reported before `then` is called."""
        work = partial(traced, call, partial(self._execute, call))
        if not self._observation.is_watched:
            self.calls.start(call.caller, call.req_id, call.what, work, then)
            return
        report = partial(self._report_end, call, time.monotonic())
        try:
            self.calls.start(call.caller, call.req_id, call.what, partial(self._observed, call, work), then, report)
        except SMCPError as error:
            report(error)
            raise

    async def _observed(self, call: IncomingCall, work: Work, begin: Begin) -> dict[str, Any]:
        self._observation.report_often(ToolCallBegun(call))
        return await work(begin)

    def _report_end(self, call: IncomingCall, began: float, outcome: Outcome) -> None:
        route = None
        with suppress(SMCPError):
            route = self._catalogue.resolve(call.name)
        self._observation.call_ended(call, began, route, outcome)

    async def _execute(self, call: IncomingCall, begin: Begin) -> dict[str, Any]:
        deadline = asyncio.get_running_loop().time() + call.timeout
        route = await self._resolve(call, deadline)
        if self._gate is not None:
            self._gate.require_shown(call, route)
        if not fits_at_once(route.schema, call.params):
            await _check(call, call.params, route, deadline)
        shown = self._mask.data(call.params, ARGUMENTS, route.server)
        with self._recorded(call, route, shown) as record:
            if self._gate is None:
                return await self._approved(call, route, shown, deadline, begin, record)
            async with self._gate.admitted(call, route, deadline, goes_on=self.live.goes_on(call)) as admission:
                return await self._approved(call, route, shown, deadline, begin, record, admission)

    async def _approved(
        self,
        call: IncomingCall,
        route: ToolRoute,
        shown: dict[str, Any],
        deadline: float,
        begin: Begin,
        record: AttributedCall,
        admission: AdmittedCall | None = None,
    ) -> dict[str, Any]:
        """The result of a call, after approval if it needs that. `shown` are its arguments, masked."""
        approved, verdict = None, admission.verdict if admission else None
        if not self._approval.allows(call, route, shown, verdict) and not self.live.goes_on(call):
            approved = await self._approval.approve(call, route, shown, deadline, verdict)
            if approved.question is not None:
                record["error"] = _ASKED
                return self._delivery.fitting(approved.question)
            call = approved.call
            if admission:
                await admission.decide_again()
        if self._scanners.before:
            call = await self._scanned(call, route, record, deadline)
        begin = partial(_begin_before, deadline, begin)
        result = await self._outcome(call, route, record, deadline, begin, admission)
        if approved and is_input_required(result):
            self._approval.goes_on_later(call, route, result)
        return await self._delivery.of(call, approved.told(result) if approved else result)

    async def _outcome(
        self,
        call: IncomingCall,
        route: ToolRoute,
        record: AttributedCall,
        deadline: float,
        begin: Begin,
        admission: AdmittedCall | None,
    ) -> dict[str, Any]:
        """Run the tool. The result is masked, transformed and scanned, or an error instead of it."""
        began = time.monotonic()
        try:
            raw = await self._run(call, route, deadline, begin, admission)
        except AuthRequired as failure:
            record["error"] = self._mask.text(failure.message, route.server)
            refused = refused_call(failure, route.server, self._host().bundle_ids.of(route.server))
            return self._mask.data(refused, ANSWER, route.server)
        except SMCPError as error:
            if not self._scanners.after:
                raise
            record["error"] = self._mask.text(str(error), route.server)
            return await self._scanned_error(call, route, error, deadline)
        finally:
            self.statistics.add(route.server, time.monotonic() - began)
        if refusal := self._delivery.refusal(call, raw):
            return refusal  # before time is spent on masking it
        result = await self._mask.answer(raw, ANSWER, route.server)
        if not is_input_required(result):
            result = await self._transformed(result, call, route, deadline)
        if self._scanners.after:
            result = await self._scanned_result(call, route, result, deadline)
        record["success"] = not result.get("isError")
        return result

    # Scanners

    async def _scanned(
        self, call: IncomingCall, route: ToolRoute, record: AttributedCall, deadline: float
    ) -> IncomingCall:
        """The call with the arguments that pass. Those of a call that runs already cannot be replaced any more."""
        passed = await self._scanners.arguments(call, route, deadline)
        if passed == call.params or self.live.goes_on(call):
            return call
        record["parameters"] = self._mask.data(passed, ARGUMENTS, route.server)
        if not fits_at_once(route.schema, passed):
            try:
                await _check(call, passed, route, deadline)
            except BadRequest:
                raise ScannerRefused(f"the arguments that replace those of {call.name!r} do not fit") from None
        return replace(call, replaced=passed)

    async def _scanned_result(
        self, call: IncomingCall, route: ToolRoute, result: dict[str, Any], deadline: float
    ) -> dict[str, Any]:
        if call.options is not None and call.options.extend:
            deadline = asyncio.get_running_loop().time() + call.timeout
        passed = await self._scanners.result(call, route, result, deadline + _TRANSFORM_MARGIN)
        return result if passed is result else self._mask.data(passed, ANSWER, route.server)

    async def _scanned_error(
        self, call: IncomingCall, route: ToolRoute, error: SMCPError, deadline: float
    ) -> dict[str, Any]:
        """The text of an error may be that of the MCP server. Raises the error itself if it passes as it is."""
        told = self.failed(call, error)
        passed = await self._scanned_result(call, route, told, deadline)
        if passed is told:
            raise error
        return passed

    async def _resolve(self, call: IncomingCall, deadline: float) -> ToolRoute:
        with suppress(ToolNotFound):
            return self._catalogue.resolve(call.name)
        began = time.monotonic()
        try:
            async with asyncio.timeout_at(deadline):
                return await self._catalogue.await_tool(call.name)
        except TimeoutError:
            starting = ", ".join(map(repr, self._host().starting))
            raise CallTimeout(f"{call.name!r} may be a tool of {starting}, still starting") from None
        finally:
            tracing.record_wait(conventions.queue, began, "start")

    async def _run(
        self, call: IncomingCall, route: ToolRoute, deadline: float, begin: Begin, admission: AdmittedCall | None
    ) -> dict[str, Any]:
        host = self._host()

        def report(progress: float, total: float | None, message: str | None) -> None:
            self.listeners.report(call.key, progress, total, message, lambda text: self._mask.text(text, route.server))

        is_function = route.server == FUNCTIONS and FUNCTIONS not in host.configs
        send: CallTool = self._catalogue.functions.call_tool if is_function else host.manager.call_tool
        if admission:
            send = admission.counting(send)
        left = max(deadline - asyncio.get_running_loop().time(), 0.001)
        on_input = self._answering.of_call(call, route.server, deadline)
        on_progress = report if not is_function or self.listeners.has(call.key) else None
        meta = call.options.meta if call.options else {}
        request = ToolRequest(
            route.tool, call.arguments, left, on_progress=on_progress, begin=begin, on_input=on_input, meta=meta
        )
        if call.options is None or not call.options.is_live:
            return await send(route.server, request)
        return await self.live.call(call, route.server, deadline, request, send)

    async def _transformed(
        self, result: dict[str, Any], call: IncomingCall, route: ToolRoute, deadline: float
    ) -> dict[str, Any]:
        transform = self._host().transform(route)
        if transform.is_none:
            return result
        params = self._mask.data(call.arguments, ARGUMENTS, route.server)
        if call.options is not None and call.options.extend:
            deadline = asyncio.get_running_loop().time() + call.timeout
        async with asyncio.timeout_at(deadline + _TRANSFORM_MARGIN):
            transformed = await transform.apply(result, tool_name=call.name, parameters=params)
        return self._mask.data(transformed, ANSWER, route.server)

    @contextmanager
    def _recorded(self, call: IncomingCall, route: ToolRoute, shown: dict[str, Any]) -> Iterator[AttributedCall]:
        """Keep the call in the history, with how it ended."""
        record = AttributedCall(
            timestamp=datetime.now(UTC).isoformat(),
            req_id=call.req_id,
            server=route.server,
            tool=route.tool,
            parameters=shown,
            timeout=call.timeout,
            success=False,
            error=None,
            caller=call.caller.who,
        )
        self.history.append(record)
        try:
            with self.listeners.watched(call.key, record):
                yield record
        except TimeoutError:
            record["error"] = f"no answer within {call.timeout:g} s"
            raise CallTimeout(f"{call.name!r} did not finish within {call.timeout:g} s") from None
        except BaseException as error:
            record["error"] = self._mask.text(str(error) or type(error).__name__, route.server)
            raise


async def _check(call: IncomingCall, arguments: dict[str, Any], route: ToolRoute, deadline: float) -> None:
    """Check the arguments. A slow schema is checked in another process, which may be busy: hence the deadline."""
    try:
        async with asyncio.timeout_at(deadline):
            await check_arguments(route.schema, arguments, f"tool {route.tool!r} of server {route.server!r}")
    except TimeoutError:
        raise CallTimeout(f"the arguments of {call.name!r} could not be checked within {call.timeout:g} s") from None


def _begin_before(deadline: float, begin: Begin) -> None:
    """Begin the call unless its deadline is over. After a standstill of the process no timer may have run yet."""
    if asyncio.get_running_loop().time() >= deadline:
        raise TimeoutError
    begin()
