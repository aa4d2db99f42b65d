"""The owner's skills: the folders in `<home>/user`, looked at again and again while the Computer runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from a2c_smcp.computer.file_stamps import Stamp, stamp, stamps_below
from a2c_smcp.computer.skills.skill import NotASkill, Skill, read_frontmatter, skill_of
from a2c_smcp.private_files import remedy_for
from a2c_smcp.protocol.skills import SKILL_FILE, is_skill_part

__all__ = ["UserFolder", "UserSkills", "skill_home"]

_MOST_SKILLS = 1000
_MOST_FILES = 20_000


def skill_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of all skills of this user, where the published 0.4 generation has it, too."""
    if named := environ.get("A2C_SKILL_HOME"):
        return Path(named).expanduser().absolute()
    data = Path(environ.get("XDG_DATA_HOME") or "")
    return data / "a2c" / "skills" if data.is_absolute() else Path.home() / ".a2c" / "skills"


@dataclass(frozen=True)
class UserSkills:
    """What is in the folder. `faults` says what is left out, and why."""

    skills: Mapping[str, Skill] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    stamps: Mapping[str, Stamp] = field(default_factory=dict)


class UserFolder:
    """`look` blocks. It reads only what has changed since the last look."""

    def __init__(self, home: Path) -> None:
        self.path = home / "user"
        self._home = home
        self._known: dict[Path, tuple[Stamp | None, Skill | str]] = {}
        self._exposed: list[str] = []

    def look(self, before: UserSkills) -> UserSkills:
        """What is in the folder now; the same object if nothing has changed."""
        stamps, exposed = stamps_below(self.path, _MOST_FILES), self._exposures()
        if stamps == before.stamps and exposed == self._exposed:
            return before
        self._exposed = exposed
        folders = [] if exposed else self._folders()
        self._known = {folder: self._read(folder) for folder in folders[:_MOST_SKILLS]}
        found = [each for _, each in self._known.values()]
        faults = [*exposed, *(each for each in found if isinstance(each, str))]
        if len(folders) > _MOST_SKILLS:
            faults.append(f"{self.path}: only the first {_MOST_SKILLS} skills are used")
        if len(stamps) == _MOST_FILES:
            faults.append(f"{self.path}: it has so many files that not all changes are noticed")
        return UserSkills({each.name: each for each in found if isinstance(each, Skill)}, tuple(faults), stamps)

    def _folders(self) -> list[Path]:
        try:
            return sorted(each for each in self.path.iterdir() if (each / SKILL_FILE).exists())
        except OSError:
            return []

    def _read(self, folder: Path) -> tuple[Stamp | None, Skill | str]:
        """The skill in a folder, or why there is none."""
        now = stamp(folder / SKILL_FILE)
        known = self._known.get(folder)
        if known and now is not None and known[0] == now:
            return known
        try:
            if not is_skill_part(folder.name):
                raise NotASkill("its name must have lower-case letters, digits and single hyphens only, at most 64")
            return now, skill_of(folder, read_frontmatter(folder), name=folder.name, source="user")
        except (NotASkill, OSError) as error:
            return now, f"{folder}: {error}"

    def _exposures(self) -> list[str]:
        """Others who can write here could give agents instructions."""
        return [
            f"{each} can be changed by others on this machine, and is not used; run: {remedy}"
            for each in (self._home, self.path)
            if (remedy := remedy_for(each))
        ]
