"""The skills of an office as MCP's extension has them: `skills/list`, `skills/get`, and their files as resources.

The URI of a skill begins with `skill://COMPUTER/`, where `user` or the MCP server that it comes from follows: so skills
of the same name are apart, and one of another computer is never taken for it. Their names stay as they are, because the
frontmatter of a `SKILL.md` says them. Computers compute the digests, of what they send: secrets are masked already.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from a2c_smcp import v04_events
from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.errors import ResourceNotFound, SkillFileNotAccessible, SkillNotFound, SMCPError
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.operations import GET_SKILL
from a2c_smcp.protocol.results import to_base64
from a2c_smcp.protocol.skills import SKILL_FILE, SKILL_SCHEME, fault_in_rel_path, is_skill_name, is_skill_part

logger = logging.getLogger(__name__)

_AT_ONCE = 8
_MOST_OF_ONE = 1000
"""Skills of a computer that are listed."""
_LARGEST_PAGE = 1024 * 1024
_LONGEST_SHOWN = 256
_LONGEST = {"name": 64, "description": 1024, "compatibility": 500, "license": 65_536, "allowed-tools": 65_536}
"""Characters of the texts in a frontmatter."""
_SHA256 = re.compile("[0-9a-f]{64}")


class SkillPlace(NamedTuple):
    computer: str
    skill: str


class OfficeSkills:
    """`on_change` is called when a computer announces a change of its skills, enters or leaves."""

    def __init__(self, agent: AsyncSMCPAgentClient, office: str, on_change: Callable[[], None]) -> None:
        self._agent, self._office, self._on_change = agent, office, on_change
        self._places: dict[str, SkillPlace] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def page(self, cursor: str | None) -> dict[str, Any]:
        """A page of `skills/list`. A cursor is the last URI before it."""
        listed, size = list[dict[str, Any]](), 0
        for entry in await self._entries():
            if cursor is None or entry["uri"] > cursor:
                size += len(dumps(entry))
                if listed and size > _LARGEST_PAGE:
                    return {"skills": listed, "nextCursor": listed[-1]["uri"], **_FRESH}
                listed.append(entry)
        return {"skills": listed, **_FRESH}

    async def get(self, uri: str) -> dict[str, Any]:
        """The result of `skills/get`. Raises `ResourceNotFound`, and other `SMCPError`s."""
        found = await self.find(uri)
        entry = await self._entry(found[0]) if found else None
        if entry is None or entry["uri"] != uri:
            raise ResourceNotFound(uri[:_LONGEST_SHOWN])
        return {"skill": entry, **_FRESH}

    async def find(self, uri: str) -> tuple[SkillPlace, str] | None:
        """The skill that a URI belongs to, and the path in it."""
        computer = unquote(uri.removeprefix(SKILL_SCHEME).partition("/")[0])
        if not uri.startswith(SKILL_SCHEME) or f"{self._office}/{computer}" not in self._agent.computers:
            return None
        return self._known(uri) or (await self._entries() and self._known(uri)) or None

    async def read(self, uri: str, place: SkillPlace, path: str) -> dict[str, Any]:
        """The result of `resources/read`. Raises `ResourceNotFound`, and other `SMCPError`s."""
        try:
            file = await self._agent.get_skill(place.computer, place.skill, path, office=self._office, as_mcp=True)
        except (SkillNotFound, SkillFileNotAccessible):
            raise ResourceNotFound(uri[:_LONGEST_SHOWN]) from None
        content = {"uri": uri, "mimeType": file["mime_type"]}
        if "body" in file:
            return {"contents": [{**content, "text": file["body"]}]}
        whole = await self._agent.read_blob(place.computer, file["blob_handle"], office=self._office)
        return {"contents": [{**content, "blob": to_base64(whole)}]}

    # Events of the agent (`AgentEvents`)

    def on_computer_enter_office(self, data: dict[str, Any]) -> None:
        if data["office_id"] == self._office:
            self._on_change()

    def on_computer_leave_office(self, data: dict[str, Any]) -> None:
        self.on_computer_enter_office(data)

    def on_notice(self, event: str, data: dict[str, Any]) -> None:
        if event == v04_events.UPDATE_SKILLS_NOTIFICATION and data.get("office_id", self._office) == self._office:
            self._on_change()

    # Inside

    def _known(self, uri: str) -> tuple[SkillPlace, str] | None:
        at = len(uri)
        while (at := uri.rfind("/", len(SKILL_SCHEME), at)) >= 0:
            if place := self._places.get(uri[:at]):
                return place, unquote(uri[at + 1 :])
        return None

    async def _entries(self) -> list[dict[str, Any]]:
        """All skills, by their URIs."""
        prefix = f"{self._office}/"
        seats = [seat.removeprefix(prefix) for seat in self._agent.computers if seat.startswith(prefix)]
        places = [place for found in await asyncio.gather(*map(self._places_of, seats)) for place in found]
        entries = await asyncio.gather(*map(self._entry, places))
        found = {entry["uri"]: (entry, place) for entry, place in zip(entries, places, strict=True) if entry}
        self._places = {uri.removesuffix(f"/{SKILL_FILE}"): place for uri, (_, place) in found.items()}
        return [found[uri][0] for uri in sorted(found)]

    async def _places_of(self, computer: str) -> list[SkillPlace]:
        try:
            listed = await self._agent.get_skills(computer, office=self._office)
        except SMCPError as error:
            logger.info("%s: its skills are not listed: %s", computer, error)
            return []
        names = dict.fromkeys(each["name"] for each in listed if is_skill_name(each["name"]))
        return [SkillPlace(computer, name) for name in [*names][:_MOST_OF_ONE]]

    async def _entry(self, place: SkillPlace) -> dict[str, Any] | None:
        """A skill as MCP lists it; `None` if MCP clients would refuse it, and the whole list with it."""
        asked = {"name": place.skill, "as_mcp": True}
        try:
            async with self._slots:
                answer = await self._agent.request(GET_SKILL.event, place.computer, asked, office=self._office)
            frontmatter, files = answer["frontmatter"], answer["files"]
            if not (_is_valid(frontmatter) and SKILL_FILE in files and all(map(_is_file, files.items()))):
                raise ValueError
        except (SMCPError, ValueError, TypeError, KeyError, AttributeError) as error:  # also of an older computer
            logger.info("skill %s of %s is not listed: %s", place.skill, place.computer, error or "not as MCP has it")
            return None
        parts = place.skill.split(":") if ":" in place.skill else ["user", place.skill]
        parts += [frontmatter["name"]] if parts[-1] != frontmatter["name"] else []
        root = SKILL_SCHEME + "/".join(quote(part, safe="") for part in (place.computer, *parts))
        resources = [
            {"uri": f"{root}/{quote(path)}", "digest": f"sha256:{file['sha256']}", "size": file["total_size"]}
            for path, file in sorted(files.items())
        ]
        return {"uri": f"{root}/{SKILL_FILE}", "frontmatter": frontmatter, "resources": resources}


_FRESH = {"ttlMs": 0, "cacheScope": "private"}


def _is_valid(frontmatter: Mapping[str, Any]) -> bool:
    """True for a frontmatter as the specification of Agent Skills has it."""
    texts = {key: frontmatter[key] for key in _LONGEST if key in frontmatter}
    return (
        texts.keys() >= {"name", "description"}
        and all(isinstance(text, str) and text.strip() and len(text) <= _LONGEST[key] for key, text in texts.items())
        and is_skill_part(frontmatter["name"])
        and all(isinstance(value, str) for value in frontmatter.get("metadata", {}).values())
    )


def _is_file(item: tuple[str, Any]) -> bool:
    path, file = item
    size, is_inside = file["total_size"], fault_in_rel_path(path) is None and not {"", "."} & {*path.split("/")}
    return is_inside and type(size) is int and size >= 0 and _SHA256.fullmatch(file["sha256"]) is not None
