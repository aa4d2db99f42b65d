"""One request to a server when its first answer is not the last word: input requests, URLs to visit, tasks.

**Rounds (2026-07-28).** The server answers `resultType: "input_required"` with input requests, a state, or both. The
input requests are answered at the same time, then the same request is sent again under a new id, with the answers, and
with the state as it came if there was one. Both belong to this exchange alone: they are local to a round. An answer
without input requests means "not yet": it is repeated after a pause that grows. After `MOST_ROUNDS` the exchange fails.

**URLs (2025-11-25).** The error `URL_ELICITATION_REQUIRED` names URLs that a person has to visit. Each is asked once,
by its id; then the request is sent again. While the server still names the same ones, the person is not done: the
request is repeated after a pause, or at once when the server announces that a visit is complete. The deadline ends
this.

**Tasks.** See `tasks`.

**Ownership.** An exchange runs in a task of the session's owner, under a request of its own (`pending`), which carries
the deadline and is closed when the caller leaves: that cancels the exchange wherever it waits. It never outlives its
caller, and ends no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
from mcp_types import URL_ELICITATION_REQUIRED

from a2c_smcp.mcp_host.failures import RequestRefused
from a2c_smcp.mcp_host.message_limits import is_within
from a2c_smcp.mcp_host.sessions.sdk_client import SDKClient
from a2c_smcp.mcp_host.sessions.server_requests import INPUT_METHODS, LARGEST, answered
from a2c_smcp.mcp_host.sessions.tasks import FollowTask, failed
from a2c_smcp.mcp_host.sessions.tool_request import Asking, InputRefused, InputRequest
from a2c_smcp.mcp_host.transports.direct_requests import MCPRequest
from a2c_smcp.mcp_host.transports.in_flight_request import InFlightRequest

__all__ = ["MCPExchange", "VisitedURLs", "is_unfinished", "wants_urls"]

MOST_ROUNDS = 10
MOST_REQUESTS = 16
LONGEST_STATE = 64 * 1024
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_FIRST_VISIT_PAUSE, _LONGEST_VISIT_PAUSE = 0.5, 5.0
_LONGEST_ID = 256


def is_unfinished(raw: dict[str, Any]) -> bool:
    """Return whether an answer of 2026-07-28 is something else than a result. Without `resultType` it is one."""
    return bool(raw.get("resultType", "complete") != "complete")


def wants_urls(refusal: RequestRefused) -> bool:
    return refusal.details.get("mcp_code") == URL_ELICITATION_REQUIRED


class VisitedURLs:
    """The ids of URLs whose visits a server has announced as complete, as far as an exchange waits for them."""

    def __init__(self) -> None:
        self._waited: dict[str, anyio.Event] = {}

    def complete(self, params: Mapping[str, Any]) -> None:
        id_ = params.get("elicitationId")
        if isinstance(id_, str) and id_ in self._waited:
            self._waited[id_].set()

    async def wait(self, id_: str, seconds: float) -> None:
        """Wait for the announcement, or so long."""
        event = self._waited.setdefault(id_, anyio.Event())
        with anyio.move_on_after(seconds):
            await event.wait()
        if self._waited.get(id_) is event:
            del self._waited[id_]


class MCPExchange:
    """`finish` turns the first answer into the last one. Raises `RequestRefused` where that cannot be."""

    def __init__(
        self,
        request: MCPRequest,
        asking: Asking,
        pending: InFlightRequest,
        *,
        new_meta: Callable[[], dict[str, Any]],
        visited: VisitedURLs,
        follow: FollowTask,
    ) -> None:
        self._request = request
        self._asking = asking
        self._pending = pending
        self._new_meta = new_meta
        self._visited = visited
        self._follow = follow
        self._asked_urls: set[str] = set()
        self._pause = _FIRST_PAUSE
        self._rounds = 0

    async def finish(self, client: SDKClient, first: dict[str, Any] | RequestRefused) -> dict[str, Any]:
        answer = first
        while True:
            self._pending.heard()
            if isinstance(answer, RequestRefused):
                more = await self._visit(answer)
            elif self._is_task(client, answer):
                return await self._follow(client, answer, self._pending)
            elif self._is_last(client, answer):
                return answer
            else:
                more = await self._answers(answer)
            self._pending.heard()
            answer = await self._again(client, more)

    def _is_last(self, client: SDKClient, answer: dict[str, Any]) -> bool:
        if not is_unfinished(answer):
            return True
        if not client.is_modern or answer["resultType"] != "input_required":
            raise failed(f"the server answered with a result of the unknown kind {str(answer['resultType'])[:64]!r}")
        return self._asking.input_as_result

    def _is_task(self, client: SDKClient, answer: dict[str, Any]) -> bool:
        if self._request.method != "tools/call":
            return False
        return answer.get("resultType") == "task" if client.is_modern else _is_older_task(self._request, answer)

    async def _again(self, client: SDKClient, more: dict[str, Any]) -> dict[str, Any] | RequestRefused:
        kept = {key: value for key, value in self._request.params.items() if key not in _OF_A_ROUND}
        try:
            return await client.request(MCPRequest(self._request.method, {**kept, **more, "_meta": self._new_meta()}))
        except RequestRefused as refusal:
            return refusal

    async def _answers(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters that answer a round."""
        self._rounds += 1
        if self._rounds > MOST_ROUNDS:
            raise failed(f"the server asked for input more than {MOST_ROUNDS} times")
        state = answer.get("requestState")
        if state is not None and (not isinstance(state, str) or len(state) > LONGEST_STATE):
            raise failed(f"the server's request state is not a text of at most {LONGEST_STATE} characters")
        more = {} if state is None else {"requestState": state}
        requests = input_requests(answer)
        if requests:
            self._pause = _FIRST_PAUSE
            return {"inputResponses": await responses(self._asking, requests), **more}
        if state is None:
            raise failed("the server asked for input and did not say which")
        await anyio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        return more

    async def _visit(self, refusal: RequestRefused) -> dict[str, Any]:
        """Ask to visit the URLs that were not asked for yet, or wait for the visits."""
        if not wants_urls(refusal) or self._asking.on_input is None:
            raise refusal
        urls = _urls(refusal)
        if new := {id_: asked for id_, asked in urls.items() if id_ not in self._asked_urls}:
            self._asked_urls |= new.keys()
            if len(self._asked_urls) > MOST_REQUESTS:
                raise failed(f"the server asked to visit more than {MOST_REQUESTS} URLs")
            given = await responses(self._asking, new)
            if any(response.get("action") != "accept" for response in given.values()):
                raise failed("the server asked to visit a URL, and nobody has")
            self._pause = _FIRST_VISIT_PAUSE
        else:
            await self._visited.wait(next(iter(urls)), self._pause)
            self._pause = min(2 * self._pause, _LONGEST_VISIT_PAUSE)
        return {}


_OF_A_ROUND = frozenset({"inputResponses", "requestState", "_meta"})


def input_requests(answer: Mapping[str, Any]) -> dict[str, InputRequest]:
    """Read `inputRequests`. Raises `RequestRefused` for what is malformed, too much or too large."""
    asked = answer.get("inputRequests")
    if asked is None:
        return {}
    if not isinstance(asked, dict) or len(asked) > MOST_REQUESTS or not is_within(asked, LARGEST):
        raise failed(f"the server's input requests are not at most {MOST_REQUESTS} with {LARGEST} bytes together")
    return {key: _input_request(each) for key, each in asked.items()}


def _input_request(asked: object) -> InputRequest:
    method, params = (asked.get("method"), asked.get("params")) if isinstance(asked, dict) else (None, None)
    if method not in INPUT_METHODS or not isinstance(params, dict | None):
        raise failed(f"the server asked for input of the unknown kind {str(method)[:64]!r}")
    return InputRequest(str(method), params or {})


async def responses(asking: Asking, requests: Mapping[str, InputRequest]) -> dict[str, dict[str, Any]]:
    """Answer all at the same time. If one cannot be answered at all, the others are withdrawn; `RequestRefused`."""
    given: dict[str, dict[str, Any]] = {}
    refusals: list[str] = []

    async def answer(key: str, asked: InputRequest) -> None:
        try:
            given[key] = await answered(asking.on_input, asked)
        except InputRefused as refusal:
            refusals.append(f"the server asked for {asked.method}: {refusal}")
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for key, asked in requests.items():
            group.start_soon(answer, key, asked)
    if refusals:
        raise failed(refusals[0])
    return {key: given[key] for key in requests}


def _urls(refusal: RequestRefused) -> dict[str, InputRequest]:
    data = refusal.details.get("mcp_data")
    listed = data.get("elicitations") if isinstance(data, dict) else None
    found = {}
    for asked in listed[: MOST_REQUESTS + 1] if isinstance(listed, list) else []:
        id_ = asked.get("elicitationId") if isinstance(asked, dict) else None
        if isinstance(id_, str) and len(id_) <= _LONGEST_ID and isinstance(asked.get("url"), str):
            found[id_] = InputRequest("elicitation/create", {**asked, "mode": "url"})
    if not found:
        raise failed("the server asked to visit a URL and did not say which")
    return found


def _is_older_task(request: MCPRequest, answer: dict[str, Any]) -> bool:
    return "task" in request.params and isinstance(answer.get("task"), dict)
