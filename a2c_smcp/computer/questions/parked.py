"""Calls with `questions: "result"` of MCP servers that ask by requests of their own (revisions up to 2025-11-25).

An agent that speaks MCP itself gets an `InputRequiredResult`, and asks again under a new `req_id` with the responses
and the state (WIRE §9). Servers of 2026-07-28 return that result themselves. An older server asks in the middle of the
call and waits. So its call runs in a task of its own, a *run*, which requests of the agent take turns to follow:

- *followed*: a request waits in `_follow` for the next question or for the result. If the request ends first, by a
  cancel or by its deadline, so does the run.
- *parked*: the questions were returned as a result, with a random handle as the state. The run goes on waiting for the
  responses, until the deadline of the request that was answered last. Then it is cancelled, and its handle is gone.

Each request writes itself into the journal before it answers anything, so one that is sent again never answers twice. A
handle is good for one request, of the same agent in the same office, for the same MCP client, tool and arguments;
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

from a2c_smcp.computer.calls.incoming import IncomingCall
from a2c_smcp.errors import BadRequest, QuestionEnded
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.sessions.tool_request import InputRefused, InputRequest

__all__ = ["ParkedRuns", "Run"]

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
        """Let the run go on for so long from now: the server has given a sign of life."""
        self.deadline = asyncio.get_running_loop().time() + seconds
        if self.limit is not None:
            self.limit.reschedule(self.deadline)

    async def ask(self, request: InputRequest) -> Result:
        """The agent's response to an input request, which a later request brings."""
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
        """The questions that the agent knows and the server still waits for."""
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
        """Whether the request goes on with a run, or wants to."""
        state = call.options.request_state if call.options else None
        return isinstance(state, str) and state.startswith(_PREFIX)

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
        run = self._parked.get(call.options.request_state or "")
        if run is None or not call.caller.is_exactly(run.call.caller):
            raise QuestionEnded("the call that this request_state belongs to has ended")
        if (run.call.name, run.call.params) != (call.name, call.params):
            raise BadRequest("request_state: belongs to another call", field="request_state")
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
        others = [each for each in self._parked.values() if each is not run]
        of_agent = sum(each.call.caller == run.call.caller for each in others)
        if of_agent >= _MOST_OF_AGENT or sum(each.server == run.server for each in others) >= _MOST_OF_SERVER:
            raise InputRefused("nobody can answer: too many calls wait for answers")

    def cancel(self, agent: str, req_id: str) -> None:
        """End the parked run that this request belongs to."""
        self._end(lambda run: run.call.caller.agent == agent and req_id in run.req_ids)

    def forget(self, office: str, agent: str | None = None) -> None:
        """End the runs of an agent that has left, or of an office that this computer has left."""
        self._end(lambda run: run.call.caller.office == office and agent in (None, run.call.caller.agent))

    def keep_only(self, office: str, agent: str) -> None:
        """End the parked runs of other agents."""
        self._end(lambda run: run.call.caller.office == office and run.call.caller.agent != agent)

    async def close(self) -> None:
        for run in list(self._parked.values()):
            self._unpark(run)
        await cancel_and_wait(*(run.task for run in self._runs))

    async def _follow(self, run: Run) -> Result:
        try:
            async with asyncio.timeout_at(run.deadline) as run.limit:
                while not run.task.done() and not run.questions:
                    run.asked.clear()
                    await _first_of(run.task, run.asked)
        except BaseException:
            run.task.cancel()
            raise
        finally:
            run.limit = None
        return run.task.result() if run.task.done() else self._park(run)

    def _park(self, run: Run) -> Result:
        run.handle = _PREFIX + secrets.token_hex(16)
        run.timer = asyncio.get_running_loop().call_at(run.deadline, self._expire, run)
        self._parked[run.handle] = run
        run.shown = tuple(run.questions)
        requests = {name: request._asdict() for name, (request, _) in run.questions.items()}
        return {"resultType": "input_required", "inputRequests": requests, "requestState": run.handle}

    def _unpark(self, run: Run) -> None:
        del self._parked[run.handle]
        if run.timer is not None:
            run.timer.cancel()

    def _expire(self, run: Run) -> None:
        self._end(lambda each: each is run)

    def _end(self, is_meant: Callable[[Run], bool]) -> None:
        for run in [run for run in self._parked.values() if is_meant(run)]:
            self._unpark(run)
            run.task.cancel()

    def _ended(self, run: Run) -> None:
        self._runs.discard(run)
        if not run.task.cancelled():
            run.task.exception()  # retrieved, or asyncio logs it: a parked run may end while nothing follows it


async def _first_of(task: asyncio.Task[Result], event: asyncio.Event) -> None:
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
