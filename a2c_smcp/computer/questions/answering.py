"""Who answers a question: the owner if one can be asked, else the agent if its call allows it, else nobody (WIRE §9).

A question for a secret, and every URL, is for the owner alone, unless they let agents see such questions of this server
(`questions_for_agents` in its configuration). Where nobody can answer, `InputRefused` tells the tool so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from a2c_smcp.computer.asking import ask
from a2c_smcp.computer.calls.incoming import IncomingCall
from a2c_smcp.computer.observation import ComputerObservation, QuestionAnswered, QuestionAsked
from a2c_smcp.computer.questions.forms import asks_for_secret, secrets_in_content
from a2c_smcp.computer.questions.open_questions import OpenQuestions
from a2c_smcp.computer.questions.parked import ParkedRuns, Run
from a2c_smcp.computer.secrets import Mask
from a2c_smcp.computer.secrets.messages import REQUEST
from a2c_smcp.errors import BadRequest, SMCPError
from a2c_smcp.mcp_host.message_limits import is_within
from a2c_smcp.mcp_host.sessions.tool_request import InputRefused, InputRequest, OnInput
from a2c_smcp.protocol.questions import ELICITATION, Answer, AnswerAction, GivenAnswer, Question
from a2c_smcp.telemetry import conventions, tracing

__all__ = ["Answering", "ForAgents", "OnQuestion"]

logger = logging.getLogger(__name__)

OnQuestion: TypeAlias = Callable[[Question], GivenAnswer | Awaitable[GivenAnswer]]
"""Asks the owner. Returns an `Answer`, or the content of a form; `None`: the owner cannot be asked now.

It may be async, or block in a thread of its own.
"""

ForAgents: TypeAlias = Callable[[str], Collection[str]]
"""By server, the private questions that its owner lets agents see: `secret`, `url`."""

_LARGEST = 64 * 1024  # bytes of a request
_CAPABILITIES = {ELICITATION: "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}


class Answering:
    """Finds answers to the questions of calls."""

    def __init__(
        self,
        owner: OnQuestion | None,
        for_agents: ForAgents,
        opened: OpenQuestions,
        mask: Mask,
        observation: ComputerObservation,
    ) -> None:
        self._observation = observation
        self._owner = owner
        self._for_agents = for_agents
        self._opened = opened
        self._mask = mask

    def of_call(self, call: IncomingCall, server: str, deadline: float) -> OnInput | None:
        """The function that answers the questions of a call until its deadline; `None` if nobody can."""
        wants = call.options is not None and call.options.questions is True
        if self._owner is None and not wants:
            return None

        async def answer(request: InputRequest) -> dict[str, Any]:
            return await self.answer(call, server, request, deadline)

        return answer

    def capabilities(self, server: str) -> Mapping[str, Any]:
        """What is declared to a server for a call whose agent declares nothing: which questions it may ask."""
        has_urls = self._owner is not None or "url" in self._for_agents(server)
        return {"elicitation": {"form": {}, **({"url": {}} if has_urls else {})}}

    def of_run(self, runs: ParkedRuns, run: Run) -> OnInput:
        """The function for a call with `questions: "result"`: its agent answers with the next request."""

        async def answer(request: InputRequest) -> dict[str, Any]:
            call = run.call
            if not _is_declared(call, request):
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
            self._mask.add(secrets_in_content(question, _content_of(response)), run.server)
            return response

        return answer

    async def answer(self, call: IncomingCall, server: str, request: InputRequest, deadline: float) -> dict[str, Any]:
        """MCP's result for an input request. Raises `InputRefused`, of which the owner reads in the log."""
        try:
            question = replace(self.read(call, server, request), until=_end_of(call, deadline))
            with tracing.span(conventions.question, None, server, request.method) as span:
                answer = await self._observed(question, "owner", self._ask_owner(question)) if self._owner else None
                if answer is None:
                    self._require_agent(call, question)
                    answer = await self._observed(question, "agent", self._ask_agent(call, question, request))
                    assert answer
                span.set(conventions.ANSWERED, answer.action)
        except InputRefused as refusal:
            who = call.caller.who
            logger.warning("server %r asks something while %r runs for %s: %s", server, call.name, who, refusal)
            raise
        return answer.to_mcp()

    async def _observed(
        self, question: Question, of: Literal["owner", "agent"], asking: Coroutine[Any, Any, Answer | None]
    ) -> Answer | None:
        """The answer of the owner or the agent. The question and how it ended are reported."""
        self._observation.report(QuestionAsked(question, of))
        answer = None
        try:
            answer = await asking
        finally:
            self._observation.report(
                QuestionAnswered(question, answer.action if answer else "none", (answer and answer.by) or of)
            )
        return answer

    async def _observed_run(self, run: Run, question: Question, request: InputRequest) -> dict[str, Any]:
        """The response of the agent of a run, which is reported as an answer is."""
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
        for each in requests:
            with suppress(InputRefused):
                self._observation.report(QuestionAsked(self.read(call, server, each), "agent", waits=False))

    def answered_by_agent(self, call: IncomingCall, server: str, responses: Mapping[str, Any]) -> None:
        """Report the answers to such questions, which the next request has brought. Only the server knows them."""
        question = _question_of(call, server, {})
        for each in responses.values():
            if isinstance(each, Mapping) and "action" in each:
                self._observation.report(QuestionAnswered(question, _action_of(each), "agent", waits=False))

    def read(self, call: IncomingCall, server: str, request: InputRequest) -> Question:
        """The question in an input request. Raises `InputRefused` for one that no person can be asked."""
        if request.method != ELICITATION:
            raise InputRefused(f"nobody can answer {request.method} here")
        if not is_within(request.params, _LARGEST):
            raise InputRefused(f"the question has more than {_LARGEST} bytes")
        try:
            question = _question_of(call, server, request._asdict())
        except BadRequest as error:
            raise InputRefused(error.reason) from None
        if question.mode == "url" and urlsplit(question.url).scheme not in ("http", "https"):
            raise InputRefused("only http and https URLs are opened")
        return replace(question, is_secret=asks_for_secret(question))

    def is_for_agents(self, question: Question) -> bool:
        """Whether agents may see a question."""
        private = {kind for kind, is_so in (("secret", question.is_secret), ("url", question.mode == "url")) if is_so}
        return private <= set(self._for_agents(question.server))

    async def _ask_owner(self, question: Question) -> Answer | None:
        assert self._owner
        try:
            given = await ask(self._owner, question)
            return None if given is None else await self._opened.checked(question, Answer.of(given))
        except SMCPError as error:
            logger.warning("the owner's answer to a question of %r cannot be used: %s", question.server, error.message)
        except Exception:
            logger.exception("the owner could not be asked a question of %r", question.server)
        raise InputRefused("the question could not be answered")

    def _require_agent(self, call: IncomingCall, question: Question) -> None:
        """Raise `InputRefused` if the agent cannot be asked. That nobody can is reported."""
        why = ""
        if call.options is None or call.options.questions is not True:
            why = "nobody can answer"
        elif not self.is_for_agents(question):
            why = "nobody can answer: only the owner of the computer may be asked this"
        if why:
            if self._owner is None:
                self._observation.report(QuestionAnswered(question, "none", "nobody", waits=False))
            raise InputRefused(why)

    async def _ask_agent(self, call: IncomingCall, question: Question, request: InputRequest) -> Answer:
        shown = {"method": request.method, "params": self._mask.data(request.params, REQUEST, question.server)}
        return await self._opened.ask(call.caller, question, shown)


def _end_of(call: IncomingCall, deadline: float) -> float | None:
    """When a call times out, in epoch seconds; `None` if each sign of life of its server moves that."""
    if call.options is not None and call.options.extend:
        return None
    return time.time() + deadline - asyncio.get_running_loop().time()


def _is_declared(call: IncomingCall, request: InputRequest) -> bool:
    """Whether the agent says that it can answer requests of this kind. Without a word, it can answer questions."""
    declared = call.options.client_capabilities if call.options else None
    return _CAPABILITIES.get(request.method) in ({"elicitation": {}} if declared is None else declared)


def _action_of(response: Mapping[str, Any]) -> str:
    """What an agent has answered; `none` if that is no answer."""
    action = response.get("action")
    return action if isinstance(action, str) and action in get_args(AnswerAction) else "none"


def _question_of(call: IncomingCall, server: str, request: object) -> Question:
    """The question in a request. Raises `BadRequest`."""
    who = {"office": call.caller.office, "agent": call.caller.agent, "client": call.caller.client}
    return Question.of_request(request, **who, server=server, tool=call.name, req_id=call.req_id)


def _content_of(response: dict[str, Any]) -> Mapping[str, Any] | None:
    content = response.get("content")
    return content if isinstance(content, Mapping) else None
