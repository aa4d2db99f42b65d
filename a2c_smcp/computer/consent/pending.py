"""Requests that wait for the owner: calls that need approval, and questions of MCP servers.

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
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

from a2c_smcp.computer.consent.approval import OWNER, ApprovalRequest, Decision, DecisionFor
from a2c_smcp.protocol.escaping import shown_caller
from a2c_smcp.protocol.questions import Answer, Question

logger = logging.getLogger(__name__)

Pending = TypeVar("Pending", "PendingApproval", "PendingQuestion")


class NothingToAnswer(Exception):
    """The request to be answered does not exist, or exists no longer."""


@dataclass(eq=False)
class PendingApproval:
    """A call that waits for approval. The owner names it by its number.

    `since` is in seconds since the epoch; `where` says where it was answered.
    """

    number: int
    request: ApprovalRequest
    answer: asyncio.Future[Decision | DecisionFor] = field(repr=False)
    since: float = field(default_factory=time.time)
    where: str = ""


class _Waiting(Generic[Pending]):
    """Requests that wait for the owner's answers, by number.

    All of `on_added` and `on_removed` are called for each request; `first_added` is set by the first one. `numbers` are
    the numbers of the next requests, and of anything else that the owner is asked.
    """

    def __init__(self, numbers: Iterator[int], first_added: asyncio.Event) -> None:
        self.on_added: list[Callable[[Pending], None]] = []
        self.on_removed: list[Callable[[Pending], None]] = []
        self.numbers, self.first_added = numbers, first_added
        self._pending: dict[int, Pending] = {}

    def __iter__(self) -> Iterator[Pending]:
        return iter(list(self._pending.values()))

    @contextmanager
    def _waiting(self, pending: Pending) -> Iterator[None]:
        self._pending[pending.number] = pending
        self.first_added.set()
        try:
            _tell_all(self.on_added, pending)
            yield
        finally:
            self._pending.pop(pending.number, None)
            _tell_all(self.on_removed, pending)

    def _numbered(self, number: str) -> Pending | None:
        wanted = number.removeprefix("#")
        return self._pending.get(int(wanted)) if wanted.isdecimal() else None


class PendingApprovals(_Waiting["PendingApproval"]):
    """The `approve` callback of a Computer: it returns when the owner has answered."""

    def __init__(self) -> None:
        super().__init__(count(1), asyncio.Event())
        self._oldest_seen: PendingApproval | None = None

    async def __call__(self, request: ApprovalRequest) -> Decision | DecisionFor:
        if request.caller is OWNER:
            return "yes"
        pending = PendingApproval(next(self.numbers), request, asyncio.get_running_loop().create_future())
        with self._waiting(pending):
            return await pending.answer

    def remember_oldest(self) -> None:
        """Called when the owner begins a line: an answer without a number is for the request that is the oldest now."""
        self._oldest_seen = next(iter(self), None)

    def find(self, number: str | None = None) -> PendingApproval:
        """The request with this number, or the one that an answer without a number means. Raises `NothingToAnswer`."""
        if number is not None:
            if (pending := self._numbered(number)) is None:
                raise NothingToAnswer(f"no request {number} waits for an answer")
            return pending
        if self._oldest_seen is None:
            raise NothingToAnswer("no request waited for an answer when this line was begun")
        if self._oldest_seen.number not in self._pending:
            raise NothingToAnswer(f"request #{self._oldest_seen.number} has been withdrawn, nothing was answered")
        return self._oldest_seen

    def answer(
        self, pending: PendingApproval, decision: Decision, seconds: float | None = None, where: str = ""
    ) -> None:
        """Answer a request, here or `where`. A grant also answers the pending requests that it covers.

        It lasts for so many seconds, or for good. A request that shows a change of its tool is answered along only if
        the same change was shown.
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

    @property
    def who(self) -> str:
        """The asker and the reason, in one line."""
        asked = self.question
        if not asked.tool:
            return f"{asked.server}, in one of several calls,"
        caller = f"{shown_caller(asked.agent, asked.client)} in {asked.office}" if asked.agent else "you"
        return f"{asked.server}, while {asked.tool} runs for {caller},"

    def settle(self, answer: Answer, where: str = "") -> None:
        """Answer it, here or `where`, unless it has an answer."""
        if not self.answer.done():
            self.where = where
            self.answer.set_result(answer)


class PendingQuestions(_Waiting[PendingQuestion]):
    """The `on_question` callback of a Computer: it returns when the owner has answered.

    The numbers are shared with requests for approval.
    """

    async def __call__(self, question: Question) -> Answer:
        pending = PendingQuestion(next(self.numbers), question, asyncio.get_running_loop().create_future())
        with self._waiting(pending):
            return await pending.answer

    def find(self, number: str | None = None) -> PendingQuestion | None:
        """The question with this number, or the oldest."""
        return next(iter(self), None) if number is None else self._numbered(number)
