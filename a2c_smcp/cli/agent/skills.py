"""`a2c-smcp agent skills` and `agent skill`: list the skills of computers, print or save one of their files."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a2c_smcp.cli.agent.files import cannot_write, put_result, save
from a2c_smcp.cli.agent.offers import ListingTable, show_listings
from a2c_smcp.cli.agent.run import OfficeContext
from a2c_smcp.cli.errors import Failed, name_hint
from a2c_smcp.cli.progress import Meter, spinning
from a2c_smcp.cli.terminal import first_sentence, put_text
from a2c_smcp.errors import InvalidSkillName, SkillFileNotAccessible, SkillNotFound
from a2c_smcp.protocol.skills import SKILL_FILE
from a2c_smcp.published_events import GetSkillRet

__all__ = ["SkillWork", "show_skills"]


async def show_skills(context: OfficeContext, *, computer: str | None, as_json: bool) -> None:
    """List the skills of one computer or of all."""
    await show_listings(context, context.agent.get_skills, _SKILLS, computer=computer, as_json=as_json)


def _row(skill: Mapping[str, Any]) -> tuple[str, ...]:
    return skill["name"], skill["computer"], skill["source"], first_sentence(skill["description"])


_SKILLS = ListingTable("skills", ("skill", "computer", "source", "description"), _row)


@dataclass(frozen=True)
class SkillWork:
    """The work of `a2c-smcp agent skill`."""

    computer: str
    name: str
    file: str | None
    output: Path | None
    as_json: bool

    async def __call__(self, context: OfficeContext) -> None:
        with spinning(context.terminal, f"reading {self._shown}") as meter:
            found = await self._find(context)
            if self.output:
                await self._save(context, found, self.output, meter)
                return
            content = await self._fetch(context, found, meter)
        self._put(found, content)

    @property
    def _shown(self) -> str:
        return self.file or SKILL_FILE

    async def _find(self, context: OfficeContext) -> GetSkillRet:
        try:
            return await context.agent.get_skill(self.computer, self.name, self.file)
        except (SkillNotFound, InvalidSkillName):
            names = [skill["name"] for skill in await context.agent.get_skills(self.computer)]
            what = f"{self.computer} has no skill {self.name!r}"
            raise Failed(what, name_hint(self.name, names, "skills")) from None
        except SkillFileNotAccessible as error:
            remedy = _REMEDIES.get(str(error.details.get("reason")), "")
            raise Failed(f"{self._shown}: {error.reason or error.message}", remedy) from None

    async def _fetch(self, context: OfficeContext, found: GetSkillRet, meter: Meter) -> bytes:
        if "body" in found:
            return found["body"].encode("utf-8", "backslashreplace")
        return await context.agent.read_blob(self.computer, found["blob_handle"], meter.report_bytes)

    async def _save(self, context: OfficeContext, found: GetSkillRet, output: Path, meter: Meter) -> None:
        if "body" in found:
            await save(await self._fetch(context, found, meter), output)
        else:
            try:
                await context.agent.save_blob(self.computer, found["blob_handle"], output, meter.report_bytes)
            except OSError as error:
                raise cannot_write(output, error) from None
        context.terminal.show(f"{found['total_size']:,} bytes written to {output}")

    def _put(self, found: GetSkillRet, content: bytes) -> None:
        text = _text_of(content)
        if self.as_json:
            kept = {key: value for key, value in found.items() if key not in ("body", "blob_handle", "req_id")}
            whole = {"blob": b64encode(content).decode()} if text is None else {"body": text}
            put_result(kept | whole, "--output FILE saves them")
        elif not sys.stdout.isatty():
            sys.stdout.buffer.write(content)
            sys.stdout.flush()
        elif text is None:
            kind = found["mime_type"]
            raise Failed(f"{self._shown} is binary ({kind}), which a terminal cannot show", "--output FILE saves it.")
        else:
            put_text(text)


_REMEDIES = {
    "traversal": "Give a path inside of the skill, with / between its parts.",
    "forbidden": "Give another file.",
    "not_found": f"The skill's {SKILL_FILE} says which files it has.",
    "too_large": "Its owner may raise A2C_SKILL_MAX_SIZE on that computer.",
}


def _text_of(content: bytes) -> str | None:
    """The text of a file, of any type; `None` if it is binary."""
    try:
        return None if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return None
