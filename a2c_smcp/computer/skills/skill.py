"""One skill: a folder with a `SKILL.md`, what its frontmatter says, and how agents are told of it."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from a2c_smcp.computer.skills.frontmatter import (
    LONGEST_FRONTMATTER,
    Frontmatter,
    parse_frontmatter,
    split_frontmatter,
)
from a2c_smcp.computer.skills.package_files import open_file
from a2c_smcp.errors import SkillFileNotAccessible
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.skills import SKILL_FILE
from a2c_smcp.published_events import A2CSkillRef

__all__ = ["NotASkill", "Skill", "read_frontmatter", "skill_of"]

_LARGEST_REFERENCE = 16 * 1024
"""Bytes. Hundreds of references fit into one message."""


class NotASkill(Exception):
    """Why a folder, or what an MCP server offers, cannot be used as a skill: a sentence for the owner."""


@dataclass(frozen=True)
class Skill:
    """`reference` is what agents are shown, not masked yet. `server` is the MCP server that it comes from, if any."""

    root: Path
    reference: A2CSkillRef
    server: str | None = None

    @property
    def name(self) -> str:
        return self.reference["name"]


def read_frontmatter(root: Path) -> Frontmatter:
    """The frontmatter of the `SKILL.md` in a folder. Raises `NotASkill`, `OSError`."""
    try:
        with open_file(root, SKILL_FILE) as file:
            head = file.read(4 * LONGEST_FRONTMATTER + 16)  # a character has at most four bytes
    except SkillFileNotAccessible as error:
        raise NotASkill(f"its {SKILL_FILE} cannot be used: {error.reason}") from None
    text = io.TextIOWrapper(io.BytesIO(head), "utf-8", "replace").read()
    return parse_frontmatter(split_frontmatter(text)[0])


def skill_of(
    root: Path,
    found: Frontmatter,
    *,
    name: str,
    source: str,
    uri: str | None = None,
    version: str | None = None,
    server: str | None = None,
) -> Skill:
    """The skill in a folder. Raises `NotASkill` if nothing describes it, or too much does."""
    if found.description is None:
        raise NotASkill(f"the frontmatter of its {SKILL_FILE} is missing, broken, or has no description")
    reference = A2CSkillRef(name=name, source=source, path=str(root), description=found.description)
    for field, text in (
        ("uri", uri),
        ("license", found.license),
        ("compatibility", found.compatibility),
        ("version", version),
    ):
        if text is not None:
            reference[field] = text  # type: ignore[literal-required]
    if found.allowed_tools is not None:
        reference["allowed_tools"] = [*found.allowed_tools]
    if found.tags is not None:
        reference["tags"] = [*found.tags]
    if found.metadata is not None:
        reference["skill_metadata"] = dict(found.metadata)
    if (size := len(dumps(reference))) > _LARGEST_REFERENCE:
        raise NotASkill(f"the frontmatter of its {SKILL_FILE} has {size} bytes, at most {_LARGEST_REFERENCE} are shown")
    return Skill(root, reference, server)
