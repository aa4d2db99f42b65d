"""Requests of callers to one server: calls of tools, reading of resources, prompts and lists.

A request is sent and its answer is returned as it came. Only an answer that is not the last word leads to an
`MCPExchange` (input requests, tasks); nothing is prepared for that before. A progress token belongs to a request while
it is in flight, and is never used again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import count
from typing import Any

import anyio.abc
from mcp_types import CLIENT_CAPABILITIES_META_KEY

from a2c_smcp.mcp_host.failures import RequestRefused
from a2c_smcp.mcp_host.message_limits import check_result
from a2c_smcp.mcp_host.own_keys import without_own_keys
from a2c_smcp.mcp_host.policy import HostPolicy
from a2c_smcp.mcp_host.sessions.exchange import (
    MOST_REQUESTS,
    MCPExchange,
    VisitedURLs,
    input_requests,
    is_unfinished,
    responses,
    wants_urls,
)
from a2c_smcp.mcp_host.sessions.raw_dispatcher import TASKS_EXTENSION
from a2c_smcp.mcp_host.sessions.sdk_client import SDKClient
from a2c_smcp.mcp_host.sessions.server_requests import AskableCall, ServerRequests
from a2c_smcp.mcp_host.sessions.tasks import ExtensionTask, OlderTask, ServerTask
from a2c_smcp.mcp_host.sessions.tool_request import Asking, ReadRequest, ToolRequest
from a2c_smcp.mcp_host.transports.direct_requests import MCPRequest
from a2c_smcp.mcp_host.transports.in_flight_request import InFlightRequest

__all__ = ["CallerRequests", "Send", "Work"]

Work = Callable[[SDKClient], Awaitable[dict[str, Any]]]
Send = Callable[[InFlightRequest, Work, MCPRequest | None], Awaitable[dict[str, Any]]]
"""Does the work for a request, or sends the request directly. Returns the outcome."""

_RESERVED = "io.modelcontextprotocol/"
_ELICITATION: Mapping[str, Any] = {"elicitation": {"form": {}, "url": {}}}
_TTL_MARGIN = 60.0  # seconds that a server keeps a task after the call could have ended


class CallerRequests:
    """Usable when `serve` has been called."""

    def __init__(self, send: Send, policy: HostPolicy) -> None:
        self._server_requests = ServerRequests()
        self.answer_server = self._server_requests.answer
        self._send = send
        self._policy = policy
        self._client: SDKClient | None = None
        self._progress: dict[str, InFlightRequest] = {}
        self._tokens = count(1)
        self._visited = VisitedURLs()
        self._tasks: dict[str, ServerTask] = {}

    def serve(self, client: SDKClient, group: anyio.abc.TaskGroup) -> None:
        self._client = client
        self._server_requests.group = group

    async def call_tool(self, request: ToolRequest) -> dict[str, Any]:
        """Return the result as the server sent it, or an error result. Raises a `ServerFailure` or `CallTimeout`."""
        cap = (request.cap or self._policy.call_cap) if request.extend else request.timeout
        pending = InFlightRequest(f"tool {request.tool!r}", request.timeout, cap, request.on_progress)
        token = f"a2c-{next(self._tokens)}"
        params = {"name": request.tool, "arguments": dict(request.arguments), "_meta": {"progressToken": token}}
        if not _is_plain(request):
            params |= self._more(request, token)
        if self._client is not None and request.tool in self._client.task_tools:
            params["task"] = {"ttl": int((cap + _TTL_MARGIN) * 1000)}
        self._progress[token] = pending
        try:
            return await self._exchange(pending, MCPRequest("tools/call", params), request, token)
        except RequestRefused as refusal:
            return _error_result(refusal)
        finally:
            del self._progress[token]

    async def read(self, request: ReadRequest) -> dict[str, Any]:
        """Return the result as the server sent it. Raises a `ServerFailure` or `CallTimeout`."""
        pending = InFlightRequest(request.method, request.timeout, request.timeout)
        params = {**request.params, **({} if _is_plain(request) else self._more(request))}
        return await self._exchange(pending, MCPRequest(request.method, params), request)

    def notified(self, method: str, params: Mapping[str, Any]) -> bool:
        """Handle a notification about a request; return whether it is one."""
        match method:
            case "notifications/progress":
                token = params.get("progressToken")
                if isinstance(token, str) and (pending := self._progress.get(token)):
                    pending.progressed(params.get("progress"), params.get("total"), params.get("message"))
            case "notifications/tasks/status" | "notifications/tasks":
                id_ = params.get("taskId")
                if isinstance(id_, str) and (task := self._tasks.get(id_)):
                    task.announced(params)
            case "notifications/elicitation/complete":
                self._visited.complete(params)
            case _:
                return False
        return True

    async def _exchange(
        self, pending: InFlightRequest, request: MCPRequest, asking: Asking, token: str | None = None
    ) -> dict[str, Any]:
        call = None if asking.on_input is None else self._server_requests.open(asking.on_input, pending)
        first: dict[str, Any] | RequestRefused
        try:
            try:
                first = await self._send(pending, lambda client: client.request(request), request)
            except RequestRefused as refusal:
                if call is None or not wants_urls(refusal):
                    raise
                first = refusal
            else:
                check_result(first)
                if "task" not in first and ("resultType" not in first or not is_unfinished(first)):
                    return without_own_keys(_without_mark(first))
            return await self._finish(pending.resumed(), request, asking, call, token, first)
        except RequestRefused as refusal:
            if wants_urls(refusal):  # they are for the owner, who was asked, or is not there
                refusal.details.pop("mcp_data", None)
            raise
        finally:
            if call is not None:
                call.close()

    async def _finish(
        self,
        pending: InFlightRequest,
        request: MCPRequest,
        asking: Asking,
        call: AskableCall | None,
        token: str | None,
        first: dict[str, Any] | RequestRefused,
    ) -> dict[str, Any]:
        """Go on after an answer that is not the last word."""
        tokens = {token} if token else set()

        def new_meta() -> dict[str, Any]:
            if token is None:
                return self._meta(asking, None)
            new = f"a2c-{next(self._tokens)}"
            tokens.add(new)
            self._progress[new] = pending
            return self._meta(asking, new)

        if call is not None:
            call.pending = pending
        for known in tokens:
            self._progress[known] = pending
        exchange = MCPExchange(
            request,
            asking,
            pending,
            new_meta=new_meta,
            visited=self._visited,
            follow=partial(self._follow, asking, call),
        )
        try:
            result = await self._send(pending, lambda client: exchange.finish(client, first), None)
        finally:
            for known in tokens - {token}:
                del self._progress[known]
        check_result(result)
        return without_own_keys(_without_mark(result))

    async def _follow(
        self,
        asking: Asking,
        call: AskableCall | None,
        client: SDKClient,
        answer: dict[str, Any],
        pending: InFlightRequest,
    ) -> dict[str, Any]:
        task: ServerTask
        if client.is_modern:
            task = ExtensionTask(
                client, answer, pending, read=input_requests, answer=partial(responses, asking), most=MOST_REQUESTS
            )
        else:
            task = OlderTask(client, answer["task"], pending)
        if call is not None:
            self._server_requests.follows(call, task.id)
        self._tasks[task.id] = task
        try:
            return await task.follow()
        finally:
            if self._tasks.get(task.id) is task:
                del self._tasks[task.id]

    def _more(self, asking: Asking, token: str | None = None) -> dict[str, Any]:
        """Return the parameters that only some requests have."""
        more: dict[str, Any] = {"_meta": self._meta(asking, token)}
        if asking.input_responses is not None:
            more["inputResponses"] = dict(asking.input_responses)
        if asking.request_state is not None:
            more["requestState"] = asking.request_state
        return more

    def _meta(self, asking: Asking, token: str | None) -> dict[str, Any]:
        meta = {key: value for key, value in asking.meta.items() if not key.startswith(_RESERVED)}
        meta.pop("progressToken", None)
        if token is not None:
            meta["progressToken"] = token
        if self._client is not None and self._client.is_modern:
            declared = _ELICITATION if asking.capabilities is None and asking.on_input else asking.capabilities
            if declared is not None:
                meta[CLIENT_CAPABILITIES_META_KEY] = _with_tasks(declared)
        return meta


def _is_plain(asking: Asking) -> bool:
    return (
        asking.on_input is None
        and not asking.meta
        and asking.capabilities is None
        and asking.input_responses is None
        and asking.request_state is None
    )


def _with_tasks(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the capabilities of a caller with ours: tasks are followed for every caller."""
    extensions = capabilities.get("extensions")
    return {**capabilities, "extensions": {**(extensions if isinstance(extensions, dict) else {}), TASKS_EXTENSION: {}}}


def _without_mark(raw: dict[str, Any]) -> dict[str, Any]:
    """Remove the field by which the newer protocol marks finished results."""
    if raw.get("resultType") != "complete":
        return raw
    return {key: value for key, value in raw.items() if key != "resultType"}


def _error_result(refusal: RequestRefused) -> dict[str, Any]:
    """Return a refused call as a result that keeps the code and the data of the error (WIRE §9)."""
    said = refusal.details
    result: dict[str, Any] = {"content": [{"type": "text", "text": str(said["mcp_message"])}], "isError": True}
    if "mcp_code" not in said:
        return result
    error = {"code": said["mcp_code"], "message": said["mcp_message"]}
    if "mcp_data" in said:
        error["data"] = said["mcp_data"]
    return result | {"_meta": {"a2c_mcp_error": error}}
