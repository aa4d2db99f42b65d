"""Questions that wait for an agent's answer.

A question is *open* from `ask` until it is answered or withdrawn. It belongs to one call: it is known by a random id
that only the agent of that call can use, in its office. It is told to the agent when it is asked, and once more on each
new connection of the computer; after its own reconnect the agent asks for its open questions (`of`). Neither asks
anything twice: the same id is the same question.

The task that asks owns the question. It waits in `ask`, which the call ends, by its cancel or its deadline; whatever
ends it removes the question, and tells the agent so unless the agent has answered it. An answer is checked before it
counts; one that does not fit leaves the question open. The check may take a while, so afterwards the question is looked
up again: of two answers the first that passes its check counts.

Ended questions are remembered, with a digest of their answer: the same answer again is accepted, another one, or one
that comes too late, is `QuestionEnded`. If the Server does not carry tells, agents cannot be asked: open questions end
with `InputRefused`.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.calls.journal import Key
from a2c_smcp.computer.questions.forms import check_content, complete, secrets_in_content
from a2c_smcp.computer.secrets import Mask
from a2c_smcp.computer.tells import Delivery, Tells
from a2c_smcp.errors import QuestionEnded, QuestionNotFound
from a2c_smcp.mcp_host.sessions.tool_request import InputRefused
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.questions import Answer, Question

__all__ = ["OpenQuestions"]

logger = logging.getLogger(__name__)

_MOST_OF_AGENT = 32
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
    shown: dict[str, Any]
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
        tells.on_not_carried.append(lambda office: self._refuse_all(office, lambda asked: True, _NOT_CARRIED))

    async def ask(self, caller: Caller, question: Question, shown: dict[str, Any]) -> Answer:
        """The agent's answer. Raises `InputRefused` if agents cannot be asked."""
        self._require_room(caller, question.server)
        if not self._tells.are_carried(caller.office):
            raise InputRefused(_NOT_CARRIED)
        question_id = secrets.token_hex(16)
        asked = _Open(caller, question, shown, asyncio.get_running_loop().create_future())
        self._open[question_id] = asked
        self._tell(question_id, asked)
        try:
            return await asked.answered
        finally:
            self._close(question_id, asked)

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
        """The answer with defaults filled in, after its secrets were given to the mask. Raises `BadRequest`."""
        self._mask.add(secrets_in_content(question, answer.content), question.server)
        if answer.action != "accept" or question.mode == "url":
            return Answer(answer.action, by=answer.by)
        content = complete(question.schema, answer.content or {})
        await check_content(question.schema, content)
        return Answer("accept", content, by=answer.by)

    def of(self, caller: Caller) -> list[dict[str, Any]]:
        """The open questions of an agent, as it is told them, oldest first."""
        return [_told(question_id, asked) for question_id, asked in self._open.items() if asked.caller == caller]

    def end(self, key: Key) -> None:
        """Withdraw the open questions of a call: it has ended."""
        office, agent, req_id = key
        for asked in list(self._open.values()):
            if asked.caller == Caller(office, agent) and asked.question.req_id == req_id:
                asked.answered.cancel()

    def keep_only(self, office: str, agent: str) -> None:
        """Refuse the questions to other agents: this one has entered the office."""
        self._refuse_all(office, lambda asked: asked.caller.agent != agent, _LEFT)

    def forget(self, office: str, agent: str | None = None) -> None:
        """Refuse the questions to an agent that has left, or to all of an office that this computer has left."""
        self._refuse_all(office, lambda asked: agent in (None, asked.caller.agent), _LEFT)

    def _require_room(self, caller: Caller, server: str) -> None:
        of_agent = sum(asked.caller == caller for asked in self._open.values())
        of_server = sum(asked.question.server == server for asked in self._open.values())
        if of_agent >= _MOST_OF_AGENT or of_server >= _MOST_OF_SERVER:
            raise InputRefused("nobody can answer: too many questions are open")

    def _found(self, caller: Caller, question_id: str) -> _Open | None:
        """The open question; `None` if it has ended. Raises `QuestionNotFound` for one of others, too."""
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
        """Tells answers apart. Salted, since a digest of a short secret could be guessed."""
        content = sorted((answer.content or {}).items()) if isinstance(answer.content, Mapping) else []
        return hashlib.blake2b(dumps([answer.action, content]).encode(errors="surrogatepass"), key=self._salt).digest()

    def _close(self, question_id: str, asked: _Open) -> None:
        del self._open[question_id]
        if (asked.caller, question_id) in self._ended:
            return
        self._end(asked.caller, question_id, None)
        if asked.is_told:
            told = {"req_id": asked.question.req_id, "question_id": question_id}
            self._tells.tell(asked.caller, "question_ended", told)

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

    def _refuse_all(self, office: str, is_meant: Callable[[_Open], bool], reason: str) -> None:
        for asked in list(self._open.values()):
            if asked.caller.office == office and is_meant(asked):
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
        "request": asked.shown,
    }
    return told | {"approval": True} if question.is_approval else told
