"""Grants of the owner, kept over restarts.

They are kept in a private file, by Server and office: in another office the same name may be another agent. An entry
without an MCP client, as all were once, is for calls that name no client.

A file beside it has what makes later calls usual (`CallMemory`), and when grants were last used. It is written when the
owner answers, and at the end of the program: however much an agent calls, that writes nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from a2c_smcp.cli.options import default_agent_name
from a2c_smcp.computer.consent.approval import Approvals, Grant
from a2c_smcp.files import PrivateFileUnusable, PrivateJSONFile

_NOT_KEPT = "{}: cannot be used, what you allow lasts until this program ends"


class Grants:
    """The grants for one office, in the Computer's memory and in a file. They count even if the file fails."""

    def __init__(self, approvals: Approvals, computer: str, folder: Path, say: Callable[[str, str], None]) -> None:
        self._approvals = approvals
        self._path = folder / "approvals" / f"{hashlib.sha256(computer.encode()).hexdigest()[:32]}.json"
        self._store = PrivateJSONFile(self._path, folder, self._path.parent)
        self._seen = PrivateJSONFile(self._path.with_suffix(".seen.json"), folder, self._path.parent)
        self._say = say
        self._place = ""
        approvals.on_grant = approvals.on_revoked = lambda grant: self._save()
        approvals.on_withdrawn, approvals.on_allowed = self._withdraw, self._save_seen

    def enter(self, url: str, office: str) -> None:
        """Load the grants for this office."""
        self._place = _place(url, office)
        self._load_seen()
        known = set(_read(self._load().get(self._place)))
        # `a2c-smcp agent` until 1.0.0a1 had names that end with a process id, and are never used again.
        name = default_agent_name()
        outdated = {grant for grant in known if re.fullmatch(rf"{re.escape(name)}-\d+", grant.agent)}
        self._approvals.take(known - outdated)
        if self._approvals.grants != known:
            self._save()
        if count := len({grant.agent for grant in outdated}):
            runs = (
                f"what was allowed to {'an earlier run' if count == 1 else f'{count} earlier runs'} of a2c-smcp agent"
            )
            self._say(f"{runs} ({name}-NUMBER) is forgotten: its name is {name} now", "yellow")

    def __iter__(self) -> Iterator[Grant]:
        """The valid grants, in order."""
        known = [grant for grant in self._approvals.grants if not grant.has_expired()]
        return iter(sorted(known, key=lambda grant: grant.order))

    def forget(self, grants: Iterable[Grant]) -> None:
        for grant in grants:
            self._approvals.revoke(grant)
        self._save()

    def _withdraw(self, server: str, tool: str) -> None:
        """Forget the grants of a tool that has changed, in all offices of all Servers."""
        kept = self._load()
        left = {
            place: [entry for entry in entries if entry[1:3] != [server, tool]]
            for place, entries in kept.items()
            if isinstance(entries, list)
        }
        if left == kept:
            return
        self._keep(left)
        self._say(f"{tool} of {server} has changed: what was allowed for good is asked again", "yellow")

    def _load(self) -> dict[str, Any]:
        try:
            return self._store.load()
        except PrivateFileUnusable as error:
            self._say(f"what was allowed for good does not count: {error}", "yellow")
            return {}

    def _save(self) -> None:
        """Save, without losing what other processes have saved meanwhile for other offices."""
        try:
            kept = {**self._store.load(), self._place: [_written(grant) for grant in self]}
        except PrivateFileUnusable:
            self._say(_NOT_KEPT.format(self._path), "yellow")
        else:
            self._keep(kept)

    def _load_seen(self) -> None:
        try:
            seen = self._seen.load().get(self._place)
        except PrivateFileUnusable:
            seen = None
        agents, used = (seen.get("agents"), seen.get("used")) if isinstance(seen, dict) else (None, None)
        self._approvals.memory.load(agents)
        entries = [entry for entry in used if isinstance(entry, list)] if isinstance(used, list) else []
        times = {grant: time for time, *entry in filter(None, entries) for grant in _read([entry])}
        self._approvals.last_used = {grant: time for grant, time in times.items() if isinstance(time, float)}

    def _save_seen(self) -> None:
        used = [[time, *_written(grant)] for grant, time in self._approvals.last_used.items()]
        seen = {"agents": self._approvals.memory.written(), "used": used}
        try:
            kept = self._seen.load()
            if any(seen.values()) and kept.get(self._place) != seen:
                self._seen.save({**kept, self._place: seen})
        except PrivateFileUnusable as error:
            self._say(f"what is usual is forgotten when this program ends: {error}", "yellow")

    def _keep(self, kept: dict[str, Any]) -> None:
        try:
            self._store.save({place: grants for place, grants in kept.items() if grants})
        except PrivateFileUnusable:
            self._say(_NOT_KEPT.format(self._path), "yellow")


def _place(url: str, office: str) -> str:
    """Return the key of an office in the file: its URL without credentials, and its name."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')} {office}"


def _written(grant: Grant) -> list[str | float | None]:
    """Return an entry of the file: agent, server and tool, then MCP client, device and end, if the grant has them.

    Programs that know no device, or no end, ignore an entry with one.
    """
    agent, server, tool, client, device, until = grant
    if until is not None:
        return [agent, server, tool, client, device, until]
    return [agent, server, tool, *([client] if client or device else []), *([device] if device else [])]


def _read(kept: object) -> Iterable[Grant]:
    """Yield the grants in an entry of the file; anything else in it is ignored."""
    for entry in kept if isinstance(kept, list) else ():
        match entry:
            case [str(), None, None, *rest] | [str(), str(), None | str(), *rest] if _is_rest(rest):
                yield Grant(*entry)


def _is_rest(rest: list[object]) -> bool:
    """True for the MCP client, the device and the end of a grant, or fewer of them."""
    match rest:
        case [] | [str()] | [str(), str()]:
            return True
        case [str(), str(), int() | float() as until]:
            return until is not True and until is not False
    return False
