"""What agents want and have no leave for: it waits here for the owner's answer."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from a2c_smcp.cli.options import default_agent_name
from a2c_smcp.computer.approval import ApprovalRequest, Approvals, Caller, Decision, Grant
from a2c_smcp.computer.private_files import PrivateFileUnusable, PrivateJSONFile

__all__ = ["OWNER", "Grants", "NothingToAnswer", "Requests", "Waiting"]

OWNER = Caller("", "")
"""Who calls from the prompt. It is this object that needs no leave: nobody can come in under its name."""


class NothingToAnswer(Exception):
    """What was to be answered is not there, or not any more."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """One request. The number is for the owner."""

    number: int
    request: ApprovalRequest
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

    async def __call__(self, request: ApprovalRequest) -> Decision:
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


class Grants:
    """Keeps the file and the computer's own memory of one office the same. Without a file, that lasts as long as it."""

    def __init__(self, approvals: Approvals, computer: str, folder: Path, say: Callable[[str, str], None]) -> None:
        self._approvals = approvals
        self._path = folder / "approvals" / f"{hashlib.sha256(computer.encode()).hexdigest()[:32]}.json"
        self._store = PrivateJSONFile(self._path)
        self._say = say
        self._place = ""
        approvals.on_grant = lambda grant: self._save()

    def enter(self, url: str, office: str) -> None:
        """From now on, what was allowed there counts, and nothing else."""
        self._place = _place(url, office)
        known = set(_read(self._load().get(self._place)))
        outdated = {grant for grant in known if _is_of_one_run(grant.agent)}
        self._approvals.grants = known - outdated
        if outdated:
            self._save()
            self._say(_farewell(outdated), "yellow")

    def __iter__(self) -> Iterator[Grant]:
        return iter(sorted(self._approvals.grants, key=lambda grant: tuple(part or "" for part in grant)))

    def forget(self, grants: Iterable[Grant]) -> None:
        for grant in grants:
            self._approvals.revoke(grant)
        self._save()

    def _load(self) -> dict[str, Any]:
        try:
            return self._store.load()
        except PrivateFileUnusable as error:
            self._say(f"what was allowed for good does not count: {error}", "yellow")
            return {}

    def _save(self) -> None:
        """Other processes may have written meanwhile, for other offices."""
        try:
            kept = {**self._store.load(), self._place: [list(grant) for grant in self]}
            self._store.save({place: grants for place, grants in kept.items() if grants})
        except PrivateFileUnusable:
            self._say(f"{self._path}: cannot be used, what you allow lasts until this program ends", "yellow")


def _is_of_one_run(agent: str) -> bool:
    """Until 1.0.0a1 each run of `a2c-smcp agent` had its process id in its name: none of these comes again."""
    return re.fullmatch(rf"{re.escape(default_agent_name())}-\d+", agent) is not None


def _farewell(grants: Iterable[Grant]) -> str:
    count, name = len({grant.agent for grant in grants}), default_agent_name()
    runs = "an earlier run" if count == 1 else f"{count} earlier runs"
    return f"what was allowed to {runs} of a2c-smcp agent ({name}-NUMBER) is forgotten: its name is {name} now"


def _place(url: str, office: str) -> str:
    """Without what a URL may hold of credentials."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')} {office}"


def _read(kept: object) -> Iterable[Grant]:
    """What does not look like a grant is none."""
    for entry in kept if isinstance(kept, list) else ():
        match entry:
            case [str(agent), None, None]:
                yield Grant(agent)
            case [str(agent), str(server), str(tool)]:
                yield Grant(agent, server, tool)
