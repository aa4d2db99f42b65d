"""What waits for the owner: calls that need approval, and questions of MCP servers.

The Computer awaits `PendingApprovals` for each call that needs approval, and `PendingQuestions` for each question. The
owner may answer at the prompt of the terminal, or in the browser: all see the same requests, and the first answer
counts. An answer at the prompt without a number means the request that was the oldest when the owner began to type: a
request that arrives while the owner types must not be approved by mistake, and one that is withdrawn meanwhile is not
replaced by the next. A form does not open by itself there: a key that is meant for the line must not become an answer.

If a call ends before there is an answer, the Computer cancels what it awaits: the request is withdrawn everywhere.

A listener that fails is logged. It withdraws no request, and the other listeners are told all the same.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from a2c_smcp.computer.approval import OWNER, ApprovalRequest, Decision, DecisionFor
from a2c_smcp.errors import ApprovalRefused
from a2c_smcp.protocol.questions import Answer, Question
from a2c_smcp.protocol.visible import shown_caller

__all__ = ["NothingToAnswer", "PendingApproval", "PendingApprovals", "PendingQuestion", "PendingQuestions"]

logger = logging.getLogger(__name__)

Pending = TypeVar("Pending")


class NothingToAnswer(Exception):
    """The request to be answered does not exist, or exists no longer."""


@dataclass(eq=False)
class PendingApproval:
    """A call that waits for approval. The owner names it by its number.

    `since` is in seconds since the epoch; `where` says where it was answered. It `has_left` if this computer has left
    the office of its agent: nobody has answered it then.
    """

    number: int
    request: ApprovalRequest
    answer: asyncio.Future[Decision | DecisionFor] = field(repr=False)
    since: float = field(default_factory=time.time)
    where: str = ""
    has_left: bool = False


class PendingApprovals:
    """The `approve` callback of a Computer: it returns when the owner has answered.

    All of `on_added` and `on_removed` are called for each request; `first_added` is set by the first one. `numbers` are
    the numbers of the next requests, and of anything else that the owner is asked.
    """

    def __init__(self) -> None:
        self.on_added: list[Callable[[PendingApproval], None]] = []
        self.on_removed: list[Callable[[PendingApproval], None]] = []
        self.first_added = asyncio.Event()
        self.numbers = count(1)
        self._pending: dict[int, PendingApproval] = {}
        self._oldest_seen: PendingApproval | None = None

    async def __call__(self, request: ApprovalRequest) -> Decision | DecisionFor:
        if request.caller is OWNER:
            return "yes"
        number = next(self.numbers)
        pending = self._pending[number] = PendingApproval(number, request, asyncio.get_running_loop().create_future())
        self.first_added.set()
        try:
            _tell_all(self.on_added, pending)
            return await pending.answer
        finally:
            self._pending.pop(number, None)
            _tell_all(self.on_removed, pending)

    def __iter__(self) -> Iterator[PendingApproval]:
        return iter([*self._pending.values()])

    def remember_oldest(self) -> None:
        """Called when the owner begins a line: an answer without a number is for the request that is the oldest now."""
        self._oldest_seen = next(iter(self), None)

    def find(self, number: str | None = None) -> PendingApproval:
        """The request with this number, or the one that an answer without a number means. Raises `NothingToAnswer`."""
        if number is not None:
            wanted = number.removeprefix("#")
            found = self._pending.get(int(wanted)) if wanted.isdecimal() else None
            if found is None:
                raise NothingToAnswer(f"no request {number} waits for an answer")
            return found
        if self._oldest_seen is None:
            raise NothingToAnswer("no request waited for an answer when this line was begun")
        if self._oldest_seen.number not in self._pending:
            raise NothingToAnswer(f"request #{self._oldest_seen.number} has been withdrawn, nothing was answered")
        return self._oldest_seen

    def answer(
        self, pending: PendingApproval, decision: Decision, seconds: float | None = None, where: str = ""
    ) -> None:
        """Answer a request, here or `where`. A permanent grant also answers the pending requests that it covers.

        It lasts so many seconds, or for good. A request that shows a change of its tool is answered along only if the
        same change was shown.
        """
        asked = pending.request
        grant = asked.granted_by(decision)
        self._decide(pending, _noted(decision, seconds, where), where)
        for other in self if grant else ():
            known = (asked.server, asked.tool, asked.changed) if other.request.changed else None
            if known and (other.request.server, other.request.tool, other.request.changed) != known:
                continue
            if grant in (other.request.granted_by("always"), other.request.granted_by("always_for_agent")):
                self._decide(other, _noted("yes", None, where), where)

    def leave_all(self) -> None:
        """Leave all requests unanswered, because this computer has left the office of their agents."""
        for pending in self:
            del self._pending[pending.number]
            if not pending.answer.done():
                pending.has_left = True
                pending.answer.set_exception(
                    ApprovalRefused("the computer has left the office, its owner had not answered")
                )

    def _decide(self, pending: PendingApproval, decision: Decision | DecisionFor, where: str = "") -> None:
        del self._pending[pending.number]
        pending.where = where
        if not pending.answer.done():
            pending.answer.set_result(decision)


def _tell_all(listeners: Iterable[Callable[[Pending], None]], pending: Pending) -> None:
    for tell in listeners:
        try:
            tell(pending)
        except Exception:
            logger.exception("what waits for the owner was not told to everything that shows it")


def _noted(decision: Decision, seconds: float | None, where: str) -> Decision | DecisionFor:
    """The decision, with how long it lasts and where it was made."""
    return DecisionFor(decision, seconds, by=where) if where or seconds is not None else decision


@dataclass(eq=False)
class PendingQuestion:
    """A question that waits for the owner, who names it by its number. The other fields are those of an approval."""

    number: int
    question: Question
    answer: asyncio.Future[Answer] = field(repr=False)
    since: float = field(default_factory=time.time)
    where: str = ""
    has_left: bool = False

    @property
    def who(self) -> str:
        """Who asks, and why, in one line."""
        asked = self.question
        caller = f"{shown_caller(asked.agent, asked.client)} in {asked.office}" if asked.agent else "you"
        return f"{asked.server}, while {asked.tool} runs for {caller},"

    def settle(self, answer: Answer, where: str = "") -> None:
        """Answer it, here or `where`, unless it has an answer."""
        if not self.answer.done():
            self.where = where
            self.answer.set_result(answer)


class PendingQuestions:
    """The `on_question` callback of a Computer: it returns when the owner has answered.

    `numbers` are shared with requests for approval. All of `on_added` and `on_removed` are called for each question,
    `wanted` is set by the first one.
    """

    def __init__(self, numbers: Iterator[int], wanted: asyncio.Event) -> None:
        self.on_added: list[Callable[[PendingQuestion], None]] = []
        self.on_removed: list[Callable[[PendingQuestion], None]] = []
        self._numbers, self._wanted = numbers, wanted
        self._pending: dict[int, PendingQuestion] = {}

    async def __call__(self, question: Question) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        pending = PendingQuestion(next(self._numbers), question, answer)
        self._pending[pending.number] = pending
        self._wanted.set()
        try:
            _tell_all(self.on_added, pending)
            return await answer
        finally:
            del self._pending[pending.number]
            _tell_all(self.on_removed, pending)

    def __iter__(self) -> Iterator[PendingQuestion]:
        return iter([*self._pending.values()])

    def find(self, number: str | None = None) -> PendingQuestion | None:
        """The question with this number, or the oldest."""
        if number is None:
            return next(iter(self), None)
        wanted = number.removeprefix("#")
        return self._pending.get(int(wanted)) if wanted.isdecimal() else None

    def leave_all(self) -> None:
        """Leave all questions of agents unanswered, because this computer has left their office."""
        for pending in self:
            if pending.question.agent:
                pending.has_left = not pending.answer.done()
                pending.settle(Answer("cancel"))
