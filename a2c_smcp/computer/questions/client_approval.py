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
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from a2c_smcp.computer.approval import ApprovalRequest, DecisionFor
from a2c_smcp.computer.calls.incoming import CallOptions, IncomingCall
from a2c_smcp.computer.questions.open_questions import OpenQuestions
from a2c_smcp.computer.secrets import Mask
from a2c_smcp.computer.secrets.messages import REQUEST
from a2c_smcp.computer.tools.definitions import CHANGED
from a2c_smcp.errors import ApprovalRefused, BadRequest, QuestionEnded
from a2c_smcp.mcp_host.message_limits import is_within
from a2c_smcp.mcp_host.sessions.tool_request import InputRefused
from a2c_smcp.protocol.questions import ELICITATION, Question
from a2c_smcp.protocol.visible import escaped, values_in_lines

__all__ = ["ClientApprovals", "can_be_asked"]

logger = logging.getLogger(__name__)

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
"""Characters of a question, and bytes of arguments. What is over is refused: nobody approves what is not shown."""
_MOST_OF_AGENT = 32


def can_be_asked(call: IncomingCall) -> bool:
    """Whether a call says that its MCP client answers forms."""
    return call.options is not None and bool(call.options.questions) and _takes_forms(call.options)


@dataclass(frozen=True, slots=True)
class _PutCall:
    """A call that is put to its MCP client. `tool` is the MCP server, its tool, and the digest of its definition."""

    call: IncomingCall
    tool: tuple[str, str, str]
    timer: asyncio.TimerHandle

    @property
    def is_late(self) -> bool:
        """Whether its time is over. After a standstill of the process the timer may not have run yet."""
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

        `on_answer` is told what the person has answered.
        """
        shown = self._elicitation(request)
        question = Question.of_request(
            shown,
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
        """The question as an `InputRequiredResult`, to be answered until the deadline. Raises `ApprovalRefused`."""
        if sum(asked.call.caller == call.caller for asked in self._asked.values()) >= _MOST_OF_AGENT:
            raise ApprovalRefused(f"{call.name!r} needs approval, and too many calls wait for it")
        shown, handle = self._elicitation(request), _PREFIX + secrets.token_hex(16)
        timer = asyncio.get_running_loop().call_at(deadline, self._asked.pop, handle, None)
        self._asked[handle] = _PutCall(call, tool, timer)
        return {"resultType": "input_required", "inputRequests": {_KEY: shown}, "requestState": handle}

    def is_state(self, call: IncomingCall) -> bool:
        """Whether the request answers a question for approval, or wants to."""
        state = call.options.request_state if call.options else None
        return isinstance(state, str) and state.startswith(_PREFIX)

    def answered(self, call: IncomingCall, tool: tuple[str, str, str], on_answer: OnAnswer) -> IncomingCall:
        """The call to run after a yes. Raises `QuestionEnded`, `BadRequest` or `ApprovalRefused`."""
        options = call.options
        assert options
        handle = options.request_state or ""
        asked = self._asked.get(handle)
        if asked is None or asked.is_late or not call.caller.is_exactly(asked.call.caller):
            raise QuestionEnded("the call that this request_state belongs to has ended")
        if (asked.call.name, asked.call.params, asked.tool[:2]) != (call.name, call.params, tool[:2]):
            raise BadRequest("request_state: belongs to another call", field="request_state")
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

    def cancel(self, agent: str, req_id: str) -> None:
        """Withdraw the question of this request."""
        self._drop(lambda asked: (asked.call.caller.agent, asked.call.req_id) == (agent, req_id))

    def forget(self, office: str, agent: str | None = None) -> None:
        """Withdraw the questions to an agent that has left, or to those of an office that this computer has left."""
        self._drop(lambda asked: asked.call.caller.office == office and agent in (None, asked.call.caller.agent))

    def keep_only(self, office: str, agent: str) -> None:
        """Withdraw the questions to other agents."""
        self._drop(lambda asked: asked.call.caller.office == office and asked.call.caller.agent != agent)

    def close(self) -> None:
        self._drop(lambda asked: True)

    def _drop(self, is_meant: Callable[[_PutCall], bool]) -> None:
        for handle, asked in [(handle, asked) for handle, asked in self._asked.items() if is_meant(asked)]:
            asked.timer.cancel()
            del self._asked[handle]

    def _elicitation(self, request: ApprovalRequest) -> dict[str, Any]:
        params = {"message": _message(self._computer, request), "requestedSchema": _FORM}
        return {"method": ELICITATION, "params": self._mask.data(params, REQUEST, request.server)}


def _message(computer: str, request: ApprovalRequest) -> str:
    """What is shown to the person. Raises `ApprovalRefused` if the arguments cannot be shown."""
    too_large = ApprovalRefused(f"{request.name!r} has larger arguments or changes than its MCP client can be shown")
    if not is_within(request.arguments, _LARGEST):
        raise too_large
    alias = f" ({request.tool})" if request.name != request.tool else ""
    what = f"{request.name}{alias} of the MCP server {request.server}"
    shown = values_in_lines(request.arguments, _WIDTH, _VALUES)
    lines = [f"{request.caller.who} wants to run {what} on the computer {computer}, with", *shown.lines]
    text = "\n  ".join(map(escaped, lines))
    if request.changed:
        text = f"{text}\n{CHANGED}:\n{_indented(request.changed)}"
    text += "\nIt runs once if you say yes."
    if shown.missing or len(text) > _LONGEST:
        raise too_large
    return text


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))


def _takes_forms(options: CallOptions) -> bool:
    """Without a word on what the client can do, it answers forms. MCP: an empty `elicitation` means forms, too."""
    if options.client_capabilities is None:
        return True
    declared = options.client_capabilities.get("elicitation")
    return isinstance(declared, Mapping) and (not declared or "form" in declared)


def _require_yes(call: IncomingCall, response: object, on_answer: OnAnswer) -> None:
    """Raises `ApprovalRefused` for everything but MCP's `accept` with a yes."""
    given = response if isinstance(response, Mapping) else {}
    content = given.get("content")
    is_yes = given.get("action") == "accept" and isinstance(content, Mapping) and content.get(_FIELD) == _YES
    logger.info("%s %s %r", call.caller.who, "approves" if is_yes else "does not approve", call.name)
    on_answer(DecisionFor("yes" if is_yes else "no"))
    if not is_yes:
        raise ApprovalRefused(f"the person at {call.caller.who} did not approve {call.name!r}")
