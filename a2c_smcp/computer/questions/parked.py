"""Calls with `questions: "result"` of MCP servers that ask by requests of their own (revisions up to 2025-11-25).

An agent that speaks MCP itself gets an `InputRequiredResult`, and asks again under a new `req_id` with the responses
and the state (WIRE §9). Servers of 2026-07-28 return that result themselves. An older server asks in the middle of the
call and waits. So its call runs in a task of its own, a *run*. Successive requests of the agent wait for its next
question or its result:

- *followed*: a request waits in `_follow` for the next question or for the result. If the request ends first, by a
  cancel or by its deadline, so does the run.
- *parked*: the questions were returned as a result, with a random handle as the state. The run waits for the responses,
  until the deadline of the request that was answered last. Then it is cancelled, and its handle is gone.

Each request writes itself into the journal before it answers anything, so one that is sent again never answers twice. A
handle is valid for one request, of the same agent in the same office, for the same MCP client, tool and arguments;
everything else finds nothing (`QuestionEnded`). A run also ends when its agent leaves, when one of its requests is
cancelled, and with the computer. There are at most sixteen of an agent and eight of a server, so that parked runs
cannot take up all calls that a server may have at once.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from a2c_smcp.computer.calls.in_flight import digest_of
from a2c_smcp.computer.calls.incoming import IncomingCall
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.errors import BadRequest, QuestionEnded
from a2c_smcp.loops import cancel_and_wait, first_of
from a2c_smcp.mcp_host.sessions.tool_request import InputRefused
from a2c_smcp.protocol.questions import InputRequest, input_required

_PREFIX = "a2c-parked-"
_MOST_OF_AGENT = 16
_MOST_OF_SERVER = 8

Result = dict[str, Any]


@dataclass(slots=True, eq=False)
class Run:
    """One call of an older server, and the questions that it waits for. `shown` are those that the agent knows."""

    call: IncomingCall
    server: str
    deadline: float
    req_ids: set[str]
    task: asyncio.Task[Result] = field(init=False)
    questions: dict[str, tuple[InputRequest, asyncio.Future[Result]]] = field(default_factory=dict)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    handle: str = ""
    shown: tuple[str, ...] = ()
    timer: asyncio.TimerHandle | None = None
    limit: asyncio.Timeout | None = None

    def extend(self, seconds: float) -> None:
        """Move the deadline to so many seconds from now: the server has given a sign of life."""
        self.deadline = asyncio.get_running_loop().time() + seconds
        if self.limit is not None:
            self.limit.reschedule(self.deadline)

    async def ask(self, request: InputRequest) -> Result:
        """Return the agent's response to an input request, which a later request brings."""
        name = secrets.token_hex(4)
        answered: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.questions[name] = request, answered
        self.asked.set()
        try:
            return await answered
        finally:
            self.questions.pop(name, None)

    @property
    def waiting(self) -> list[str]:
        """The keys of the questions that the agent knows and the server still waits for."""
        return [name for name in self.shown if name in self.questions]

    def answer(self, responses: Mapping[str, Any]) -> None:
        for name in self.waiting:
            _, answered = self.questions.pop(name)
            if not answered.done():
                answered.set_result(dict(responses[name]))


class ParkedRuns:
    """The runs of all agents: followed and parked ones."""

    def __init__(self) -> None:
        self._runs: set[Run] = set()
        self._parked: dict[str, Run] = {}

    def is_state(self, call: IncomingCall) -> bool:
        """True if the request has the state of a parked run, perhaps of one that has ended; `go_on` refuses it then."""
        return state_of(call).startswith(_PREFIX)

    async def begin(
        self, call: IncomingCall, server: str, deadline: float, work: Callable[[Run], Coroutine[Any, Any, Result]]
    ) -> Result:
        """Run `work` until its result or its first question. Raises `TimeoutError` at the deadline."""
        run = Run(call, server, deadline, {call.req_id})
        run.task = asyncio.get_running_loop().create_task(work(run))
        self._runs.add(run)
        run.task.add_done_callback(lambda _: self._ended(run))
        return await self._follow(run)

    async def go_on(self, call: IncomingCall, deadline: float, begin: Callable[[], None]) -> Result:
        """Answer the questions of a parked run, and follow it further. Raises `QuestionEnded` or `BadRequest`."""
        assert call.options
        run = self._parked.get(state_of(call))
        require_same(call, run.call if run else None)
        assert run
        responses = call.options.input_responses or {}
        for name in run.waiting:
            if not isinstance(responses.get(name), Mapping):
                raise BadRequest(f"input_responses: {name} is missing", field="input_responses")
        begin()
        self._unpark(run)
        run.call, run.deadline = call, deadline
        run.req_ids.add(call.req_id)
        run.answer(responses)
        return await self._follow(run)

    def require_room(self, run: Run) -> None:
        """Raise `InputRefused` if no further run may be parked."""
        others = [other for other in self._parked.values() if other is not run]
        of_agent = sum(other.call.caller == run.call.caller for other in others)
        if of_agent >= _MOST_OF_AGENT or sum(other.server == run.server for other in others) >= _MOST_OF_SERVER:
            raise InputRefused("nobody can answer: too many calls wait for answers")

    def cancel(self, caller: Caller, req_id: str) -> None:
        """End the parked run that this request belongs to."""
        self._end(lambda run: run.call.caller == caller and req_id in run.req_ids)

    def drop(self, matches: Callable[[Caller], bool]) -> None:
        """End the parked runs of these agents."""
        self._end(lambda run: matches(run.call.caller))

    async def close(self) -> None:
        for run in list(self._parked.values()):
            self._unpark(run)
        await cancel_and_wait(*(run.task for run in self._runs))

    async def _follow(self, run: Run) -> Result:
        try:
            async with asyncio.timeout_at(run.deadline) as run.limit:
                while not run.task.done() and not run.questions:
                    run.asked.clear()
                    await first_of(run.task, run.asked)
        except BaseException:
            run.task.cancel()
            raise
        finally:
            run.limit = None
        return run.task.result() if run.task.done() else self._park(run)

    def _park(self, run: Run) -> Result:
        run.handle = _PREFIX + secrets.token_hex(16)
        run.timer = asyncio.get_running_loop().call_at(run.deadline, self._end, lambda each: each is run)
        self._parked[run.handle] = run
        run.shown = tuple(run.questions)
        return input_required({name: request for name, (request, _) in run.questions.items()}, run.handle)

    def _unpark(self, run: Run) -> None:
        del self._parked[run.handle]
        if run.timer is not None:
            run.timer.cancel()

    def _end(self, matches: Callable[[Run], bool]) -> None:
        for run in [run for run in self._parked.values() if matches(run)]:
            self._unpark(run)
            run.task.cancel()

    def _ended(self, run: Run) -> None:
        self._runs.discard(run)
        if not run.task.cancelled():
            run.task.exception()  # retrieved, or asyncio logs it: a parked run may end while nothing follows it


def state_of(call: IncomingCall) -> str:
    """The state in a request; empty if it has none."""
    state = call.options.request_state if call.options else None
    return state if isinstance(state, str) else ""


def require_same(call: IncomingCall, known: IncomingCall | None, *, is_same_tool: bool = True) -> None:
    """Raise `QuestionEnded` or `BadRequest` unless a request repeats the call that its state belongs to."""
    if known is None or not call.caller.is_exactly(known.caller):
        raise QuestionEnded("the call that this request_state belongs to has ended")
    if known.name != call.name or digest_of(known.params) != digest_of(call.params) or not is_same_tool:
        raise BadRequest("request_state: belongs to another call", field="request_state")
