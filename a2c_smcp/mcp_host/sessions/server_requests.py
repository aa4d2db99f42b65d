"""Requests that a server of an older revision sends to us: its questions.

**Attribution.** Such a request does not say which call it belongs to, unless it names a task, or comes in the HTTP
response to a call: then it belongs to that call, and to no other. Otherwise it may belong to any call that is in flight
when it arrives, also to one that the caller has left and the server has not answered. It is never given to one of
several by a guess: it waits until all the others have ended. An owner who can be asked is asked after `_CLEARS` seconds
of that, and no call is named. A question is not answered if nobody can be asked for any of these calls, or if the
caller has left one whose tool may ask. `turns` sees to it that calls whose questions could be mistaken hardly ever
meet.

**Life of a question.** It is answered by the `on_input` of its call, in the task that the SDK starts for the request.
It ends with its answer, when the server withdraws it (the SDK cancels the task), or with its call: `AskableCall.close`
cancels every open question, and the server learns that there is no answer. A call is closed once, by its caller,
and gets no question afterwards. A question without a named call ends when the last call that it may belong to is
closed. We do not declare tasks of MCP 2025-11-25: a question that asks for one is answered like any other.

**Bounds.** At most `MOST_QUESTIONS` are open for a server, none larger than `LARGEST` bytes; the SDK's side bounds
requests of all kinds (`limited_requests`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from types import TracebackType
from typing import Any

import anyio
from mcp import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS, INVALID_REQUEST

from a2c_smcp.errors import CallTimeout
from a2c_smcp.mcp_host.failures import ServerGone
from a2c_smcp.mcp_host.limits import is_within
from a2c_smcp.mcp_host.sessions.tool_request import Asking, InputRefused, OnInput
from a2c_smcp.mcp_host.sessions.turns import LINGERS, CallTurns
from a2c_smcp.mcp_host.transports.direct_requests import PendingRequest
from a2c_smcp.mcp_host.transports.messages import RELATED_CALL
from a2c_smcp.protocol.questions import ELICITATION, INPUT_METHODS, ROOTS, InputRequest

logger = logging.getLogger(__name__)

RELATED_TASK = "io.modelcontextprotocol/related-task"
MOST_QUESTIONS = 16
LARGEST = 256 * 1024
_CLEARS = 1.0
_TASK_KNOWN = 1.0  # seconds between a question about a task and the answer that names the task

_UNANSWERED: dict[str, dict[str, Any]] = {ELICITATION: {"action": "cancel"}, ROOTS: {"roots": []}}


async def answered(on_input: OnInput | None, asked: InputRequest) -> dict[str, Any]:
    """Return MCP's result for an input request, also without an answer. Raises `InputRefused` for sampling."""
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


_UNANSWERED_CALL = (asyncio.CancelledError, CallTimeout, ServerGone)


class AskableCall:
    """A request in flight that a question may belong to; leaving its context closes it.

    `pending` is its request, `task` the id of the task that it follows.
    """

    __slots__ = ("_of", "_open", "asking", "has_ended", "is_closed", "pending", "task", "what")

    def __init__(self, of: ServerRequests, what: str, asking: Asking, pending: PendingRequest) -> None:
        self._of = of
        self.what, self.asking, self.pending = what, asking, pending
        self.task: str | None = None
        self.is_closed = self.has_ended = False
        self._open: set[anyio.CancelScope] = set()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._of.close(self, is_answered=kind is None or not issubclass(kind, _UNANSWERED_CALL))

    def close(self) -> None:
        self.is_closed = True
        for scope in [*self._open]:
            scope.cancel()

    async def ask(self, asked: InputRequest) -> dict[str, Any]:
        with anyio.CancelScope() as scope:
            self._open.add(scope)
            self.pending.waits_for_answer()
            try:
                return await answered(self.asking.on_input, asked)
            finally:
                self._open.discard(scope)
                self.pending.heard()
        return _unanswered(asked, InputRefused("its call has ended"))


class ServerRequests:
    """Answers the requests of one server. `requests` has those in flight by their progress tokens."""

    def __init__(self, turns: CallTurns, requests: Mapping[str, PendingRequest]) -> None:
        self._turns, self._requests = turns, requests
        self._calls: dict[AskableCall, None] = {}
        self._questions = 0
        self._unnamed: dict[anyio.CancelScope, list[AskableCall]] = {}
        self._call_changed = anyio.Event()

    def open(self, what: str, asking: Asking, pending: PendingRequest) -> AskableCall:
        """Add a request. The caller closes it."""
        call = AskableCall(self, what, asking, pending)
        self._calls[call] = None
        return call

    def close(self, call: AskableCall, *, is_answered: bool) -> None:
        """Close a request. One that the server has not answered may still ask for a while, and gets no answer."""
        call.close()
        if self._unnamed:
            self._end_unnamed()
        if is_answered:
            self._turns.answered(call.what)
            self._end(call)
        else:
            asyncio.get_running_loop().call_later(LINGERS, self._end, call)

    def _end(self, call: AskableCall) -> None:
        call.has_ended = True
        del self._calls[call]
        if self._questions:
            self._tell_change()

    def follows(self, call: AskableCall, task: str) -> None:
        """From now on requests that name this task belong to the call."""
        call.task = task
        self._tell_change()

    def answer(self, method: str, params: dict[str, Any]) -> Awaitable[dict[str, Any]] | None:
        """Return an awaitable for the answer; `None` for an unknown method."""
        return self._answer_question(method, params) if method in INPUT_METHODS else None

    async def _answer_question(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if not is_within(params, LARGEST):
            raise MCPError(INVALID_PARAMS, f"more than {LARGEST} bytes")
        if self._questions >= MOST_QUESTIONS:
            raise MCPError(INTERNAL_ERROR, f"{MOST_QUESTIONS} requests wait for an answer already")
        params.pop("task", None)
        self._questions += 1
        try:
            return await self._asked(InputRequest(method, params))
        except InputRefused as refusal:
            raise MCPError(INVALID_REQUEST, str(refusal)) from None
        finally:
            self._questions -= 1

    async def _asked(self, asked: InputRequest) -> dict[str, Any]:
        given = asked.params.get("_meta")
        meta = given if isinstance(given, dict) else {}
        if (token := meta.pop(RELATED_CALL, None)) is not None and not meta:
            del asked.params["_meta"]
        if isinstance(related := meta.get(RELATED_TASK), dict):
            call = await self._call_of_task(related.get("taskId"))
        elif token is not None:
            pending = self._requests.get(token) if isinstance(token, str) else None
            call = next((call for call in self._calls if call.pending is pending), None)
            if call is not None:
                self._turns.answered(call.what)
        else:
            return await self._asked_of(list(self._calls), asked)
        return await (answered(None, asked) if call is None or call.is_closed else call.ask(asked))

    async def _call_of_task(self, task: object) -> AskableCall | None:
        with anyio.move_on_after(_TASK_KNOWN):  # the server may ask before its answer that names the task is read
            while True:
                for call in self._calls:
                    if call.task is not None and call.task == task:
                        return call
                await self._call_changed.wait()
        return None

    async def _asked_of(self, calls: list[AskableCall], asked: InputRequest) -> dict[str, Any]:
        """Answer a question that belongs to one of these calls."""
        on_unnamed = next((call.asking.on_unnamed for call in calls if call.asking.on_unnamed), None)
        call = None
        with anyio.move_on_after(None if on_unnamed is None else _CLEARS):
            call = await self._only_one_of(calls)
        if call is not None:
            self._turns.asked(call.what)
            return await call.ask(asked)
        for each in calls:
            if not each.has_ended:
                self._turns.asked(each.what)
        if on_unnamed is None:
            if any(call.asking.on_input for call in calls):
                logger.warning("a question is not answered: nobody can tell which call of %s asks it", _named(calls))
            return await answered(None, asked)
        return await self._ask_unnamed(on_unnamed, calls, asked)

    async def _only_one_of(self, calls: list[AskableCall]) -> AskableCall | None:
        """Return the call that a question belongs to, once that is certain; `None` if it cannot become so."""
        while True:
            left = [call for call in calls if not call.has_ended]
            if not any(call.asking.on_input for call in left if not call.is_closed):
                return None
            if len(left) == 1:
                return left[0]
            if any(call.is_closed and not self._turns.is_settled(call.what) for call in left):
                return None
            await self._call_changed.wait()

    async def _ask_unnamed(self, on_input: OnInput, calls: list[AskableCall], asked: InputRequest) -> dict[str, Any]:
        """Ask for an answer, and name no call, until the last of these calls is closed."""
        with anyio.CancelScope() as scope:
            self._unnamed[scope] = calls
            try:
                self._end_unnamed()
                return await answered(on_input, asked)
            finally:
                del self._unnamed[scope]
        return _unanswered(asked, InputRefused("its call has ended"))

    def _end_unnamed(self) -> None:
        for scope, calls in self._unnamed.items():
            if all(call.is_closed for call in calls):
                scope.cancel()

    def _tell_change(self) -> None:
        self._call_changed.set()
        self._call_changed = anyio.Event()


def _named(calls: list[AskableCall]) -> str:
    return ", ".join(sorted({repr(call.what) for call in calls}))
