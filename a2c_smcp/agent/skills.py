"""Skills of computers, for both clients: listed, read whole, and listed again when a computer announces a change."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any, cast

from a2c_smcp.agent.blobs.downloads import BlobRef
from a2c_smcp.agent.desktops import Seat
from a2c_smcp.agent.events import EventDispatcher
from a2c_smcp.agent.requests import Requests
from a2c_smcp.agent.standing_requests import Refresher
from a2c_smcp.endpoint import Reconnect
from a2c_smcp.errors import BadRequest, BlobNotAccessible, SMCPError
from a2c_smcp.protocol.operations import GET_SKILL, GET_SKILLS
from a2c_smcp.protocol.skills import is_text_type
from a2c_smcp.v04_events import A2CSkillRef, GetSkillRet

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
        return _checked(await self._ask.listed(GET_SKILLS, computer, {}, office))

    async def file(
        self, computer: str, name: str, rel_path: str | None, office: str | None, *, as_mcp: bool = False
    ) -> GetSkillRet:
        """One file. If its type is text and it is UTF-8, its text is in `body`, however large it is.

        A file that has changed while it was fetched is asked for again. With `as_mcp`, `SKILL.md` has its frontmatter.
        """
        asked: dict[str, Any] = {"name": name} if rel_path is None else {"name": name, "rel_path": rel_path}
        if as_mcp:
            asked["as_mcp"] = True
        left = _ATTEMPTS
        while True:
            left -= 1
            answer = _file_in(await self._ask.ask(GET_SKILL, computer, asked, office))
            if "blob_handle" not in answer or not is_text_type(answer["mime_type"]):
                return answer
            try:
                about = answer["blob_handle"], answer["total_size"], answer["sha256"].lower()
                content = await self._ask.downloads.read(BlobRef(computer, office, *about))
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


_REQUIRED = ("name", "source", "path", "description")
_FIELDS: dict[str, type] = {"name": str, "rel_path": str, "mime_type": str, "total_size": int, "sha256": str}


def _checked(skills: list[Any]) -> list[A2CSkillRef]:
    for skill in skills:
        missing = [field for field in _REQUIRED if not isinstance(skill, dict) or not isinstance(skill.get(field), str)]
        if missing:
            raise SMCPError(f"the answer has a skill without {', '.join(missing)}")
    return skills


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
        content = body.encode("utf-8", "surrogatepass")
        digest = hashlib.sha256(content).hexdigest()
        if (len(content), digest) != (found["total_size"], found["sha256"].lower()):
            raise SMCPError("the file of a skill is not the one that its size and hash announce")
    kept = {field: value for field, value in found.items() if value is not None or field not in ("body", "blob_handle")}
    return cast(GetSkillRet, kept)
