"""What the owner has allowed for good, kept on disk for him alone. Names of agents mean nothing in other offices."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from a2c_smcp.cli.options import default_agent_name
from a2c_smcp.computer.approval import Approvals, Grant
from a2c_smcp.computer.private_files import PrivateFileUnusable, PrivateJSONFile

__all__ = ["Grants"]


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
