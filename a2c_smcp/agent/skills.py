"""Skills of computers, for both clients: listed, read whole, and listed again when a computer announces a change."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar, cast

from a2c_smcp.agent.blobs import BlobRef
from a2c_smcp.agent.events import EventDispatcher
from a2c_smcp.agent.refresh import Refresher
from a2c_smcp.agent.requests import Requests
from a2c_smcp.agent.types import Seat
from a2c_smcp.endpoint import Reconnect
from a2c_smcp.errors import BadRequest, BlobNotAccessible, SMCPError
from a2c_smcp.protocol.skills import is_text_type
from a2c_smcp.published_events import GET_SKILL_EVENT, GET_SKILLS_EVENT, A2CSkillRef, GetSkillRet

__all__ = ["AsyncSkillMethods", "SkillMethods", "SkillRequests"]

Result = TypeVar("Result")

_ATTEMPTS = 3
_ASK_AGAIN = ("gone", "integrity")
"""Why a file may not be fetched to its end: it has changed meanwhile."""


class SkillRequests:
    """Methods that ask raise the error that the answer carries, and `SMCPError` for an invalid answer."""

    def __init__(self, ask: Requests, events: EventDispatcher, pauses: Reconnect) -> None:
        self._ask = ask
        self._events = events
        self.refreshes: Refresher[Seat] = Refresher(self._fetch, pauses)

    async def all(self, computer: str, office: str | None) -> list[A2CSkillRef]:
        return _skills_in(await self._ask.ask_newer(GET_SKILLS_EVENT, computer, {}, office))

    async def file(self, computer: str, name: str, rel_path: str | None, office: str | None) -> GetSkillRet:
        """One file. If its type is text and it is UTF-8, its text is in `body`, however large it is.

        A file that has changed while it was fetched is asked for again.
        """
        asked = {"name": name} if rel_path is None else {"name": name, "rel_path": rel_path}
        left = _ATTEMPTS
        while True:
            left -= 1
            answer = _file_in(await self._ask.ask_newer(GET_SKILL_EVENT, computer, asked, office))
            if "blob_handle" not in answer or not is_text_type(answer["mime_type"]):
                return answer
            try:
                content = await self._ask.downloads.read(_ref(answer, computer, office))
            except BlobNotAccessible as error:
                if not left or error.details.get("reason") not in _ASK_AGAIN:
                    raise
                continue
            with suppress(UnicodeDecodeError):
                answer["body"] = content.decode()
                del answer["blob_handle"]
            return answer

    def on_update(self, seat: Seat) -> None:
        """Fetch the list again, if the program wants it."""
        if self._events.has_handler("on_skills_received"):
            self.refreshes.request(seat)

    async def _fetch(self, seat: Seat) -> None:
        try:
            skills = await self.all(seat.computer, seat.office)
        except BadRequest:  # it will not know this later either
            return
        self._events.dispatch("on_skills_received", seat.computer, skills, seat.office)


def _ref(answer: GetSkillRet, computer: str, office: str | None) -> BlobRef:
    return BlobRef(computer, office, answer["blob_handle"], answer["total_size"], answer["sha256"].lower())


_REQUIRED = ("name", "source", "path", "description")
_FIELDS: dict[str, type] = {"name": str, "rel_path": str, "mime_type": str, "total_size": int, "sha256": str}


def _skills_in(answer: object) -> list[A2CSkillRef]:
    skills = answer.get("skills") if isinstance(answer, dict) else None
    if not isinstance(skills, list):
        raise SMCPError("the answer has no list of skills")
    for skill in skills:
        missing = [field for field in _REQUIRED if not isinstance(skill, dict) or not isinstance(skill.get(field), str)]
        if missing:
            raise SMCPError(f"the answer has a skill without {', '.join(missing)}")
    return cast("list[A2CSkillRef]", skills)


def _file_in(answer: object) -> GetSkillRet:
    """The answer to a request for a file. What it says about itself must be true."""
    found = answer if isinstance(answer, dict) else {}
    missing = [field for field, kind in _FIELDS.items() if type(found.get(field)) is not kind]
    if missing:
        raise SMCPError(f"the answer is no file of a skill: it has no {', '.join(missing)}")
    body, handle = found.get("body"), found.get("blob_handle")
    if isinstance(body, str) == isinstance(handle, str) or found["total_size"] < 0:
        raise SMCPError("the answer is no file of a skill: it must have either a body or a blob_handle")
    if isinstance(body, str):
        content = _encoded(body)
        digest = hashlib.sha256(content).hexdigest()
        if (len(content), digest) != (found["total_size"], found["sha256"].lower()):
            raise SMCPError("the file of a skill is not the one that its size and hash announce")
    kept = {field: value for field, value in found.items() if value is not None or field not in ("body", "blob_handle")}
    return cast(GetSkillRet, kept)


def _encoded(body: str) -> bytes:
    return body.encode("utf-8", "surrogatepass")


class AsyncSkillMethods:
    """Methods of `AsyncSMCPAgentClient`."""

    _skills: SkillRequests

    async def get_skills(self, computer: str, *, office: str | None = None) -> list[A2CSkillRef]:
        """The skills of a computer, without their texts: `name`, `source`, `path` on the computer, `description`, …"""
        return await self._skills.all(computer, office)

    async def get_skill(
        self, computer: str, name: str, rel_path: str | None = None, *, office: str | None = None
    ) -> GetSkillRet:
        """One file of a skill; without `rel_path`, the text of its `SKILL.md`, in `body`.

        Texts are whole, however large. A file that is no text has a `blob_handle` instead, for `read_blob` and
        `save_blob`. Raises `SkillNotFound`, `InvalidSkillName`, and `SkillFileNotAccessible`, whose
        `details["reason"]` says why.
        """
        return await self._skills.file(computer, name, rel_path, office)


class SkillMethods(ABC):
    """Methods of `SMCPAgentClient`: those of `AsyncSkillMethods`, blocking."""

    _skills: SkillRequests

    @abstractmethod
    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result: ...

    def get_skills(self, computer: str, *, office: str | None = None) -> list[A2CSkillRef]:
        return self._wait(self._skills.all(computer, office))

    def get_skill(
        self, computer: str, name: str, rel_path: str | None = None, *, office: str | None = None
    ) -> GetSkillRet:
        return self._wait(self._skills.file(computer, name, rel_path, office))
