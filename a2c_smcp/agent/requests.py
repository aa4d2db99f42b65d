"""The requests of an agent: what each sends, how long it waits, and how its answer is read."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias

from a2c_smcp import smcp
from a2c_smcp.agent.blobs.transfers import MAX_RESULT, Receive, Transfers, is_complete
from a2c_smcp.agent.connection import AgentConnection
from a2c_smcp.agent.desktops import OutgoingCall, new_req_id
from a2c_smcp.agent.retries import AGENT_MARGIN, Resend
from a2c_smcp.errors import BadRequest, CallCancelled, CallTimeout, NotCarried, SMCPError, UnsupportedEvent
from a2c_smcp.protocol import operations
from a2c_smcp.protocol.codec import MAX_TIMEOUT
from a2c_smcp.protocol.operations import Operation
from a2c_smcp.protocol.questions import Answer
from a2c_smcp.protocol.results import CallOrigin, CallToolResult, with_blob
from a2c_smcp.telemetry import conventions, tracing
from a2c_smcp.types import Desktop

_LIMIT = 30.0
_IN_FLIGHT = 256
_CANCEL_ANSWER = 2.0  # a Server that knows a cancelled call answers it within 1 s (WIRE §5)


Ask: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
"""`AgentConnection.ask`, or what stands before it."""


class Requests:
    """Each method raises the error that its answer carries. `to_computer` sends a request to a computer."""

    def __init__(self, connection: AgentConnection, max_result: int = MAX_RESULT) -> None:
        self._connection = connection
        self.to_computer: Ask = connection.ask
        self._calls: dict[str, asyncio.Timeout] = {}
        self.transfers = Transfers(self.ask, self._until_changed, self._carries_bytes, max_result)
        self.downloads = self.transfers.downloads
        self.open()

    def open(self) -> None:
        """Call this in the event loop in which the requests are made."""
        self._in_flight = asyncio.Semaphore(_IN_FLIGHT)

    async def call_tool(
        self, outgoing: OutgoingCall, more: Mapping[str, Any] | None = None, receive: Receive | None = None
    ) -> CallToolResult:
        """Call a tool. A caller that stops waiting cancels the call on the computer. `more` are further fields."""
        names, req_id = (outgoing.tool, outgoing.computer, outgoing.office), outgoing.req_id
        with tracing.span(conventions.agent_call, None, smcp.TOOL_CALL_EVENT, *names, req_id=req_id) as span:
            if (meta := span.inject(more.get("_meta") if more else None)) is not None:
                more = {**(more or {}), "_meta": meta}
            result = await self._call_tool(outgoing, more, receive)
            if result.is_error:
                span.fail(conventions.TOOL_ERROR)
            return result

    async def _call_tool(
        self, outgoing: OutgoingCall, more: Mapping[str, Any] | None, receive: Receive | None
    ) -> CallToolResult:
        computer, tool, office, req_id = outgoing.computer, outgoing.tool, outgoing.office, outgoing.req_id
        seconds = _whole_seconds(outgoing.timeout)
        if receive:
            receive.prepare()
        call = self._addressed(computer, office, req_id)
        call |= {"tool_name": tool, "params": outgoing.params, "timeout": seconds, "blobs": True}
        if more:
            call |= more
        try:
            async with asyncio.timeout(None) as unless_cancelled:
                self._calls[req_id] = unless_cancelled
                answer = await self._ask_when_free(call, seconds)
                result = CallToolResult.from_wire(answer, CallOrigin(computer, tool, office))
        except TimeoutError:
            raise CallCancelled(outcome="unknown") from None
        finally:
            self._calls.pop(req_id, None)
        if result.is_error and result.meta.get("a2c_cancelled"):  # computers of other makes give no code with it
            raise CallCancelled(outcome="unknown")
        if result.is_timeout and result.error_code is None:
            raise CallTimeout(result.text, outcome="unknown")
        if receive is None and is_complete(result):
            return result
        return await self.transfers.with_contents(result, computer, office, receive or Receive())

    async def _ask_when_free(self, call: dict[str, Any], seconds: int) -> Any:
        """Send a call once fewer than `_IN_FLIGHT` others are in flight.

        The wait for a free place has its own timeout. With `extend`, a call may take as long as any (WIRE §9).
        """
        await self._acquire(seconds + AGENT_MARGIN)
        longest = (MAX_TIMEOUT if "extend" in call else seconds) + AGENT_MARGIN
        try:
            return await self.to_computer(smcp.TOOL_CALL_EVENT, call, longest, resend=Resend.DEDUPLICATED)
        except (CallTimeout, asyncio.CancelledError):
            about = self._about(call["req_id"])
            self._connection.tell(smcp.CANCEL_TOOL_CALL_EVENT, about, timeout=max(_LIMIT, seconds))
            raise
        finally:
            self._in_flight.release()

    async def _acquire(self, timeout: float) -> None:
        if not self._in_flight.locked():
            await self._in_flight.acquire()
            return
        began = time.monotonic()
        try:
            async with asyncio.timeout(timeout):
                await self._in_flight.acquire()
            tracing.record_wait(conventions.queue, began, "agent")
        except TimeoutError:
            about = f"{_IN_FLIGHT} other calls did not end within {timeout:g} s"
            raise CallTimeout(about, outcome="not_run") from None

    async def cancel(self, req_id: str) -> None:
        """Cancel a call, also one that the Server has not seen because it waits for a connection."""
        call, is_online = self._calls.get(req_id), self._connection.current is not None
        if call and not call.expired():
            call.reschedule(asyncio.get_running_loop().time() + (_CANCEL_ANSWER if is_online else 0))
        if is_online or not call:
            await self._connection.ask(smcp.CANCEL_TOOL_CALL_EVENT, self._about(req_id), _LIMIT)

    async def withdraw(self, computer: str, req_id: str, office: str | None) -> None:
        """Safe to resend: a call that was withdrawn is not there any more."""
        await self.ask(operations.WITHDRAW_CALL, computer, {"call": req_id}, office)

    async def tools(self, computer: str, office: str | None) -> list[smcp.SMCPTool]:
        return await self.listed(operations.GET_TOOLS, computer, {}, office)

    async def desktop(self, computer: str, size: int | None, window: str | None, office: str | None) -> list[Desktop]:
        wanted = {"desktop_size": size, "window": window}
        data = {field: value for field, value in wanted.items() if value is not None}
        return await self.listed(operations.GET_DESKTOP, computer, data, office)

    async def members(
        self, office: str | None, then: Callable[[list[smcp.SessionInfo]], None] = lambda members: None
    ) -> list[smcp.SessionInfo]:
        """The members of an office. `then` gets them before any later notice is handled."""

        def read(answer: Any) -> Any:
            if SMCPError.from_wire(answer) is None:
                then(_list_in(answer, "sessions"))
            return answer

        request = self._about(None) | {"office_id": office or self._only_office()}
        return _list_in(await self._connection.ask(smcp.LIST_ROOM_EVENT, request, _LIMIT, then=read), "sessions")

    async def answer_question(
        self, computer: str, question_id: str, answer: Answer, office: str | None, timeout: float = 0
    ) -> None:
        """Safe to resend: repeating an answer has no effect (WIRE §9)."""
        data = {"question_id": question_id, **answer.to_mcp()}
        await self.ask(
            operations.ANSWER_QUESTION,
            computer,
            data,
            office,
            timeout=max(timeout, operations.ANSWER_QUESTION.deadline),
        )

    async def questions(
        self, computer: str, office: str | None, then: Callable[[list[Any]], None] = lambda questions: None
    ) -> list[Any]:
        """The open questions to this agent, as they came. `then` gets them before any later notice is handled."""

        def read(answer: Any) -> Any:
            if answer is not None and SMCPError.from_wire(answer) is None:
                then(_list_in(answer, operations.GET_QUESTIONS.listed))
            return answer

        return await self.listed(operations.GET_QUESTIONS, computer, {}, office, then=read)

    async def ask(
        self,
        operation: Operation,
        computer: str,
        data: Mapping[str, Any],
        office: str | None,
        *,
        timeout: float | None = None,
        then: Callable[[Any], Any] | None = None,
        blob: str | bytes | None = None,
    ) -> Any:
        """Send a request, and return the answer as it came. `blob` is a large field of that name.

        Raises `NotCarried` for a request that the Server does not know, `UnsupportedEvent` if the computer does not.
        """
        request = {**self._addressed(computer, office), **data}
        request = request if blob is None else with_blob(request, blob)
        answer = await self._ask_computer(operation.event, request, timeout or operation.deadline, then=then)
        if answer is None and operation.is_newer:
            if self._connection.is_deduplicated:  # a Server of ours, which carries all events
                raise UnsupportedEvent(f"computer {computer!r} does not know {operation.event}")
            raise NotCarried(operation.event)
        return answer

    async def listed(
        self,
        operation: Operation,
        computer: str,
        data: Mapping[str, Any],
        office: str | None,
        then: Callable[[Any], Any] | None = None,
    ) -> list[Any]:
        """Send a request whose answer is a list, and return the list."""
        return _list_in(await self.ask(operation, computer, data, office, then=then), operation.listed)

    async def send(self, event: str, computer: str, data: dict[str, Any], timeout: float, office: str | None) -> Any:
        """Send any event. It is not sent twice, because its effect is unknown."""
        return await self._ask_computer(event, self._addressed(computer, office) | data, timeout, resend=Resend.NEVER)

    async def _ask_computer(self, event: str, request: dict[str, Any], timeout: float, **more: Any) -> Any:
        """Send a request, as part of the trace of the caller if there is one."""
        if not tracing.is_within():
            return await self.to_computer(event, request, timeout, **more)
        names, req_id = (str(request["computer"]), request.get("office_id")), request["req_id"]
        with tracing.span(conventions.agent_request, None, event, *names, req_id=req_id) as span:
            traced = request | {"_meta": span.inject(request.get("_meta"))}
            return await self.to_computer(event, traced, timeout, **more)

    def _carries_bytes(self) -> bool:
        """True if bytes may be sent as attachments: the Server is one of ours, and nothing has to be sealed."""
        return self._connection.is_deduplicated and self.to_computer == self._connection.ask

    async def _until_changed(self, timeout: float) -> None:
        await self._connection.after_version(self._connection.version(), timeout)

    def _about(self, req_id: str | None) -> dict[str, Any]:
        return {"agent": self._connection.name, "req_id": req_id or new_req_id()}

    def _addressed(self, computer: str, office: str | None, req_id: str | None = None) -> dict[str, Any]:
        request = self._about(req_id) | {"computer": computer}
        return request if office is None else request | {"office_id": office}

    def _only_office(self) -> str:
        offices = list(self._connection.seats)
        if len(offices) != 1:
            raise BadRequest(f"this agent sits in {len(offices)} offices, say which with office=", offices=offices)
        return offices[0]


def _whole_seconds(timeout: float) -> int:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= MAX_TIMEOUT:
        raise BadRequest(f"timeout: must be seconds, more than 0 and at most {MAX_TIMEOUT}", field="timeout")
    return math.ceil(timeout)


def _list_in(answer: Any, field: str) -> list[Any]:
    found = answer.get(field) if isinstance(answer, dict) else None
    if not isinstance(found, list):
        raise SMCPError(f"the answer has no list of {field}")
    return found
