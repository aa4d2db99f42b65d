"""Approval by the person at the MCP client that a call comes from, if the owner allows that (`--approve-by client`).

The computer makes an elicitation of its own, in MCP's form, with the tool and its arguments, and `no` and `yes` as the
only answers: a caller must not be able to give itself a grant. It goes the ways of all questions (WIRE §9):

- `questions: true`: it is told to the agent as an open question, and the call waits.
- `questions: "result"`: it is returned as an `InputRequiredResult`. Nothing waits or runs then, and nothing is in the
  journal. The next request has a new `req_id`, the answer, and the state. After a yes it is this request that runs: it
  was looked up among the duplicates, and is written into the journal, like any other call, so it runs once.

A state is a random handle. It is good for one answer: by the same agent and MCP client, in the same office, for the
same tool of the same server with the same arguments, until the deadline of the request that was answered with it. It
ends with a cancel of that request, and when its agent leaves. Everything but a clear yes runs nothing: `decline`,
`cancel`, `no`, an answer that is not of the form, an answer that is late, an agent that has gone or cannot be told.

A call that goes on with the state of an MCP server may need approval, too. Its answers and its state are kept, and
used when it runs.

`OpenQuestions` has the questions that agents are told: these, and those of MCP servers.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from a2c_smcp.computer.calls.definitions import CHANGED
from a2c_smcp.computer.calls.incoming import IncomingCall
from a2c_smcp.computer.consent.approval import ApprovalRequest, Caller, DecisionFor
from a2c_smcp.computer.consent.risk import effect_words
from a2c_smcp.computer.questions.forms import check_content, secrets_in_content, with_defaults
from a2c_smcp.computer.questions.parked import require_same, state_of
from a2c_smcp.computer.secrets.mask import Mask
from a2c_smcp.computer.tells import Delivery, Tells
from a2c_smcp.errors import ApprovalRefused, BadRequest, QuestionEnded, QuestionNotFound
from a2c_smcp.mcp_host.limits import is_within
from a2c_smcp.mcp_host.sessions.tool_request import InputRefused
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.escaping import escaped, values_in_lines
from a2c_smcp.protocol.questions import ELICITATION, Answer, InputRequest, Question, input_required
from a2c_smcp.protocol.structure import REQUEST

logger = logging.getLogger(__name__)

# Questions that wait for an agent's answer
#
# A question is *open* from `ask` until it is answered or withdrawn. It belongs to one call: it is known by a random
# id that only the agent of that call can use, in its office. It is told to the agent when it is asked, and once more
# on each new connection of the computer; after its own reconnect the agent asks for its open questions (`of`).
# Neither asks twice: the same id is the same question.
#
# The task that asks owns the question. It waits in `ask` until the answer, or the cancel or deadline of its call, and
# then removes the question; it tells the agent so unless the agent has answered. An answer is checked before it counts;
# one that does not fit leaves the question open. The check may take a while, so the question is looked up again
# afterwards: of two answers the first that passes its check counts.
#
# Ended questions are remembered, with a digest of their answer: the same answer again is accepted; another one, or
# one that comes too late, is `QuestionEnded`. If the Server does not carry tells, agents cannot be asked: open
# questions end with `InputRefused`.

_MOST_ASKED = 32
_MOST_OF_SERVER = 12
_MOST_ENDED = 1000
_AGAIN = 1.0  # seconds until a question is told again that the Server could not deliver

_NOT_CARRIED = "nobody can answer: the Server of this computer does not carry questions to agents"
_LEFT = "nobody can answer: the agent has left"


@dataclass(slots=True, eq=False)
class _Open:
    """An open question. `shown` is the request as the agent gets it, without secrets."""

    caller: Caller
    question: Question
    shown: InputRequest
    answered: asyncio.Future[Answer] = field(repr=False)
    is_told: bool = False


class OpenQuestions:
    """The questions of all calls that agents have to answer."""

    def __init__(self, tells: Tells, mask: Mask) -> None:
        self._tells = tells
        self._mask = mask
        self._open: dict[str, _Open] = {}
        self._ended: OrderedDict[tuple[Caller, str], bytes | None] = OrderedDict()
        self._salt = secrets.token_bytes(16)
        tells.on_connected.append(self._tell_all)
        tells.on_not_carried.append(
            lambda office: self._refuse_all(lambda asked: asked.caller.office == office, _NOT_CARRIED)
        )

    async def ask(self, caller: Caller, question: Question, shown: InputRequest) -> Answer:
        """Return the agent's answer. Raises `InputRefused` if agents cannot be asked."""
        of_agent = sum(asked.caller == caller for asked in self._open.values())
        of_server = sum(asked.question.server == question.server for asked in self._open.values())
        if of_agent >= _MOST_ASKED or of_server >= _MOST_OF_SERVER:
            raise InputRefused("nobody can answer: too many questions are open")
        if not self._tells.are_carried(caller.office):
            raise InputRefused(_NOT_CARRIED)
        question_id = secrets.token_hex(16)
        asked = _Open(caller, question, shown, asyncio.get_running_loop().create_future())
        self._open[question_id] = asked
        self._tell(question_id, asked)
        try:
            return await asked.answered
        finally:
            del self._open[question_id]
            if (asked.caller, question_id) not in self._ended:
                self._end(asked.caller, question_id, None)
                if asked.is_told:
                    told = {"req_id": asked.question.req_id, "question_id": question_id}
                    self._tells.tell(asked.caller, "question_ended", told)

    async def answer(self, caller: Caller, question_id: str, answer: Answer) -> None:
        """Answer an open question. Raises `QuestionNotFound`, `QuestionEnded`, or `BadRequest`: it stays open."""
        asked = self._found(caller, question_id)
        if asked is None:
            self._require_same(caller, question_id, answer)
            return
        checked = await self.checked(asked.question, answer)
        if asked.answered.done():
            self._require_same(caller, question_id, answer)
            return
        self._end(caller, question_id, self._digest(answer))
        asked.answered.set_result(checked)

    async def checked(self, question: Question, answer: Answer) -> Answer:
        """Return the answer with defaults filled in, after masking its secrets. Raises `BadRequest`."""
        self._mask.add(secrets_in_content(question, answer.content), question.server)
        if answer.action != "accept" or question.mode == "url":
            return Answer(answer.action, by=answer.by)
        content = with_defaults(question.schema, answer.content or {})
        await check_content(question.schema, content)
        return Answer("accept", content, by=answer.by)

    def of(self, caller: Caller) -> list[dict[str, Any]]:
        """Return the open questions of an agent, as it is told them, oldest first."""
        return [_told(question_id, asked) for question_id, asked in self._open.items() if asked.caller == caller]

    def drop(self, matches: Callable[[Caller], bool]) -> None:
        """Refuse the questions to these agents."""
        self._refuse_all(lambda asked: matches(asked.caller), _LEFT)

    def _found(self, caller: Caller, question_id: str) -> _Open | None:
        """Return the open question; `None` if it has ended. Raises `QuestionNotFound` for one of others, too."""
        asked = self._open.get(question_id)
        if asked is not None and asked.caller == caller:
            return None if asked.answered.done() else asked
        if asked is None and (caller, question_id) in self._ended:
            return None
        raise QuestionNotFound(repr(question_id))

    def _require_same(self, caller: Caller, question_id: str, answer: Answer) -> None:
        if self._ended.get((caller, question_id)) != self._digest(answer):
            raise QuestionEnded(repr(question_id))

    def _digest(self, answer: Answer) -> bytes:
        """Return a digest of an answer, salted: a digest of a short secret could be guessed."""
        content = sorted((answer.content or {}).items()) if isinstance(answer.content, Mapping) else []
        return hashlib.blake2b(dumps([answer.action, content]).encode(errors="surrogatepass"), key=self._salt).digest()

    def _end(self, caller: Caller, question_id: str, digest: bytes | None) -> None:
        self._ended[caller, question_id] = digest
        while len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)

    def _tell(self, question_id: str, asked: _Open) -> None:
        if self._open.get(question_id) is asked and not asked.answered.done():
            told = partial(self._on_told, question_id, asked)
            self._tells.tell(asked.caller, "question", _told(question_id, asked), told)

    def _on_told(self, question_id: str, asked: _Open, delivery: Delivery) -> None:
        asked.is_told = asked.is_told or delivery is Delivery.DELIVERED
        if delivery is Delivery.NOT_CARRIED:
            _refuse(asked)
        elif delivery is Delivery.LATER:
            asyncio.get_running_loop().call_later(_AGAIN, self._tell, question_id, asked)

    def _tell_all(self, office: str) -> None:
        for question_id, asked in list(self._open.items()):
            if asked.caller.office == office:
                self._tell(question_id, asked)

    def _refuse_all(self, matches: Callable[[_Open], bool], reason: str) -> None:
        for asked in list(self._open.values()):
            if matches(asked):
                _refuse(asked, reason)


def _refuse(asked: _Open, reason: str = _NOT_CARRIED) -> None:
    if not asked.answered.done():
        asked.answered.set_exception(InputRefused(reason))


def _told(question_id: str, asked: _Open) -> dict[str, Any]:
    question = asked.question
    told = {
        "req_id": question.req_id,
        "question_id": question_id,
        "tool_name": question.tool,
        "mcp_server": question.server,
        "request": asked.shown.to_mcp(),
    }
    return told | {"approval": True} if question.is_approval else told


Result = dict[str, Any]
OnAnswer = Callable[[DecisionFor], None]

_PREFIX = "a2c-approval-"
_KEY = "approval"
_FIELD, _NO, _YES = "approve", "no", "yes"
_FORM: Mapping[str, Any] = {
    "type": "object",
    "properties": {_FIELD: {"type": "string", "title": "Let it run?", "enum": [_NO, _YES]}},
    "required": [_FIELD],
}
_WIDTH, _VALUES = 1000, 100
"""Characters of one argument, and arguments, that a question shows. A longer argument is cut in the middle."""
_LONGEST, _LARGEST = 32 * 1024, 256 * 1024
"""Characters of a question, and bytes of arguments. A larger one is refused: a person must see all of it."""
_MOST_OF_AGENT = 32


def can_be_asked(call: IncomingCall) -> bool:
    """True if the MCP client of a call answers forms, as it does if it declares nothing.

    MCP: an empty `elicitation` means forms, too.
    """
    if call.options is None or not call.options.questions:
        return False
    if call.options.client_capabilities is None:
        return True
    declared = call.options.client_capabilities.get("elicitation")
    return isinstance(declared, Mapping) and (not declared or "form" in declared)


@dataclass(frozen=True, slots=True)
class _PutCall:
    """A call that is put to its MCP client. `tool` is the MCP server, its tool, and the digest of its definition."""

    call: IncomingCall
    tool: tuple[str, str, str]
    timer: asyncio.TimerHandle

    @property
    def is_late(self) -> bool:
        """True if its time is over. After a standstill of the process the timer may not have run yet."""
        return asyncio.get_running_loop().time() >= self.timer.when()


class ClientApprovals:
    """Asks MCP clients for approval, in the name of this `computer`."""

    def __init__(self, computer: str, opened: OpenQuestions, mask: Mask) -> None:
        self._computer = computer
        self._opened = opened
        self._mask = mask
        self._asked: dict[str, _PutCall] = {}

    async def require(self, call: IncomingCall, request: ApprovalRequest, on_answer: OnAnswer) -> None:
        """Ask an agent that is told questions. Returns after a yes, otherwise raises `ApprovalRefused`.

        `on_answer` is called with the decision of the person.
        """
        shown = self._elicitation(request)
        question = Question.of_request(
            shown.params,
            computer=self._computer,
            office=call.caller.office,
            agent=call.caller.agent,
            client=call.caller.client,
            server=request.server,
            tool=call.name,
            req_id=call.req_id,
            is_approval=True,
        )
        try:
            answer = await self._opened.ask(call.caller, question, shown)
        except InputRefused as refusal:
            raise ApprovalRefused(f"{call.name!r} needs approval, and {refusal}") from None
        _require_yes(call, answer.to_mcp(), on_answer)

    def put(self, call: IncomingCall, request: ApprovalRequest, tool: tuple[str, str, str], deadline: float) -> Result:
        """Return the question as an `InputRequiredResult`, valid until the deadline. Raises `ApprovalRefused`."""
        if sum(asked.call.caller == call.caller for asked in self._asked.values()) >= _MOST_OF_AGENT:
            raise ApprovalRefused(f"{call.name!r} needs approval, and too many calls wait for it")
        shown, handle = self._elicitation(request), _PREFIX + secrets.token_hex(16)
        timer = asyncio.get_running_loop().call_at(deadline, self._asked.pop, handle, None)
        self._asked[handle] = _PutCall(call, tool, timer)
        return input_required({_KEY: shown}, handle)

    def is_state(self, call: IncomingCall) -> bool:
        """True if the request has the state of a question for approval, perhaps of one that has ended."""
        return state_of(call).startswith(_PREFIX)

    def answered(self, call: IncomingCall, tool: tuple[str, str, str], on_answer: OnAnswer) -> IncomingCall:
        """Return the call to run after a yes. Raises `QuestionEnded`, `BadRequest` or `ApprovalRefused`."""
        options, asked = call.options, self._asked.get(state_of(call))
        known = None if asked is None or asked.is_late else asked.call
        require_same(call, known, is_same_tool=asked is not None and asked.tool[:2] == tool[:2])
        assert asked
        assert options
        if asked.tool != tool:
            self._drop(lambda each: each is asked)
            raise ApprovalRefused(f"the definition of {call.name!r} has changed since it was asked about: call again")
        response = (options.input_responses or {}).get(_KEY)
        if response is None:
            raise BadRequest(f"input_responses: {_KEY} is missing", field="input_responses")
        self._drop(lambda each: each is asked)
        _require_yes(call, response, on_answer)
        before = asked.call.options
        assert before
        own = replace(options, input_responses=before.input_responses, request_state=before.request_state)
        return replace(call, options=own)

    def cancel(self, caller: Caller, req_id: str) -> None:
        """Withdraw the question of this request."""
        self._drop(lambda asked: (asked.call.caller, asked.call.req_id) == (caller, req_id))

    def drop(self, matches: Callable[[Caller], bool]) -> None:
        """Withdraw the questions to these agents."""
        self._drop(lambda asked: matches(asked.call.caller))

    def _drop(self, matches: Callable[[_PutCall], bool]) -> None:
        for handle, asked in [(handle, asked) for handle, asked in self._asked.items() if matches(asked)]:
            asked.timer.cancel()
            del self._asked[handle]

    def _elicitation(self, request: ApprovalRequest) -> InputRequest:
        params = {"message": _message(self._computer, request), "requestedSchema": _FORM}
        return InputRequest(ELICITATION, self._mask.data(params, REQUEST, request.server))


def _message(computer: str, request: ApprovalRequest) -> str:
    """Return the text for the person. Raises `ApprovalRefused` if the arguments cannot be shown."""
    too_large = ApprovalRefused(f"{request.name!r} has larger arguments or changes than its MCP client can be shown")
    if not is_within(request.arguments, _LARGEST):
        raise too_large
    alias = f" ({request.tool})" if request.name != request.tool else ""
    what = f"{request.name}{alias} of the MCP server {request.server}"
    shown = values_in_lines(request.arguments, _WIDTH, _VALUES)
    lines = [f"{request.caller.who} wants to run {what} on the computer {computer}, with", *shown.lines]
    text = "\n  ".join(map(escaped, lines))
    if request.changed:
        text += "\n".join([f"\n{CHANGED}:", *(f"  {line}" for line in request.changed.split("\n"))])
    text += f"\nThe tool {effect_words(request.risk.effects)}." if request.risk.effects else ""
    text += "\nIt runs once if you say yes."
    if shown.missing or len(text) > _LONGEST:
        raise too_large
    return text


def _require_yes(call: IncomingCall, response: object, on_answer: OnAnswer) -> None:
    """Raise `ApprovalRefused` for everything but MCP's `accept` with a yes."""
    answer = response if isinstance(response, Mapping) else {}
    content = answer.get("content")
    is_yes = answer.get("action") == "accept" and isinstance(content, Mapping) and content.get(_FIELD) == _YES
    logger.info("%s %s %r", call.caller.who, "approves" if is_yes else "does not approve", call.name)
    on_answer(DecisionFor("yes" if is_yes else "no"))
    if not is_yes:
        if answer.get("action") == "cancel":  # clients do that by themselves
            raise ApprovalRefused(f"{call.caller.who} closed the question unanswered, so {call.name!r} did not run")
        raise ApprovalRefused(f"the person at {call.caller.who} did not approve {call.name!r}")
