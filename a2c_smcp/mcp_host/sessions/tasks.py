"""Tasks of servers: a call that is answered with a task is followed to the end of the task.

There are two kinds. A task of 2025-11-25 is asked for by the call; its result is fetched with `tasks/result`, which
waits for the end, and while that waits the server may send its questions (`server_requests`). A task of the extension
`io.modelcontextprotocol/tasks` (2026-07-28) is the server's choice; `tasks/get` brings its result and its questions,
and `tasks/update` takes the answers.

**Following.** One loop polls, at the interval that the server names within our bounds, or earlier when it announces a
new status. What may wait for long runs beside the loop: `tasks/result` while a task asks, and its questions. The first
outcome counts (`_end`); it ends the loop and all that runs beside it. So a question without an answer does not hide the
end of its task, and is withdrawn then.

**Ends.** The result of the task; `RequestRefused` for one that failed, was cancelled by the server or is unknown to it
(expired); or cancellation, with the call or at its deadline. A task that is no longer followed and has not ended, as
far as we know, is cancelled at the server, once, within `_FAREWELL` seconds.

**Signs of life.** Each answer to a poll, and each announcement, counts as one. New status messages are reported as
progress unless the server reports progress itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import anyio
import anyio.abc
from mcp_types import INTERNAL_ERROR

from a2c_smcp.errors import SMCPError
from a2c_smcp.mcp_host.failures import RequestRefused, if_short
from a2c_smcp.mcp_host.limits import refused
from a2c_smcp.mcp_host.sessions.sdk_client import SDKClient
from a2c_smcp.mcp_host.transports.direct_requests import MCPRequest, PendingRequest
from a2c_smcp.protocol.questions import InputRequest

Answer = Callable[[dict[str, InputRequest]], Awaitable[dict[str, dict[str, Any]]]]
"""Answers input requests by their keys; raises `RequestRefused`."""

_SHORTEST_PAUSE, _USUAL_PAUSE, _LONGEST_PAUSE = 0.1, 1.0, 10.0
_FAREWELL = 1.0
_LONGEST_ID = 1024
_ENDED = frozenset({"completed", "failed", "cancelled"})
_STATUSES = _ENDED | {"working", "input_required"}


class ServerTask(ABC):
    """One task while it is followed."""

    _interval: str
    """The field that says how often to poll, in milliseconds."""

    def __init__(self, client: SDKClient, seed: Mapping[str, Any], pending: PendingRequest) -> None:
        self.id = _id(seed)
        self._client = client
        self._seed = seed
        self._pending = pending
        self._outcome: dict[str, Any] | SMCPError | None = None
        self._polling = anyio.CancelScope()
        self._news = anyio.Event()
        self._message: str | None = None
        self._has_ended = False

    def announced(self, params: Mapping[str, Any]) -> None:
        """Handle a status that the server announces: it is polled soon, so a wrong announcement does no harm."""
        self._heard(params)
        self._news.set()

    async def follow(self) -> dict[str, Any]:
        """Return the result of the call. Raises `RequestRefused`."""
        try:
            outcome = await self._until_end()
        except anyio.get_cancelled_exc_class():
            await self._cancel()
            raise
        if not isinstance(outcome, SMCPError):
            return outcome
        if not self._has_ended:
            await self._cancel()
        raise outcome

    async def _cancel(self) -> None:
        with anyio.move_on_after(_FAREWELL, shield=True), suppress(SMCPError):
            await self._request("tasks/cancel")

    async def _until_end(self) -> dict[str, Any] | SMCPError:
        async with anyio.create_task_group() as group:
            with self._polling:
                try:
                    await self._poll(group)
                except RequestRefused as refusal:
                    self._has_ended = self._has_ended or "mcp_code" in refusal.details
                    self._end(_unknown(refusal))
                except SMCPError as failure:
                    self._end(failure)
            group.cancel_scope.cancel()
        assert self._outcome is not None
        return self._outcome

    async def _poll(self, group: anyio.abc.TaskGroup) -> None:
        """Poll until there is an outcome: setting one cancels this."""
        task = self._seed
        while True:
            self._heard(task)
            await self._handle(task, group)
            await self._wait(task)
            task = await self._request("tasks/get")

    @abstractmethod
    async def _handle(self, task: Mapping[str, Any], group: anyio.abc.TaskGroup) -> None:
        """Decide by the status of the task: set the outcome, begin something beside the loop, or nothing."""

    async def _wait(self, task: Mapping[str, Any]) -> None:
        """Wait for the next poll."""
        if task is not self._seed or task.get("status") == "working":
            await anyio.sleep(_SHORTEST_PAUSE)
            with anyio.move_on_after(_seconds(task.get(self._interval)) - _SHORTEST_PAUSE):
                await self._news.wait()
        self._news = anyio.Event()

    def _end(self, outcome: dict[str, Any] | SMCPError) -> None:
        if self._outcome is None:
            self._outcome = outcome
        self._polling.cancel()

    def _heard(self, task: Mapping[str, Any]) -> None:
        message = task.get("statusMessage")
        if not isinstance(message, str) or message == self._message:
            self._pending.heard()
            return
        self._message = message
        self._pending.heard(if_short(message))

    async def _request(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._client.request(MCPRequest(method, {"taskId": self.id, **params}))

    def _status(self, task: Mapping[str, Any]) -> str:
        status = task.get("status")
        if status not in _STATUSES:
            raise failed("the status of its task is not one of MCP's")
        self._has_ended = status in _ENDED
        return str(status)

    def _cancelled(self) -> RequestRefused:
        return failed("the server cancelled the task" + (f": {self._message}" if self._message else ""))


class OlderTask(ServerTask):
    """A task of 2025-11-25."""

    _interval = "pollInterval"
    _is_fetching = False

    async def _handle(self, task: Mapping[str, Any], group: anyio.abc.TaskGroup) -> None:
        status = self._status(task)
        if status == "cancelled":
            self._end(self._cancelled())
        elif status != "working" and not self._is_fetching:
            self._is_fetching = True
            if status == "input_required":  # the server may send its questions only while this waits
                group.start_soon(self._fetch)
            else:
                await self._fetch()

    async def _fetch(self) -> None:
        try:
            self._end(await self._request("tasks/result"))
        except SMCPError as failure:
            self._has_ended = True
            self._end(failure)


class ExtensionTask(ServerTask):
    """A task of the extension. `read` reads the input requests of a status, `answer` answers them."""

    _interval = "pollIntervalMs"

    def __init__(
        self,
        client: SDKClient,
        seed: Mapping[str, Any],
        pending: PendingRequest,
        *,
        read: Callable[[Mapping[str, Any]], dict[str, InputRequest]],
        answer: Answer,
        most: int,
    ) -> None:
        super().__init__(client, seed, pending)
        self._read = read
        self._answer = answer
        self._most = most
        self._asked: set[str] = set()
        self._asking: set[anyio.CancelScope] = set()

    async def _handle(self, task: Mapping[str, Any], group: anyio.abc.TaskGroup) -> None:
        if task is self._seed:
            return
        status = self._status(task)
        if status == "input_required":
            self._ask(task, group)
            return
        for scope in self._asking:
            scope.cancel()
        if status == "completed":
            result = task.get("result")
            self._end(result if isinstance(result, dict) else failed("its task has no result"))
        elif status == "failed":
            self._end(_error(task.get("error"), self._message))
        elif status == "cancelled":
            self._end(self._cancelled())

    def _ask(self, task: Mapping[str, Any], group: anyio.abc.TaskGroup) -> None:
        """Begin to answer the input requests that are new."""
        new = {key: asked for key, asked in self._read(task).items() if key not in self._asked}
        if not new:
            return
        self._asked |= new.keys()
        if len(self._asked) > self._most:
            raise failed(f"its task asked for input more than {self._most} times")
        group.start_soon(self._update, new)

    async def _update(self, new: dict[str, InputRequest]) -> None:
        with anyio.CancelScope() as scope:
            self._asking.add(scope)
            try:
                answers = await self._answer(new)
                self._asking.discard(scope)
                await self._request("tasks/update", inputResponses=answers)
                self._news.set()
            except SMCPError as failure:
                self._end(failure)
            finally:
                self._asking.discard(scope)


def _id(seed: Mapping[str, Any]) -> str:
    id_ = seed.get("taskId")
    if not isinstance(id_, str) or not 0 < len(id_) <= _LONGEST_ID:
        raise failed("the server answered with a task that has no usable id")
    return id_


def _seconds(milliseconds: object) -> float:
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool):
        return _USUAL_PAUSE
    return min(max(milliseconds / 1000, _SHORTEST_PAUSE), _LONGEST_PAUSE)


def failed(reason: str) -> RequestRefused:
    """Return the failure of a request that the server did not end with an error of its own."""
    return RequestRefused(reason, mcp_message=reason)


def _unknown(refusal: RequestRefused) -> RequestRefused:
    """Return the failure of a poll: usually the server has forgotten the task."""
    if "mcp_code" not in refusal.details:
        return refusal
    reason = f"its task cannot be followed: {refusal.details['mcp_message']}"
    return RequestRefused(reason, **refusal.details | {"mcp_message": reason})


def _error(error: object, message: str | None) -> RequestRefused:
    """Return the JSON-RPC error that a task failed with."""
    if not isinstance(error, dict) or not isinstance(text := error.get("message"), str):
        return failed("its task failed" + (f": {message}" if message else ""))
    code = error.get("code")
    outcome = refused(code if type(code) is int else INTERNAL_ERROR, text, error.get("data"))
    return outcome if isinstance(outcome, RequestRefused) else failed(text)
