"""Requests of callers to one server: calls of tools, reading of resources, prompts and lists.

A request is sent and its result is returned as it came. Only an answer that is not a result leads to a `MultiRound`
(input requests, tasks); nothing is prepared for that before. A progress token belongs to a request while it is in
flight, and is never used again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import Any

import anyio
from mcp_types import CLIENT_CAPABILITIES_META_KEY, URL_ELICITATION_REQUIRED

from a2c_smcp.mcp_host.failures import RequestRefused, if_short
from a2c_smcp.mcp_host.limits import HostLimits, check_result, is_within
from a2c_smcp.mcp_host.sessions.sdk_client import APPS, TASKS_EXTENSION, SDKClient
from a2c_smcp.mcp_host.sessions.server_requests import LARGEST, AskableCall, ServerRequests, answered
from a2c_smcp.mcp_host.sessions.tasks import ExtensionTask, OlderTask, ServerTask, failed
from a2c_smcp.mcp_host.sessions.tool_request import Asking, InputRefused, ReadRequest, ToolRequest
from a2c_smcp.mcp_host.sessions.turns import CallTurns
from a2c_smcp.mcp_host.transports.direct_requests import MCPRequest, PendingRequest
from a2c_smcp.protocol.questions import ELICITATION, INPUT_METHODS, InputRequest, input_requests
from a2c_smcp.protocol.results import without_own_keys

# A request whose first answer is not its result: input requests, URLs to visit, tasks.
#
# **Rounds (2026-07-28).** The server answers `resultType: "input_required"` with input requests, a state, or both.
# The input requests are answered at the same time, then the same request is sent again under a new id, with the
# answers, and with the state as it came if there was one. Both belong to this exchange alone: they are local to a
# round. An answer without input requests means "not yet": it is repeated after a pause that grows. After
# `MOST_ROUNDS` the exchange fails.
#
# **URLs (2025-11-25).** The error `URL_ELICITATION_REQUIRED` names URLs that a person has to visit. Each is asked
# once, by its id; then the request is sent again. While the server still names the same ones, the person is not done:
# the request is repeated after a pause, or at once when the server announces that a visit is complete. The deadline
# ends this.
#
# **Tasks.** See `tasks`.
#
# **Ownership.** An exchange runs in a task of the session's owner, under a request of its own (`pending`), which
# carries the deadline and is closed when the caller leaves: that cancels the exchange wherever it waits. It never
# outlives its caller, and ends no other.

MOST_ROUNDS = 10
MOST_REQUESTS = 16
LONGEST_STATE = 64 * 1024
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_FIRST_VISIT_PAUSE, _LONGEST_VISIT_PAUSE = 0.5, 5.0
_LONGEST_ID = 256


def is_unfinished(raw: dict[str, Any]) -> bool:
    """True if an answer of 2026-07-28 is not a result. Without `resultType` it is one."""
    return bool(raw.get("resultType", "complete") != "complete")


def wants_urls(refusal: RequestRefused) -> bool:
    return refusal.details.get("mcp_code") == URL_ELICITATION_REQUIRED


class VisitedURLs:
    """The URLs, by id, for which an exchange waits until the server announces that the visit is complete."""

    def __init__(self) -> None:
        self._waited: dict[str, anyio.Event] = {}

    def complete(self, params: Mapping[str, Any]) -> None:
        id_ = params.get("elicitationId")
        if isinstance(id_, str) and id_ in self._waited:
            self._waited[id_].set()

    async def wait(self, id_: str, seconds: float) -> None:
        """Wait for the announcement, at most so many seconds."""
        event = self._waited.setdefault(id_, anyio.Event())
        with anyio.move_on_after(seconds):
            await event.wait()
        if self._waited.get(id_) is event:
            del self._waited[id_]


class MultiRound:
    """The further rounds of one request. `finish` returns its result, or raises `RequestRefused`."""

    def __init__(
        self,
        session: SessionRequests,
        request: MCPRequest,
        asking: Asking,
        pending: PendingRequest,
        call: AskableCall | None,
        *,
        has_progress: bool,
    ) -> None:
        self._session = session
        self._request, self._asking, self._pending, self._call = request, asking, pending, call
        if call is not None:
            call.pending = pending
        self._has_progress = has_progress
        self._tokens: list[str] = []
        self._asked_urls: set[str] = set()
        self._pause = _FIRST_PAUSE
        self._rounds = 0

    async def finish(self, client: SDKClient, first: dict[str, Any] | RequestRefused) -> dict[str, Any]:
        answer = first
        try:
            while True:
                self._pending.heard()
                added: dict[str, Any] = {}
                if isinstance(answer, RequestRefused):
                    await self._visit(answer)
                elif self._is_task(client, answer):
                    return await self._follow(client, answer)
                elif self._is_last(client, answer):
                    return answer
                else:
                    self._pending.waits_for_answer()
                    added = await self._answers(answer)
                self._pending.heard()
                answer = await self._again(client, added)
        finally:
            for token in self._tokens:
                del self._session.progress[token]

    def _is_last(self, client: SDKClient, answer: dict[str, Any]) -> bool:
        if not is_unfinished(answer):
            return True
        if not client.is_modern or answer["resultType"] != "input_required":
            raise failed(
                f"the server answered with a result of the unknown kind {if_short(str(answer['resultType']), 64)!r}"
            )
        return self._asking.input_as_result

    def _is_task(self, client: SDKClient, answer: dict[str, Any]) -> bool:
        if self._request.method != "tools/call":
            return False
        if client.is_modern:
            return answer.get("resultType") == "task"
        return "task" in self._request.params and isinstance(answer.get("task"), dict)

    async def _again(self, client: SDKClient, added: dict[str, Any]) -> dict[str, Any] | RequestRefused:
        """Send the request again, with the parameters of this round and a progress token of its own."""
        kept = {key: value for key, value in self._request.params.items() if key not in _OF_A_ROUND}
        token = None
        if self._has_progress:
            token = self._session.new_token(self._pending)
            self._tokens.append(token)
        meta = self._session.meta(self._asking, token)
        try:
            return await client.request(MCPRequest(self._request.method, {**kept, **added, "_meta": meta}))
        except RequestRefused as refusal:
            return refusal

    async def _follow(self, client: SDKClient, answer: dict[str, Any]) -> dict[str, Any]:
        """Follow the task that an answer names to its end."""
        task: ServerTask
        if client.is_modern:
            task = ExtensionTask(
                client,
                answer,
                self._pending,
                read=checked_requests,
                answer=partial(responses, self._asking),
                most=MOST_REQUESTS,
            )
        else:
            task = OlderTask(client, answer["task"], self._pending)
        if self._call is not None:
            self._session.server_requests.follows(self._call, task.id)
        tasks = self._session.tasks
        tasks[task.id] = task
        try:
            return await task.follow()
        finally:
            if tasks.get(task.id) is task:
                del tasks[task.id]

    async def _answers(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters that answer a round."""
        self._rounds += 1
        if self._rounds > MOST_ROUNDS:
            raise failed(f"the server asked for input more than {MOST_ROUNDS} times")
        state = answer.get("requestState")
        if state is not None and (not isinstance(state, str) or len(state) > LONGEST_STATE):
            raise failed(f"the server's request state is not a text of at most {LONGEST_STATE} characters")
        added = {} if state is None else {"requestState": state}
        requests = checked_requests(answer)
        if requests:
            self._pause = _FIRST_PAUSE
            return {"inputResponses": await responses(self._asking, requests), **added}
        if state is None:
            raise failed("the server asked for input and did not say which")
        await anyio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return added

    async def _visit(self, refusal: RequestRefused) -> None:
        """Ask to visit the URLs that were not asked for yet, or wait for the visits."""
        if not wants_urls(refusal) or self._asking.on_input is None:
            raise refusal
        urls = _urls(refusal)
        if new := {id_: asked for id_, asked in urls.items() if id_ not in self._asked_urls}:
            self._asked_urls |= new.keys()
            if len(self._asked_urls) > MOST_REQUESTS:
                raise failed(f"the server asked to visit more than {MOST_REQUESTS} URLs")
            answers = await responses(self._asking, new)
            if any(answer.get("action") != "accept" for answer in answers.values()):
                raise failed("the server asked to visit a URL, and nobody has")
            self._pause = _FIRST_VISIT_PAUSE
        else:
            await self._session.visited.wait(next(iter(urls)), self._pause)
            self._pause = min(2 * self._pause, _LONGEST_VISIT_PAUSE)


_OF_A_ROUND = frozenset({"inputResponses", "requestState", "_meta"})


def checked_requests(answer: Mapping[str, Any]) -> dict[str, InputRequest]:
    """Read `inputRequests`. Raises `RequestRefused` if they are malformed, too many or too large."""
    requests = answer.get("inputRequests")
    if requests is None:
        return {}
    if not isinstance(requests, dict) or len(requests) > MOST_REQUESTS or not is_within(requests, LARGEST):
        raise failed(f"the server's input requests are not at most {MOST_REQUESTS} with {LARGEST} bytes together")
    for request in requests.values():
        method, params = (request.get("method"), request.get("params")) if isinstance(request, dict) else (None, None)
        if method not in INPUT_METHODS or not isinstance(params, dict | None):
            raise failed(f"the server asked for input of the unknown kind {if_short(str(method), 64)!r}")
    return input_requests(answer)


async def responses(asking: Asking, requests: Mapping[str, InputRequest]) -> dict[str, dict[str, Any]]:
    """Answer all at the same time. If one cannot be answered at all, the others are withdrawn; `RequestRefused`."""
    answers: dict[str, dict[str, Any]] = {}
    refusals: list[str] = []

    async def answer(key: str, asked: InputRequest) -> None:
        try:
            answers[key] = await answered(asking.on_input, asked)
        except InputRefused as refusal:
            refusals.append(f"the server asked for {asked.method}: {refusal}")
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for key, asked in requests.items():
            group.start_soon(answer, key, asked)
    if refusals:
        raise failed(refusals[0])
    return {key: answers[key] for key in requests}


def _urls(refusal: RequestRefused) -> dict[str, InputRequest]:
    data = refusal.details.get("mcp_data")
    listed = data.get("elicitations") if isinstance(data, dict) else None
    urls = {}
    for asked in listed[: MOST_REQUESTS + 1] if isinstance(listed, list) else []:
        id_ = asked.get("elicitationId") if isinstance(asked, dict) else None
        if isinstance(id_, str) and len(id_) <= _LONGEST_ID and isinstance(asked.get("url"), str):
            urls[id_] = InputRequest(ELICITATION, {**asked, "mode": "url"})
    if not urls:
        raise failed("the server asked to visit a URL and did not say which")
    return urls


Work = Callable[[SDKClient], Awaitable[dict[str, Any]]]
Send = Callable[[PendingRequest, Work, MCPRequest | None], Awaitable[dict[str, Any]]]
"""Does the work for a request, or sends the request directly. Returns the outcome."""

_RESERVED = "io.modelcontextprotocol/"
_ELICITATION: Mapping[str, Any] = {"elicitation": {"form": {}, "url": {}}, "extensions": APPS}
_NO_OPTIONS = (None, None, None, None)
_TTL_MARGIN = 60.0  # seconds that a server keeps a task after the call could have ended


class SessionRequests:
    """The requests of one session. Usable when `serve` has been called."""

    def __init__(self, send: Send, policy: HostLimits, turns: CallTurns) -> None:
        self.progress: dict[str, PendingRequest] = {}
        """Requests by their progress tokens."""
        self.server_requests = ServerRequests(turns, self.progress)
        self.visited = VisitedURLs()
        self.tasks: dict[str, ServerTask] = {}
        self._send = send
        self._policy = policy
        self._client: SDKClient | None = None
        self._tokens = count(1)

    def serve(self, client: SDKClient) -> None:
        self._client = client

    def call_tool(self, request: ToolRequest) -> Awaitable[dict[str, Any]]:
        """Return the result as the server sent it, or an error result. Raises a `ServerFailure` or `CallTimeout`."""
        cap = (request.cap or self._policy.call_cap) if request.extend else request.timeout
        pending = PendingRequest(f"tool {request.tool!r}", request.timeout, cap, request.on_progress)
        token = self.new_token(pending)
        params = {"name": request.tool, "arguments": dict(request.arguments), "_meta": {"progressToken": token}}
        if not _is_plain(request):
            params |= self._options(request, token)
        if self._client is not None and request.tool in self._client.task_tools:
            params["task"] = {"ttl": int((cap + _TTL_MARGIN) * 1000)}
        return self._exchange(pending, MCPRequest("tools/call", params), request, token)

    def read(self, request: ReadRequest) -> Awaitable[dict[str, Any]]:
        """Return the result as the server sent it. Raises a `ServerFailure` or `CallTimeout`."""
        limit = min(request.timeout, self._policy.request_limit)
        pending = PendingRequest(request.method, limit, request.timeout, patience=request.timeout)
        params = {**request.params, **({} if _is_plain(request) else self._options(request))}
        return self._exchange(pending, MCPRequest(request.method, params), request)

    def notified(self, method: str, params: Mapping[str, Any]) -> bool:
        """Handle a notification about a request; return False for any other."""
        match method:
            case "notifications/progress":
                token = params.get("progressToken")
                if isinstance(token, str) and (pending := self.progress.get(token)):
                    pending.progressed(params.get("progress"), params.get("total"), params.get("message"))
            case "notifications/tasks/status" | "notifications/tasks":
                id_ = params.get("taskId")
                if isinstance(id_, str) and (task := self.tasks.get(id_)):
                    task.announced(params)
            case "notifications/elicitation/complete":
                self.visited.complete(params)
            case _:
                return False
        return True

    def _exchange(
        self, pending: PendingRequest, request: MCPRequest, asking: Asking, token: str | None = None
    ) -> Awaitable[dict[str, Any]]:
        """Send a request and return its last answer. A call of a tool has a progress token."""
        call = None
        if self._client is not None and not self._client.is_modern:  # newer servers send no requests
            what = request.method if token is None else request.params["name"]
            call = self.server_requests.open(what, asking, pending)
        return self._answered(pending, request, asking, token, call)

    async def _answered(
        self,
        pending: PendingRequest,
        request: MCPRequest,
        asking: Asking,
        token: str | None,
        call: AskableCall | None,
    ) -> dict[str, Any]:
        first: dict[str, Any] | RequestRefused
        try:
            with nullcontext() if call is None else call:
                try:
                    first = await self._send(pending, lambda client: client.request(request), request)
                except RequestRefused as refusal:
                    if asking.on_input is None or not wants_urls(refusal):
                        raise
                    first = refusal
                else:
                    check_result(first)
                    if "task" not in first and ("resultType" not in first or not is_unfinished(first)):
                        return without_own_keys(_without_mark(first))
                pending = pending.resumed()
                if token is not None:
                    self.progress[token] = pending
                rounds = MultiRound(self, request, asking, pending, call, has_progress=token is not None)
                result = await self._send(pending, lambda client: rounds.finish(client, first), None)
                check_result(result)
                return without_own_keys(_without_mark(result))
        except RequestRefused as refusal:
            if wants_urls(refusal):  # they are for the owner, who was asked or cannot be
                refusal.details.pop("mcp_data", None)
            if token is None:
                raise
            return _error_result(refusal)
        finally:
            if token is not None:
                del self.progress[token]

    def _options(self, asking: Asking, token: str | None = None) -> dict[str, Any]:
        """Return the parameters that only some requests have."""
        options: dict[str, Any] = {"_meta": self.meta(asking, token)}
        if asking.input_responses is not None:
            options["inputResponses"] = dict(asking.input_responses)
        if asking.request_state is not None:
            options["requestState"] = asking.request_state
        return options

    def new_token(self, pending: PendingRequest) -> str:
        """Return a progress token, by which progress of this request is known until the token is deleted."""
        token = f"a2c-{next(self._tokens)}"
        self.progress[token] = pending
        return token

    def meta(self, asking: Asking, token: str | None) -> dict[str, Any]:
        meta = {key: value for key, value in asking.meta.items() if not key.startswith(_RESERVED)}
        meta.pop("progressToken", None)
        if token is not None:
            meta["progressToken"] = token
        if self._client is not None and self._client.is_modern:
            declared = _ELICITATION if asking.capabilities is None and asking.on_input else asking.capabilities
            if declared is not None:  # tasks are followed for every caller
                extensions = declared.get("extensions")
                extensions = {**(extensions if isinstance(extensions, dict) else {}), TASKS_EXTENSION: {}}
                meta[CLIENT_CAPABILITIES_META_KEY] = {**declared, "extensions": extensions}
        return meta


def _is_plain(asking: Asking) -> bool:
    """True for a request without options, the usual one."""
    options = asking.on_input, asking.capabilities, asking.input_responses, asking.request_state
    return options == _NO_OPTIONS and not asking.meta


def _without_mark(raw: dict[str, Any]) -> dict[str, Any]:
    """Remove the field by which the newer protocol marks finished results."""
    if raw.get("resultType") != "complete":
        return raw
    return {key: value for key, value in raw.items() if key != "resultType"}


def _error_result(refusal: RequestRefused) -> dict[str, Any]:
    """Return a refused call as a result that keeps the code and the data of the error (WIRE §9)."""
    details = refusal.details
    result: dict[str, Any] = {"content": [{"type": "text", "text": str(details["mcp_message"])}], "isError": True}
    if "mcp_code" not in details:
        return result
    error = {"code": details["mcp_code"], "message": details["mcp_message"]}
    if "mcp_data" in details:
        error["data"] = details["mcp_data"]
    return result | {"_meta": {"a2c_mcp_error": error}}
