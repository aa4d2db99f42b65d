"""Requests that a server of an older revision sends to us: questions, and what it asks about its tasks.

**Attribution.** Such a request does not say which call it belongs to. If it names a task, it belongs to the call that
follows the task, and to no other. Otherwise it belongs to the oldest call in flight that can be asked and waits for no
answer yet: a server asks one thing after the other in a call. If all wait, it belongs to the oldest. A request that
belongs to no call has nobody to answer it.

**Life of a question.** It is answered by the `on_input` of its call, in the task that the SDK starts for the request;
with a `task` among its parameters, in a task of its own (`OwnTasks`). It ends with its answer, when the server
withdraws it (the SDK cancels the task), or with its call: `AskableCall.close` cancels every question that is open, and
the server is told that nobody answered. A call is closed once, by its caller, and gets no question afterwards.

**Bounds.** At most `MOST_QUESTIONS` are open for a server, none larger than `LARGEST` bytes; the SDK's side bounds
requests of all kinds (`limited_requests`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

import anyio
import anyio.abc
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST

from a2c_smcp.mcp_host.message_limits import is_within
from a2c_smcp.mcp_host.sessions.own_tasks import RELATED_TASK, OwnTasks
from a2c_smcp.mcp_host.sessions.tool_request import InputRefused, InputRequest, OnInput
from a2c_smcp.mcp_host.transports.in_flight_request import InFlightRequest

__all__ = ["INPUT_METHODS", "LARGEST", "AskableCall", "ServerRequests", "answered"]

logger = logging.getLogger(__name__)

INPUT_METHODS = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})
MOST_QUESTIONS = 16
LARGEST = 256 * 1024
_TASK_KNOWN = 1.0  # seconds between a question about a task and the answer that names the task

_UNANSWERED: dict[str, dict[str, Any]] = {"elicitation/create": {"action": "cancel"}, "roots/list": {"roots": []}}


async def answered(on_input: OnInput | None, asked: InputRequest) -> dict[str, Any]:
    """Return MCP's result for an input request, also where nobody can answer. Raises `InputRefused` for sampling."""
    try:
        if on_input is None:
            raise InputRefused("nobody can answer here")
        return await on_input(asked)
    except InputRefused as refusal:
        return _unanswered(asked, refusal)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return _unanswered(asked, InputRefused("it was withdrawn"))  # what `on_input` waited for was cancelled
    except Exception:
        logger.exception("%s could not be answered", asked.method)
        return _unanswered(asked, InputRefused("internal error"))


def _unanswered(asked: InputRequest, refusal: InputRefused) -> dict[str, Any]:
    if asked.method not in _UNANSWERED:
        raise refusal
    return dict(_UNANSWERED[asked.method])


class AskableCall:
    """A call in flight whose caller can be asked. `pending` is its request, `task` the id of the task it follows."""

    def __init__(self, calls: dict[AskableCall, None], on_input: OnInput, pending: InFlightRequest) -> None:
        self.pending = pending
        self.task: str | None = None
        self._on_input = on_input
        self._calls = calls
        self._open: set[anyio.CancelScope] = set()
        calls[self] = None

    @property
    def is_waiting(self) -> bool:
        return bool(self._open)

    def close(self) -> None:
        self._calls.pop(self, None)
        for scope in list(self._open):
            scope.cancel()

    async def ask(self, asked: InputRequest) -> dict[str, Any]:
        with anyio.CancelScope() as scope:
            self._open.add(scope)
            self.pending.heard()
            try:
                return await answered(self._on_input, asked)
            finally:
                self._open.discard(scope)
                self.pending.heard()
        return _unanswered(asked, InputRefused("its call has ended"))


class ServerRequests:
    """Answers the requests of one server. `group` runs tasks; without it there are none yet."""

    def __init__(self) -> None:
        self.group: anyio.abc.TaskGroup | None = None
        self._calls: dict[AskableCall, None] = {}
        self._tasks = OwnTasks()
        self._questions = 0
        self._call_changed = anyio.Event()

    def open(self, on_input: OnInput, pending: InFlightRequest) -> AskableCall:
        """Add a call that can be asked. The caller closes it."""
        return AskableCall(self._calls, on_input, pending)

    def follows(self, call: AskableCall, task: str) -> None:
        """From now on requests that name this task belong to the call."""
        call.task = task
        self._call_changed.set()
        self._call_changed = anyio.Event()

    def answer(self, method: str, params: dict[str, Any]) -> Awaitable[dict[str, Any]] | None:
        """Return the answer that is being made; `None` for a method that is not known here."""
        if method in INPUT_METHODS:
            return self._answer_question(method, params)
        return self._answer_about_task(method, params) if method in _TASK_METHODS else None

    async def _answer_question(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if not is_within(params, LARGEST):
            raise MCPError(INVALID_PARAMS, f"more than {LARGEST} bytes")
        if self._questions >= MOST_QUESTIONS:
            raise MCPError(INTERNAL_ERROR, f"{MOST_QUESTIONS} requests wait for an answer already")
        task = params.pop("task", None)
        asked = InputRequest(method, params)
        if not isinstance(task, dict):
            return await self._ask(asked)
        if self.group is None or method == "roots/list":
            raise MCPError(INVALID_REQUEST, f"{method} cannot be a task here")
        return self._tasks.create(task.get("ttl"), lambda: self._ask(asked), self.group)

    async def _ask(self, asked: InputRequest) -> dict[str, Any]:
        self._questions += 1
        try:
            call = await self._call_of(asked.params)
            return await (answered(None, asked) if call is None else call.ask(asked))
        except InputRefused as refusal:
            raise MCPError(INVALID_REQUEST, str(refusal)) from None
        finally:
            self._questions -= 1

    async def _call_of(self, params: dict[str, Any]) -> AskableCall | None:
        meta = params.get("_meta")
        related = meta.get(RELATED_TASK) if isinstance(meta, dict) else None
        if not isinstance(related, dict):
            free = (call for call in self._calls if not call.is_waiting)
            return next(free, next(iter(self._calls), None))
        with anyio.move_on_after(_TASK_KNOWN):  # the server may ask before its answer that names the task is read
            while True:
                for call in self._calls:
                    if call.task is not None and call.task == related.get("taskId"):
                        return call
                await self._call_changed.wait()
        return None

    async def _answer_about_task(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        match method:
            case "tasks/get":
                return self._tasks.get(params)
            case "tasks/cancel":
                return self._tasks.cancel(params)
            case "tasks/result":
                return await self._tasks.result(params)
            case _:
                return self._tasks.list()


_TASK_METHODS = frozenset({"tasks/get", "tasks/cancel", "tasks/result", "tasks/list"})
