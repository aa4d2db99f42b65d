"""The live part of requests to MCP servers: what an agent may ask for beside the result (WIRE §9).

A tool call without options, or with `_meta` alone, never comes here. Prompts and resources have those options that are
about questions. `questions: true` and the owner's answers need only a function that answers (`Answering`).
`questions: "result"` returns an `InputRequiredResult`: the server's own, or one that stands for the questions of an
older server (`ParkedRuns`). A question that only the owner may see is never in such a result: the owner is asked, and
the server is called again with the answers, as its protocol wants it. With `extend` the timeout counts from the last
sign of life of the server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

from a2c_smcp.computer.calls.incoming import CallOptions, IncomingCall, ProgressListeners
from a2c_smcp.computer.questions.answering import Answering
from a2c_smcp.computer.questions.parked import ParkedRuns, Run
from a2c_smcp.computer.secrets.mask import Mask
from a2c_smcp.computer.secrets.rules import hints_at_secret
from a2c_smcp.errors import Forbidden
from a2c_smcp.mcp_host.sessions.tool_request import InputRefused, ReadRequest, ToolRequest
from a2c_smcp.protocol.codec import MAX_TIMEOUT
from a2c_smcp.protocol.questions import ELICITATION, InputRequest, input_requests, is_input_required

CallTool = Callable[[ToolRequest], Awaitable[dict[str, Any]]]
ReadFrom = Callable[[ReadRequest], Awaitable[dict[str, Any]]]
"""Sends a request to the server."""
R = TypeVar("R", ToolRequest, ReadRequest)

_MOST_ROUNDS = 32  # of questions to the owner, in one request


class LiveCalls:
    """Sends calls that have options."""

    def __init__(self, answering: Answering, listeners: ProgressListeners, mask: Mask) -> None:
        self.parked = ParkedRuns()
        self._answering = answering
        self._listeners = listeners
        self._mask = mask

    def resumes(self, call: IncomingCall) -> bool:
        """True if the request has the state of a parked run, perhaps of one that has ended; `go_on` refuses it then."""
        return call.options is not None and self.parked.is_state(call)

    async def call(
        self, call: IncomingCall, server: str, deadline: float, request: ToolRequest, call_tool: CallTool
    ) -> dict[str, Any]:
        """The result of the server for a call with options."""
        options = call.options
        assert options
        if self.resumes(call):
            return await self._go_on(call, server, deadline, request.begin)
        request = self._with_options(request, options, server)
        self._answering.answered_by_agent(call, server, options.input_responses or {})
        if options.extend:
            request = replace(request, timeout=call.timeout, cap=float(MAX_TIMEOUT), extend=True)
        if options.questions != "result":
            return await call_tool(request)

        async def work(run: Run) -> dict[str, Any]:
            return await self._with_owner(run, self._followed(run, request), call_tool)

        return await self.parked.begin(call, server, deadline, work)

    async def read(
        self, call: IncomingCall, server: str, deadline: float, request: ReadRequest, read: ReadFrom
    ) -> dict[str, Any]:
        """The result of the server for a prompt or a resource that is asked for with options."""
        options = call.options
        assert options
        if self.resumes(call):
            return await self._go_on(call, server, deadline, _nothing)
        request = self._with_options(request, options, server)
        self._answering.answered_by_agent(call, server, options.input_responses or {})
        if options.questions != "result":
            return await read(request)

        async def work(run: Run) -> dict[str, Any]:
            on_input = self._answering.of_run(self.parked, run)
            request_of_run = replace(request, timeout=float(MAX_TIMEOUT), on_input=on_input, on_unnamed=None)
            return await self._with_owner(run, request_of_run, read)

        return await self.parked.begin(call, server, deadline, work)

    async def _go_on(
        self, call: IncomingCall, server: str, deadline: float, begin: Callable[[], None]
    ) -> dict[str, Any]:
        assert call.options
        self._learn(call.options, server)
        return await self.parked.go_on(call, deadline, begin)

    def _with_options(self, request: R, options: CallOptions, server: str) -> R:
        self._learn(options, server)
        declared = options.client_capabilities
        if declared is None and options.questions:
            declared = self._answering.capabilities(server)
        return replace(
            request,
            meta=options.meta,
            capabilities=declared,
            input_responses=options.input_responses,
            request_state=options.request_state,
            input_as_result=options.questions == "result",
        )

    def _followed(self, run: Run, request: ToolRequest) -> ToolRequest:
        """The request of a run. Its deadlines are those of the agent's requests, which `ParkedRuns` keeps."""

        def report(progress: float, total: float | None, message: str | None) -> None:
            if request.extend:
                run.extend(run.call.timeout)
            key, server = run.call.key, run.server
            self._listeners.report(key, progress, total, message, lambda text: self._mask.text(text, server))

        longest = float(MAX_TIMEOUT)
        on_input = self._answering.of_run(self.parked, run)
        return replace(request, timeout=longest, cap=longest, on_progress=report, on_input=on_input, on_unnamed=None)

    async def _with_owner(self, run: Run, request: R, send: Callable[[R], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """The result, after the owner has answered all questions that only the owner may see."""
        for _ in range(_MOST_ROUNDS):
            result = await send(request)
            if not is_input_required(result):
                return result
            requests = input_requests(result)
            if not (private := self._private(run, requests)):
                self._answering.put_to_agent(run.call, run.server, requests.values())
                return result
            responses = {name: await self._owners_answer(run, each) for name, each in private.items()}
            request = replace(request, input_responses=responses, request_state=result.get("requestState"))
            if isinstance(request, ToolRequest):
                request = replace(request, begin=_nothing)
        raise Forbidden("the server asks its owner too many questions", outcome="unknown")

    def _private(self, run: Run, requests: dict[str, InputRequest]) -> dict[str, InputRequest]:
        """All input requests of a result, if one of them is for the owner alone. Raises `Forbidden`."""
        if all(self._is_for_agent(run, request) for request in requests.values()):
            return {}
        if any(request.method != ELICITATION for request in requests.values()):
            raise Forbidden("the server asks what only the owner of the computer may answer", outcome="unknown")
        return requests

    def _is_for_agent(self, run: Run, request: InputRequest) -> bool:
        if request.method != ELICITATION:
            return True
        try:
            return self._answering.is_for_agents(self._answering.read(run.call, run.server, request))
        except InputRefused:
            return False

    async def _owners_answer(self, run: Run, request: InputRequest) -> dict[str, Any]:
        try:
            return await self._answering.answer(run.call, run.server, request, run.deadline)
        except InputRefused:
            return {"action": "cancel"}

    def _learn(self, options: CallOptions, server: str) -> None:
        """Mask what the agent answers to secret questions. Of a server's own state nothing more than names is known."""
        responses = (options.input_responses or {}).values()
        contents = [response.get("content") for response in responses if isinstance(response, dict)]
        fields = [field for content in contents if isinstance(content, dict) for field in content.items()]
        self._mask.add([value for name, value in fields if isinstance(value, str) and hints_at_secret(name)], server)


def _nothing() -> None:
    """The call has begun already."""
