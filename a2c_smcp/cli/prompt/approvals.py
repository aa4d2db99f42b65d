"""What agents want and have no leave for: it waits here for the owner's answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from a2c_smcp.computer.approval import Caller, Decision, Request

__all__ = ["OWNER", "NothingToAnswer", "Requests", "Waiting"]

OWNER = Caller("", "")
"""Who calls from the prompt. It is this object that needs no leave: nobody can come in under its name."""


class NothingToAnswer(Exception):
    """What was to be answered is not there, or not any more."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """One request. The number is for the owner."""

    number: int
    request: Request
    answer: asyncio.Future[Decision] = field(repr=False)


class Requests:
    """The Computer calls it, and is answered when the owner has decided. `on_come` and `on_go` hear of each."""

    def __init__(self) -> None:
        self.on_come: Callable[[Waiting], None] = lambda waiting: None
        self.on_go: Callable[[Waiting], None] = lambda waiting: None
        self.has_come = asyncio.Event()
        self._numbers = count(1)
        self._waiting: dict[int, Waiting] = {}
        self._meant: Waiting | None = None

    async def __call__(self, request: Request) -> Decision:
        if request.caller is OWNER:
            return "yes"
        number = next(self._numbers)
        waiting = self._waiting[number] = Waiting(number, request, asyncio.get_running_loop().create_future())
        self.has_come.set()
        self.on_come(waiting)
        try:
            return await waiting.answer
        finally:
            self._waiting.pop(number, None)
            self.on_go(waiting)

    def __iter__(self) -> Iterator[Waiting]:
        return iter([*self._waiting.values()])

    def note_oldest(self) -> None:
        """A line is begun: an answer without a number is for the request that could be seen then, and no later one."""
        self._meant = next(iter(self), None)

    def meant(self, number: str | None = None) -> Waiting:
        """What an answer is for. Raises `NothingToAnswer`."""
        if number is not None:
            wanted = number.removeprefix("#")
            found = self._waiting.get(int(wanted)) if wanted.isdecimal() else None
            if found is None:
                raise NothingToAnswer(f"no request {number} waits for an answer")
            return found
        if self._meant is None:
            raise NothingToAnswer("no request waited for an answer when this line was begun")
        if self._meant.number not in self._waiting:
            raise NothingToAnswer(f"request #{self._meant.number} has been withdrawn, nothing was answered")
        return self._meant

    def answer(self, waiting: Waiting, decision: Decision) -> None:
        """A grant for good also answers what else of it is waiting."""
        grant = waiting.request.granted_by(decision)
        self._settle(waiting, decision)
        for other in self if grant else ():
            if grant in (other.request.granted_by("always"), other.request.granted_by("always_for_agent")):
                self._settle(other, "yes")

    def refuse_all(self) -> None:
        """Whoever asked is not in this office any more, or this computer is not."""
        for waiting in self:
            self._settle(waiting, "no")

    def _settle(self, waiting: Waiting, decision: Decision) -> None:
        del self._waiting[waiting.number]
        if not waiting.answer.done():
            waiting.answer.set_result(decision)
