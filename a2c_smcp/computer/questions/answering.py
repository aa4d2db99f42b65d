"""Answers to questions: of the owner if one can be asked, else of the agent if its call allows it (WIRE §9).

A question for a secret, and every URL, is for the owner alone, unless they let agents see such questions of this server
(`questions_for_agents` in its configuration). If nobody can answer, the tool gets `InputRefused`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from a2c_smcp.computer.calls.incoming import IncomingCall, ProgressListeners
from a2c_smcp.computer.calls.journal import Key
from a2c_smcp.computer.consent.approval import ask
from a2c_smcp.computer.observation import ComputerObservation, QuestionAnswered, QuestionAsked
from a2c_smcp.computer.questions.client_approval import OpenQuestions
from a2c_smcp.computer.questions.forms import asks_for_secret, secrets_in_content
from a2c_smcp.computer.questions.parked import ParkedRuns, Run
from a2c_smcp.computer.secrets.mask import Mask
from a2c_smcp.errors import BadRequest, SMCPError
from a2c_smcp.mcp_events import AnswerAction
from a2c_smcp.mcp_host.limits import is_within
from a2c_smcp.mcp_host.sessions.tool_request import InputRefused, OnInput
from a2c_smcp.protocol.escaping import shown_caller
from a2c_smcp.protocol.questions import ELICITATION, INPUT_METHODS, Answer, InputRequest, OnQuestion, Question
from a2c_smcp.protocol.structure import REQUEST
from a2c_smcp.telemetry import conventions, tracing

logger = logging.getLogger(__name__)

ForAgents: TypeAlias = Callable[[str], Collection[str]]
"""By server, the private questions that its owner lets agents see: `secret`, `url`."""

_LARGEST = 64 * 1024  # bytes of a request


@dataclass(eq=False)
class Answering:
    """Asks the owner, or the agent, the questions of calls. `owner` may block in a thread of its own.

    `asking` are the calls that wait for an answer now.
    """

    _owner: OnQuestion | None
    _for_agents: ForAgents
    _opened: OpenQuestions
    _mask: Mask
    _observation: ComputerObservation
    _listeners: ProgressListeners
    asking: Counter[Key] = field(default_factory=Counter)

    def of_call(self, call: IncomingCall, server: str, deadline: float) -> OnInput | None:
        """Return the function that answers the questions of a call until its deadline; `None` if nobody can."""
        if self._owner is None and not (call.options and call.options.questions is True):
            return None

        async def answer(request: InputRequest) -> dict[str, Any]:
            return await self.answer(call, server, request, deadline)

        return answer

    def of_owner(self, server: str) -> OnInput | None:
        """Return the function that asks the owner what a server asks in one of several calls; `None` without one."""
        if self._owner is None:
            return None

        async def answer(request: InputRequest) -> dict[str, Any]:
            return await self.answer(None, server, request)

        return answer

    def capabilities(self, server: str) -> Mapping[str, Any]:
        """Return the default capabilities of a call, if its agent declares none: the questions that are answered."""
        has_urls = self._owner is not None or "url" in self._for_agents(server)
        return {"elicitation": {"form": {}, **({"url": {}} if has_urls else {})}}

    def of_run(self, runs: ParkedRuns, run: Run) -> OnInput:
        """Return the function for a call with `questions: "result"`: its agent answers with the next request."""

        async def answer(request: InputRequest) -> dict[str, Any]:
            call = run.call
            declared = call.options.client_capabilities if call.options else None
            if INPUT_METHODS.get(request.method) not in ({"elicitation": {}} if declared is None else declared):
                raise InputRefused(f"nobody can answer {request.method} here")
            question = self.read(call, run.server, request) if request.method == ELICITATION else None
            if question and not self.is_for_agents(question):
                return await self.answer(call, run.server, request, run.deadline)
            runs.require_room(run)
            with tracing.span(conventions.question, None, run.server, request.method) as span:
                if question is None:
                    return await run.ask(request)
                response = await self._observed_run(run, question, request)
                span.set(conventions.ANSWERED, _action_of(response))
            content = response.get("content")
            self._mask.add(secrets_in_content(question, content if isinstance(content, Mapping) else None), run.server)
            return response

        return answer

    async def answer(
        self, call: IncomingCall | None, server: str, request: InputRequest, deadline: float | None = None
    ) -> dict[str, Any]:
        """Return MCP's result for an input request. Raises `InputRefused`, after it is logged for the owner.

        Without a call, because nobody can tell which one it belongs to, only the owner is asked.
        """
        try:
            question = self.read(call, server, request)
            is_extended = call and call.options and call.options.extend  # each sign of life of the server moves the end
            if deadline is not None and not is_extended:
                question = replace(question, until=time.time() + deadline - asyncio.get_running_loop().time())
            with tracing.span(conventions.question, None, server, request.method) as span:
                asked = call.key if call else None, question
                answer = await self._observed(*asked, "owner", self._ask_owner(question)) if self._owner else None
                if answer is None:
                    if call is None:
                        raise InputRefused("nobody can tell which call it belongs to")
                    self._require_agent(call, question)
                    shown = request._replace(params=self._mask.data(request.params, REQUEST, question.server))
                    answer = await self._observed(*asked, "agent", self._opened.ask(call.caller, question, shown))
                    assert answer
                span.set(conventions.ANSWERED, answer.action)
        except InputRefused as refusal:
            during = f"while {call.name!r} runs for {call.caller.who}" if call else "in one of several calls"
            logger.warning("server %r asks something %s: %s", server, during, refusal)
            raise
        return answer.to_mcp()

    async def _observed(
        self,
        key: Key | None,
        question: Question,
        of: Literal["owner", "agent"],
        asking: Coroutine[Any, Any, Answer | None],
    ) -> Answer | None:
        """Return the answer of the owner or the agent. Report the question and how it ended."""
        self._observation.report(QuestionAsked(question, of))
        answer, asked = None, Counter([key] if key else [])
        self.asking += asked
        try:
            person = self._listeners.owner if of == "owner" else shown_caller(question.agent, question.client)
            with self._listeners.asking(key, person) if key else nullcontext():
                answer = await asking
        finally:
            self.asking -= asked
            self._observation.report(
                QuestionAnswered(question, answer.action if answer else "none", (answer and answer.by) or of)
            )
        return answer

    async def _observed_run(self, run: Run, question: Question, request: InputRequest) -> dict[str, Any]:
        """Return the response of the agent of a run. Report it as an answer is."""
        self._observation.report(QuestionAsked(question, "agent"))
        action = "none"
        try:
            response = await run.ask(request)
            action = _action_of(response)
        finally:
            self._observation.report(QuestionAnswered(question, action, "agent"))
        return response

    def put_to_agent(self, call: IncomingCall, server: str, requests: Iterable[InputRequest]) -> None:
        """Report the questions of a server that leave as the result of a call."""
        for request in requests:
            with suppress(InputRefused):
                self._observation.report(QuestionAsked(self.read(call, server, request), "agent", waits=False))

    def answered_by_agent(self, call: IncomingCall, server: str, responses: Mapping[str, Any]) -> None:
        """Report the answers to such questions, which the next request has brought. Only the server knows them."""
        question = _question_of(call, server, {})
        for response in responses.values():
            if isinstance(response, Mapping) and "action" in response:
                self._observation.report(QuestionAnswered(question, _action_of(response), "agent", waits=False))

    def read(self, call: IncomingCall | None, server: str, request: InputRequest) -> Question:
        """Return the question in an input request. Raises `InputRefused` for one that no person can be asked."""
        if request.method != ELICITATION:
            raise InputRefused(f"nobody can answer {request.method} here")
        if not is_within(request.params, _LARGEST):
            raise InputRefused(f"the question has more than {_LARGEST} bytes")
        try:
            question = _question_of(call, server, request.to_mcp())
        except BadRequest as error:
            raise InputRefused(error.reason) from None
        if question.mode == "url" and urlsplit(question.url).scheme not in ("http", "https"):
            raise InputRefused("only http and https URLs are opened")
        return replace(question, is_secret=asks_for_secret(question))

    def is_for_agents(self, question: Question) -> bool:
        """True if agents may see a question."""
        permitted = self._for_agents(question.server)
        return ("secret" in permitted or not question.is_secret) and ("url" in permitted or question.mode != "url")

    async def _ask_owner(self, question: Question) -> Answer | None:
        assert self._owner
        try:
            answer = await ask(self._owner, question)
            return None if answer is None else await self._opened.checked(question, Answer.of(answer))
        except SMCPError as error:
            logger.warning("the owner's answer to a question of %r cannot be used: %s", question.server, error.message)
        except Exception:
            logger.exception("the owner could not be asked a question of %r", question.server)
        raise InputRefused("the question could not be answered")

    def _require_agent(self, call: IncomingCall, question: Question) -> None:
        """Raise `InputRefused` if the agent cannot be asked. Report it if there is no owner, either."""
        why = ""
        if call.options is None or call.options.questions is not True:
            why = "nobody can answer"
        elif not self.is_for_agents(question):
            why = "nobody can answer: only the owner of the computer may be asked this"
        if why:
            if self._owner is None:
                self._observation.report(QuestionAnswered(question, "none", "nobody", waits=False))
            raise InputRefused(why)


def _action_of(response: Mapping[str, Any]) -> str:
    """The action of an agent's answer; `none` if it has no valid one."""
    action = response.get("action")
    return action if isinstance(action, str) and action in get_args(AnswerAction) else "none"


def _question_of(call: IncomingCall | None, server: str, request: object) -> Question:
    """Return the question in a request. Raises `BadRequest`."""
    about: dict[str, str] = {}
    if call is not None:
        about = {"office": call.caller.office, "agent": call.caller.agent, "client": call.caller.client}
        about |= {"tool": call.name, "req_id": call.req_id}
    return Question.of_request(request, **about, server=server)
