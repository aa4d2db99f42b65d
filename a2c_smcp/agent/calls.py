"""Tool calls that hear of their progress, answer questions, or say how they want to be handled (WIRE §9).

`_calls` has the calls in flight that have a callback, by `req_id`, from before the request is sent until its outcome is
known. What a computer tells about another `req_id`, or about a call to another computer, is ignored.

A call keeps its callbacks when it is sent again on another connection, and it is sent with the same fields. What was
told meanwhile is lost. For progress that is harmless. Open questions are asked for with `client:get_questions`
(`_missed`) whenever a seat was taken again, and when a computer has entered, which may have restarted. The list is
applied before any later notice is handled: otherwise a question could be put that has just been withdrawn.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

from a2c_smcp.agent.blobs.transfers import AnyPath, Receive
from a2c_smcp.agent.desktops import OutgoingCall, Seat
from a2c_smcp.agent.events import Invoke
from a2c_smcp.agent.requests import Requests
from a2c_smcp.agent.standing_requests import Refresher
from a2c_smcp.endpoint import Reconnect
from a2c_smcp.errors import BadRequest, NotFound, SMCPError, UnsupportedEvent
from a2c_smcp.loops import invoke, is_cancelled
from a2c_smcp.protocol.codec import MAX_TIMEOUT
from a2c_smcp.protocol.questions import Answer, OnQuestion, Question
from a2c_smcp.protocol.results import CallToolResult
from a2c_smcp.registry.calls.context import OnProgress, ProgressInLoop

logger = logging.getLogger(__name__)

# The questions of one tool call: each is put to the agent's callback once, and its answer is sent to the computer.
#
# A question arrives by `notify:tell_question`, in the answer to `client:get_questions` after a reconnect, or both ways,
# in any order. `_seen` has the ids of all that arrived, so that the callback gets each of them once. `_open` has a task
# for each question that is not answered yet. The task waits for its turn (one question of a call at a time), calls the
# callback, and sends the answer. It ends early when the computer withdraws the question (`notify:tell_question_ended`)
# and when the call ends in any way: then the callback is cancelled if it is async, and its answer is not sent.
#
# The answer is sent until it is acked. That is safe, because the same answer again is acked as the first one (WIRE §9).
# 400 means that the content does not fit the form, and the question stays open: the callback is called again with the
# `problem`. 404 and 410 mean that the question is over.

# The state of a call, as its computer tells it.

_LONGEST = 240


@dataclass(frozen=True, slots=True)
class CallStatus:
    """The state of a call that has not ended.

    `state` is `queued` (it waits for its MCP server, or to be checked), `waiting` (for a person to approve it), `asked`
    (its tool waits for the answer to a question) or `running`; a newer computer may tell others. `reason` is for whom
    or what it waits, such as "the owner of laptop", and empty if it does not. `since` is in seconds since the epoch, by
    the clock of the computer. As text it is what people are told: "waiting for the owner of laptop".
    """

    state: str
    since: float
    reason: str = ""

    def __str__(self) -> str:
        if not self.reason:
            return self.state
        return f"{self.state}{'' if self.state == 'waiting' else ', waiting'} for {self.reason}"

    @classmethod
    def of_notice(cls, data: Mapping[str, Any]) -> CallStatus | None:
        """The status in a notice; `None` if it is malformed."""
        state, since, reason = data.get("state"), data.get("since"), data.get("reason")
        if not isinstance(state, str) or not state or type(since) not in (int, float):
            return None
        assert since is not None
        return cls(state[:_LONGEST], since, reason[:_LONGEST] if isinstance(reason, str) else "")


OnState: TypeAlias = Callable[[CallStatus], Any]


class StatesAsProgress:
    """Reports the states in which a call waits as progress with a message, to a listener that knows nothing else.

    The tool's own reports pass. Each report is larger than the one before it, as MCP demands.
    """

    def __init__(self, report: OnProgress) -> None:
        self._report = report
        self._last: float | None = None
        self._total: float | None = None
        self._waits = False

    def on_state(self, status: CallStatus) -> Any:
        if status.state == "running" and not self._waits:
            return None
        reported = self.on_progress(self._last or 0, self._total, str(status))
        self._waits = status.state != "running"
        return reported

    def on_progress(self, progress: float, total: float | None, message: str | None) -> Any:
        if self._last is not None and not progress > self._last:
            progress = max(self._last + _STEP, math.nextafter(self._last, math.inf))
        self._last, self._total, self._waits = progress, total, False
        return self._report(progress, total, message)


_STEP = 1e-6

SendAnswer: TypeAlias = Callable[[Question, Answer], Awaitable[None]]

_MAX_OPEN = 32
_MAX_ASKED = 1000
"""Questions of one call, at a time and in all: more are ignored."""

_MAX_REFUSED = 5
_PAUSES = (0.5, 1.0, 2.0, 4.0)
_OVER = (404, 410)


class CallQuestions:
    """Puts the questions of one call to a callback. Used in one event loop."""

    def __init__(self, callback: OnQuestion, invoke: Invoke, send: SendAnswer) -> None:
        self._callback, self._invoke, self._send = callback, invoke, send
        self._turn = asyncio.Lock()
        self._seen: set[str] = set()
        self._open: dict[str, asyncio.Task[None]] = {}

    def put(self, question: Question) -> None:
        """Ask the callback, unless it was asked before."""
        question_id = question.question_id
        if question_id in self._seen:
            return
        if len(self._open) >= _MAX_OPEN or len(self._seen) >= _MAX_ASKED:
            logger.warning("a question of %r is ignored: there are too many", question.computer)
            return
        self._seen.add(question_id)
        task = self._open[question_id] = asyncio.get_running_loop().create_task(self._ask(question))
        task.add_done_callback(lambda done: self._ended(question_id, done))

    def withdraw(self, question_id: str) -> None:
        """The computer no longer wants an answer."""
        if task := self._open.get(question_id):
            task.cancel()

    def close(self) -> None:
        """The call has ended."""
        for task in self._open.values():
            task.cancel()

    def _ended(self, question_id: str, task: asyncio.Task[None]) -> None:
        self._open.pop(question_id, None)
        if not task.cancelled() and (error := task.exception()):
            logger.error("a question was not answered", exc_info=error)

    async def _ask(self, question: Question) -> None:
        async with self._turn:
            for _ in range(_MAX_REFUSED):
                problem = await self._deliver(question, await self._answer(question))
                if problem is None:
                    return
                question = replace(question, problem=problem)
            logger.warning("%d answers to a question of %r did not fit", _MAX_REFUSED, question.computer)
            await self._deliver(question, Answer("cancel"))

    async def _answer(self, question: Question) -> Answer:
        """The answer of the callback. A callback that fails cancels the question."""
        try:
            return Answer.of(await self._invoke(self._callback, question))
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            logger.warning("on_question was cancelled")
        except Exception:
            logger.exception("on_question failed")
        return Answer("cancel")

    async def _deliver(self, question: Question, answer: Answer) -> str | None:
        """Send an answer until the computer has it. Return why it does not fit, or `None`."""
        error: SMCPError | None = None
        for pause in (0.0, *_PAUSES):
            await asyncio.sleep(pause)
            try:
                await self._send(question, answer)
            except UnsupportedEvent as unsupported:
                error = unsupported
                break
            except BadRequest as refusal:
                return refusal.about
            except SMCPError as failure:
                error = failure
                if failure.code in _OVER:
                    break
            else:
                return None
        logger.warning("the answer to a question of %r was not taken: %s", question.computer, error)
        return None


class EmitOptions(TypedDict, total=False):
    """Options of a tool call. All of them are optional.

    - `on_progress(progress, total, message)` is called when the tool reports progress. It may be async. If it is slow,
      it gets the newest report only.
    - `on_state(status)` is called with a `CallStatus` when the call waits, and when it runs, in the same way;
      `on_waiting(status)` only when it begins to wait for a person's approval. A quick call has no states to tell.
    - `on_question(question)` answers what the MCP server asks in the middle of the call: it returns an `Answer`, an
      object with the content of the form, or `None` to cancel. It may be async. If it raises, the question is
      cancelled; if the answer does not fit the form, it is called again with the `problem`. Questions of one call come
      one after the other, those of several calls at the same time.
    - `questions="result"`: instead, what the MCP server asks is returned as it came (`result.is_input_required`), and
      the call is made again with `input_responses` and `request_state`. `client_capabilities` are what the computer
      declares to the MCP server for this call, in MCP's spelling. `questions=False` asks nobody, `True` tells questions
      to `on_notice`, to be answered with `answer_question`.
    - `extend`: `timeout` is the longest silence of the tool, and not the longest time that it may take.
    - `meta` is passed on to the MCP server as `_meta`.
    - `client` is the MCP client that the agent calls for, as `{"name": …, "version": …}`. The owner of the computer is
      shown its name, and allows tools for good to this client of the agent only.
    - `save_to` is a folder: images, audio and other binary content of the result are written to files there, whatever
      their size, and `result.files` has their paths. Without it all of the result is in memory, see `max_result`.
    - `on_transfer(bytes, total, None)` is called while large contents of the result are fetched.
    """

    on_progress: OnProgress | None
    on_state: OnState | None
    on_waiting: OnState | None
    on_question: OnQuestion | None
    questions: bool | Literal["result"] | None
    extend: bool
    meta: Mapping[str, Any] | None
    input_responses: Mapping[str, Any] | None
    request_state: str | None
    client_capabilities: Mapping[str, Any] | None
    client: Mapping[str, str] | None
    save_to: AnyPath | None
    on_transfer: OnProgress | None


_PASSED_ON = {
    "meta": "_meta",
    "input_responses": "input_responses",
    "request_state": "request_state",
    "client_capabilities": "client_capabilities",
    "client": "client",
}


class _Target(NamedTuple):
    """The computer that `client:get_questions` is sent to."""

    office: str | None
    computer: str

    def __str__(self) -> str:
        return f"questions of {self.computer}"


@dataclass(eq=False, slots=True)
class _ListeningCall:
    target: _Target
    progress: ProgressInLoop | None
    states: ProgressInLoop | None
    waiting: ProgressInLoop | None
    questions: CallQuestions | None
    told: int = 0
    """The number of its states so far."""

    @property
    def reports(self) -> list[ProgressInLoop]:
        return [reports for reports in (self.progress, self.states, self.waiting) if reports]


class ListeningCalls:
    """The tool calls of an agent that have options. `on_question` answers for calls that do not say who does."""

    def __init__(self, ask: Requests, on_question: OnQuestion | None, pauses: Reconnect) -> None:
        self.on_question = on_question
        self._ask = ask
        self._invoke: Invoke = invoke
        self._calls: dict[str, _ListeningCall] = {}
        self._missed = Refresher(self._fetch_missed, pauses)

    def open(self, invoke: Invoke) -> None:
        self._invoke = invoke
        self._missed.open()

    async def close(self) -> None:
        await self._missed.close()

    async def call(self, outgoing: OutgoingCall, options: EmitOptions) -> CallToolResult:
        """As `Requests.call_tool`. Raises `BadRequest` for options that exclude one another, `TypeError` for others."""
        if unknown := options.keys() - EmitOptions.__annotations__.keys():
            raise TypeError(f"emit_tool_call() got an unexpected keyword argument {min(unknown)!r}")
        on_question = _answerer(options, self.on_question)
        fields = _fields(options, on_question)
        call = self._begun(_Target(outgoing.office, outgoing.computer), options, on_question, outgoing.timeout)
        save_to, on_transfer = options.get("save_to"), options.get("on_transfer")
        receive = Receive(save_to, on_transfer) if save_to is not None or on_transfer else None
        self._calls[outgoing.req_id] = call
        try:
            result = await self._ask.call_tool(outgoing, fields, receive)
        except asyncio.CancelledError:
            for reports in call.reports:
                reports.stop()
            raise
        finally:
            self._end(outgoing.req_id, call)
            for reports in call.reports:
                await reports.finish()
        return result

    def _begun(
        self, target: _Target, options: EmitOptions, on_question: OnQuestion | None, timeout: float
    ) -> _ListeningCall:
        async def send(question: Question, answer: Answer) -> None:
            await self._ask.answer_question(target.computer, question.question_id, answer, target.office, longest)

        def reports_to(name: Literal["on_progress", "on_state", "on_waiting"]) -> ProgressInLoop | None:
            callback = options.get(name)
            return ProgressInLoop(callback, self._invoke, name) if callback else None

        longest = MAX_TIMEOUT if options.get("extend") else timeout
        questions = CallQuestions(on_question, self._invoke, send) if on_question else None
        return _ListeningCall(
            target, reports_to("on_progress"), reports_to("on_state"), reports_to("on_waiting"), questions
        )

    def _end(self, req_id: str, call: _ListeningCall) -> None:
        if self._calls.get(req_id) is call:
            del self._calls[req_id]
        if call.questions:
            call.questions.close()

    # What computers tell

    def on_progress(self, data: dict[str, Any]) -> None:
        call = self._told(data)
        if call and call.progress and _is_number(data.get("progress")):
            total, message = data.get("total"), data.get("message")
            call.progress.report(
                data["progress"],
                total if _is_number(total) else None,
                message if isinstance(message, str) else None,
            )

    def on_state(self, data: dict[str, Any]) -> None:
        call, status = self._told(data), CallStatus.of_notice(data)
        if call and status:
            call.told += 1
            if call.states:
                call.states.put(call.told, status)
            if call.waiting and status.state == "waiting":
                call.waiting.put(call.told, status)

    def on_question_told(self, data: dict[str, Any]) -> None:
        call = self._told(data)
        if call and call.questions:
            self._put(call, call.questions, data)

    def on_question_ended(self, data: dict[str, Any]) -> None:
        call, question_id = self._told(data), data.get("question_id")
        if call and call.questions and isinstance(question_id, str):
            call.questions.withdraw(question_id)

    def _told(self, data: dict[str, Any]) -> _ListeningCall | None:
        """The call that a notice is about."""
        req_id = data.get("req_id")
        call = self._calls.get(req_id) if isinstance(req_id, str) else None
        return call if call and data.get("computer") in (None, call.target.computer) else None

    def _put(self, call: _ListeningCall, questions: CallQuestions, data: dict[str, Any]) -> None:
        for question in questions_in([data], call.target.computer, call.target.office):
            questions.put(question)

    # Questions that were told while this agent was away

    def on_seated(self, office: str) -> None:
        """A seat was taken, perhaps again."""
        for target in self._asking():
            if target.office in (None, office):
                self._missed.request(target)

    def on_enter(self, seat: Seat) -> None:
        """A computer has entered, perhaps again."""
        for target in self._asking():
            if target.computer == seat.computer and target.office in (None, seat.office):
                self._missed.request(target)

    def _asking(self) -> set[_Target]:
        """The computers that may ask."""
        return {call.target for call in self._calls.values() if call.questions}

    async def _fetch_missed(self, target: _Target) -> None:
        def put_all(listed: list[Any]) -> None:
            for data in listed:
                if isinstance(data, dict):
                    self.on_question_told({**data, "computer": target.computer})

        if target not in self._asking():
            return
        try:
            await self._ask.questions(target.computer, target.office, then=put_all)
        except (BadRequest, NotFound) as error:  # it has no questions, or is not there
            logger.info("%s was not asked for its open questions: %s", target.computer, error)


def questions_in(listed: Iterable[Any], computer: str, office: str | None) -> list[Question]:
    """The questions in notices, or in the answer to `client:get_questions`. Malformed ones are left out."""
    found = []
    for data in listed:
        try:
            found.append(_question_in(data if isinstance(data, dict) else {}, computer, office))
        except BadRequest as error:
            logger.warning("a question of %r is ignored: %s", computer, error)
    return found


def _question_in(data: dict[str, Any], computer: str, office: str | None) -> Question:
    """Raises `BadRequest`."""
    texts = ("req_id", "question_id", "tool_name", "mcp_server", "agent", "office_id")
    known = {key: value if isinstance(value := data.get(key), str) else "" for key in texts}
    if not known["question_id"]:
        raise BadRequest("question_id: missing", field="question_id")
    return Question.of_request(
        data.get("request"),
        computer=computer,
        office=known["office_id"] or office or "",
        server=known["mcp_server"],
        tool=known["tool_name"],
        agent=known["agent"],
        req_id=known["req_id"],
        question_id=known["question_id"],
        is_secret=data.get("is_secret") is True,
        is_approval=data.get("approval") is True,
    )


def _answerer(options: EmitOptions, default: OnQuestion | None) -> OnQuestion | None:
    """The function that answers the questions of a call. Raises `BadRequest`."""
    questions, given = options.get("questions"), options.get("on_question")
    if questions not in (None, True, False, "result"):
        raise BadRequest('questions: must be True, False or "result"', field="questions")
    if questions in (False, "result") or (questions is None and _continues(options)):
        if given:
            raise BadRequest("on_question answers questions, so they are not in the result", field="questions")
        return None
    return given or default


def _continues(options: EmitOptions) -> bool:
    """True if a call continues one whose result asked for input."""
    return options.get("input_responses") is not None or options.get("request_state") is not None


def _fields(options: EmitOptions, on_question: OnQuestion | None) -> dict[str, Any]:
    """The fields of the request that say what is wanted."""
    questions = options.get("questions")
    if questions is None:
        questions = True if on_question else "result" if _continues(options) else None
    fields: dict[str, Any] = {
        "progress": bool(options.get("on_progress")),
        "states": bool(options.get("on_state") or options.get("on_waiting")),
        "questions": questions,
        "extend": bool(options.get("extend")),
    }
    fields = {field: value for field, value in fields.items() if value}
    given = {field: options.get(option) for option, field in _PASSED_ON.items()}
    return fields | {field: value for field, value in given.items() if value is not None}


def _is_number(value: object) -> bool:
    return type(value) in (int, float)
