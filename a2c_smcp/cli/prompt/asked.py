"""Questions of MCP servers that wait for the owner: announced at the prompt, answered when the owner wants to.

A form does not open by itself: the owner may be typing something else, and a key that is meant for the line must not
become an answer. The Computer awaits `PendingQuestions` for each question, and cancels that if the question is
withdrawn; a form that is open for it ends then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from a2c_smcp.protocol.questions import Answer, Question
from a2c_smcp.protocol.visible import shown_caller

__all__ = ["PendingQuestion", "PendingQuestions"]


@dataclass(frozen=True, eq=False)
class PendingQuestion:
    """A question that waits for the owner, who names it by its number."""

    number: int
    question: Question
    answer: asyncio.Future[Answer] = field(repr=False)

    @property
    def who(self) -> str:
        """Who asks, and why, in one line."""
        asked = self.question
        caller = f"{shown_caller(asked.agent, asked.client)} in {asked.office}" if asked.agent else "you"
        return f"{asked.server}, while {asked.tool} runs for {caller},"

    def settle(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class PendingQuestions:
    """The `on_question` callback of a Computer: it returns when the owner has answered at the prompt.

    `numbers` are shared with requests for approval. `on_added` and `on_removed` are called for each question, `wanted`
    is set by the first one.
    """

    def __init__(self, numbers: Iterator[int], wanted: asyncio.Event) -> None:
        self.on_added: Callable[[PendingQuestion], None] = lambda pending: None
        self.on_removed: Callable[[PendingQuestion], None] = lambda pending: None
        self._numbers, self._wanted = numbers, wanted
        self._pending: dict[int, PendingQuestion] = {}

    async def __call__(self, question: Question) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        pending = PendingQuestion(next(self._numbers), question, answer)
        self._pending[pending.number] = pending
        self._wanted.set()
        self.on_added(pending)
        try:
            return await answer
        finally:
            del self._pending[pending.number]
            self.on_removed(pending)

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
                pending.settle(Answer("cancel"))
