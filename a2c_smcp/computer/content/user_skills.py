"""The owner's skills: the folders in `<home>/user`, polled while the Computer runs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from threading import Lock

from a2c_smcp.computer.content.skill import NotASkill, Skill, read_frontmatter, skill_of
from a2c_smcp.files import Stamp, lock, private_folder, remedy_for, stamp, stamps_below
from a2c_smcp.protocol.skills import SKILL_FILE, is_skill_part

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
    """The skills in the folder. `faults` says what is left out, and why."""

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
        """The present content of the folder; the same object if nothing has changed."""
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
            faults.append(f"{self.path}: more than {_MOST_FILES} files: some changes may be missed")
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
        """Report folders that others can write to: they could give agents instructions."""
        return [
            f"{each} can be changed by others on this machine, and is not used; run: {remedy}"
            for each in (self._home, self.path)
            if (remedy := remedy_for(each))
        ]


# The folder in which skills of MCP servers are written down: `<home>/mcp/<bundle id>/<skill>`.
#
# A skill is written into a draft first, and the finished draft takes the place of the skill. Nothing that a server
# sends decides where something is written but the checked paths inside of the draft, which is new and for its owner
# alone.
#
# The folder belongs to one Computer at a time. A second one with the same home, also in another process, has a folder
# of its own beside it, which goes away with it.

_NAME = "mcp"
_LOCK = ".lock"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


class Draft:
    """A new folder, which becomes a skill by `Staging.install` or is removed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, path: str, content: bytes) -> None:
        """Write a file. The path is checked already. Raises `OSError`, also if there is such a file."""
        target = self.folder / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(target, _NEW_FILE, 0o600), "wb") as file:
            file.write(content)

    def replace(self, path: str, content: bytes) -> None:
        """As `write`, also in place of a file that was not written to its end."""
        (self.folder / path).unlink(missing_ok=True)
        self.write(path, content)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Staging:
    """Its methods block. They raise `OSError`, and `NotPrivate` if others may write to the folder."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._folder: Path | None = None
        self._lock = -1
        self._is_shared = True
        self._opening = Lock()
        self.swapping = Lock()
        """Held while a folder is replaced, and while a file of a skill is opened: so its folder is found whole."""

    def draft(self) -> Draft:
        folder = self._open() / f".draft-{token_hex(8)}"
        folder.mkdir(mode=0o700)
        return Draft(folder)

    def place_of(self, bundle_id: str, name: str) -> Path:
        return self._open() / bundle_id / name

    def install(self, draft: Draft, place: Path) -> None:
        """Put a draft in this place of a skill, instead of what is there."""
        private_folder(self._open(), place.parent.name)
        old = self._old()
        with self.swapping:
            with suppress(FileNotFoundError):
                place.rename(old)
            draft.folder.rename(place)
        shutil.rmtree(old, ignore_errors=True)

    def remove(self, place: Path) -> None:
        old = self._old()
        with suppress(OSError):
            with self.swapping:
                place.rename(old)
            shutil.rmtree(old, ignore_errors=True)
            place.parent.rmdir()  # if it was the last skill of its server

    def close(self) -> None:
        if self._folder and not self._is_shared:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
        self._folder, self._lock = None, -1

    def _old(self) -> Path:
        return self._open() / f".old-{token_hex(8)}"

    def _open(self) -> Path:
        with self._opening:
            if self._folder is None:
                shared = private_folder(self._home, _NAME)
                self._lock = os.open(shared / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
                self._is_shared = lock(self._lock)
                self._folder = shared if self._is_shared else private_folder(self._home, f"{_NAME}-{token_hex(8)}")
                for left in self._folder.glob(".*-*"):  # by a crash
                    shutil.rmtree(left, ignore_errors=True)
            return self._folder
