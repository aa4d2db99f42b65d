"""Owners who are asked something, and answer when the test wants it."""

from __future__ import annotations

import asyncio
from typing import Any

from a2c_smcp.computer.consent.approval import ApprovalRequest
from a2c_smcp.protocol.questions import Question


class SteadyOwner:
    """Says the same to every request, and keeps them."""

    def __init__(self, says: Any = "yes") -> None:
        self.says = says
        self.asked: list[ApprovalRequest] = []

    def __call__(self, request: ApprovalRequest) -> Any:
        self.asked.append(request)
        return self.says

    @property
    def callers(self) -> list[str]:
        return [request.caller.who for request in self.asked]

    @property
    def changes(self) -> list[str]:
        return [request.changed for request in self.asked]


class AnsweringOwner:
    """Gives these answers to questions, one after the other, the last one again and again; keeps the questions."""

    def __init__(self, *answers: Any) -> None:
        self.asked: list[Question] = []
        self._answers = [*answers]

    def __call__(self, question: Question) -> Any:
        self.asked.append(question)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class WaitingOwner:
    """Asked for approvals, or questions; answers them all when the test says so."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.withdrawn = 0
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def __call__(self, request: ApprovalRequest | Question) -> Any:
        self.asked.append(request)
        try:
            return await asyncio.shield(self.answer)
        except asyncio.CancelledError:
            self.withdrawn += 1
            raise


class AskedOwner:
    """Asked for consent; each answer is given by the test, at its own time."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.answers: list[asyncio.Future[bool]] = []

    async def __call__(self, differences: Any) -> bool:
        self.asked.append([str(each) for each in differences])
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]
