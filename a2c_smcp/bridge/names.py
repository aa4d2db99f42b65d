"""Which tool has which name. A name once given stays with its tool, across restarts; newcomers never change one.

The table has at most one name for each owner and one owner for each name. An owner is a tool of one computer, or a tool
that several computers share. A new owner gets the best of its `spellings` that is free; owners that are away keep
theirs. When the table is full, those that have been away longest are dropped; a computer that has many that are away
drops its own, so that it cannot push out those of others.

A name passes from one owner to another only where the caller says that both are the same tool (`yields`): for example
when the tool of a computer becomes part of a shared one. Owners that are asked for together never lose theirs.

With a file, the table equals the file. It is read again when another process has changed it, and new names are given
while it is locked, after the names of others have been read.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from a2c_smcp.errors import NotPrivate
from a2c_smcp.files import Stamp, check_private, lock, replace_file, stamp

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """A tool of a computer, by the name that it has there."""

    computer: str
    tool: str


@dataclass(frozen=True, slots=True)
class SharedTool:
    """A tool that several computers have under this name.

    With `schema`, a digest, only those of them where the tool has this schema, which differs from that of most.
    """

    tool: str
    schema: str = ""


Owner: TypeAlias = Target | SharedTool
"""The owner of a name."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool in an office now. `listing` is MCP's `Tool` without its name."""

    target: Target
    listing: Mapping[str, Any]


# Names that every MCP client accepts: 1 to 64 of `A-Z a-z 0-9 _ -`.
#
# Two underscores stand only between a computer and its tool. A name has the form `<tool>`, without two underscores in a
# row, or `<computer>__<tool>`, where the first two end the computer's part. So no tool, whatever its computer calls it,
# can get a name that reads like one of another computer.
#
# Everything else becomes `_`, accents are dropped. Where letters are lost (`搜索`) or a name is too long, a digest of
# the original follows: `_x` and 8 digits. Such a name depends on its original only, not on other tools. The name of a
# computer that happens to end like that gets a digest of its own; so what two computers put in front is never the same.

LONGEST = 64
_LONGEST_COMPUTER = 32
_BETWEEN = "__"

_VALID = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST}}}")
_FOREIGN = re.compile(r"[^A-Za-z0-9-]+")  # underscores too, so that there are never two in a row
_MARKED = re.compile(r"_x[0-9a-f]{8}")
_MARK = len("_x00000000")


def is_valid(name: str) -> bool:
    return _VALID.fullmatch(name) is not None


def spellings(owner: Owner) -> Iterator[str]:
    """The names that an owner may have, the best first. They never end."""
    plain = _plain(owner.tool)
    if isinstance(owner, SharedTool):
        name = _ending(plain, f"_x{owner.schema[:8]}") if owner.schema else plain
        yield name
        yield from (_ending(name, f"_{number}") for number in count(2))
        return
    yield plain
    front = computer_prefix(owner.computer)
    room, tool = LONGEST - len(front), plain.lstrip("_")
    yield front + (tool if len(tool) <= room else _marked(tool, owner.tool, room))
    yield from (front + _marked(tool, f"{owner.tool}\0{number}", room) for number in count(2))


def computer_prefix(computer: str) -> str:
    """The beginning of names that only tools of this computer may have."""
    return f"{_computer(computer)}{_BETWEEN}"


def _ending(name: str, end: str) -> str:
    return f"{name[: LONGEST - len(end)].rstrip('_')}{end}"


def _plain(tool: str) -> str:
    letters = without_accents(tool)
    written = _FOREIGN.sub("_", letters)
    stem = written.strip("_-")
    loses_letters = any(letter.isalnum() and not letter.isascii() for letter in letters)
    if not stem or len(written) > LONGEST or loses_letters:
        return _marked(stem or "tool", tool, LONGEST)
    return written


def _computer(computer: str) -> str:
    written = _FOREIGN.sub("_", without_accents(computer))
    stem = written.strip("_")
    if stem == computer and len(stem) <= _LONGEST_COMPUTER and not _MARKED.fullmatch(stem[-_MARK:]):
        return stem
    return _marked(stem or "computer", computer, _LONGEST_COMPUTER)


def _marked(stem: str, original: str, longest: int) -> str:
    digest = sha256(original.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{stem[: longest - _MARK].rstrip('_')}_x{digest}"


def without_accents(text: str) -> str:
    """The text without accents and other differences of form: `ｆｕｌｌ` becomes `full`."""
    if text.isascii():
        return text
    letters = (letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return unicodedata.normalize("NFC", "".join(letters))  # Korean syllables were taken apart


# The file of given names, which several bridges of one office may share.
#
# A process replaces the file as a whole, while it holds the lock on a file beside it, and after it has read the file.
# So a reader needs no lock, and no process loses the names of another. The lock is held for milliseconds. A process
# that does not get it goes on without the file and tries again with the next name.

_TRIES, _PAUSE = 50, 0.02


class NameRecord(NamedTuple):
    """A name, its owner, and the day on which the owner was last there: `2026-11-17`."""

    name: str
    owner: Owner
    seen: str


class NamesFile:
    """Keeps names on disk. A failure is logged, once; names then last as long as the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: Stamp | None = None
        self._has_warned = False

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """True if this process may write the file in this block."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_private(self._path.parent)
            descriptor = os.open(self._path.with_name(f"{self._path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except (OSError, NotPrivate) as error:
            self._warn(error)
            yield False
            return
        try:
            is_ours = _lock_soon(descriptor)
            if not is_ours:
                self._warn("another process holds its lock")
            yield is_ours
        finally:
            os.close(descriptor)

    def changed(self) -> list[NameRecord] | None:
        """The names in the file; `None` if it is unchanged since it was last read or written."""
        now = stamp(self._path)
        if now == self._stamp:
            return None
        self._stamp = now
        try:
            check_private(self._path)
            return _records(json.loads(self._path.read_text("utf-8")))
        except FileNotFoundError:
            return []
        except (OSError, NotPrivate) as error:
            self._warn(error)
        except (ValueError, RecursionError):
            logger.warning("%s is damaged: names of tools are given anew, and may differ from before", self._path)
        return []

    def save(self, records: Iterable[NameRecord]) -> None:
        """Only while `locked`."""
        text = ",\n".join(json.dumps(_entry(record)) for record in records)
        try:
            check_private(self._path)
            replace_file(self._path, f'{{"names": [\n{text}\n]}}\n'.encode())
        except (OSError, NotPrivate) as error:
            self._warn(error)
            return
        self._stamp, self._has_warned = stamp(self._path), False

    def _warn(self, reason: OSError | NotPrivate | str) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        text = reason.about if isinstance(reason, NotPrivate) else getattr(reason, "strerror", None) or reason
        logger.warning("names of tools may be others after a restart: %s: %s", self._path, text)


def _lock_soon(descriptor: int) -> bool:
    for _ in range(_TRIES):
        if lock(descriptor):
            return True
        time.sleep(_PAUSE)
    return False


def _entry(record: NameRecord) -> dict[str, str]:
    owner = record.owner
    of = {"schema": owner.schema} if isinstance(owner, SharedTool) else {"computer": owner.computer}
    return {"name": record.name, "tool": owner.tool, **of, "seen": record.seen}


def _records(content: Any) -> list[NameRecord]:
    """Raises `ValueError` for anything that is not such a file."""
    entries = content.get("names") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not all(map(_is_entry, entries)):
        raise ValueError("not a file of names")
    return [NameRecord(entry["name"], _owner(entry), entry["seen"]) for entry in entries]


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not {"name", "tool", "seen"} <= entry.keys():
        return False
    is_of_one = ("schema" in entry) != ("computer" in entry)
    return is_of_one and all(isinstance(value, str) for value in entry.values()) and is_valid(entry["name"])


def _owner(entry: Mapping[str, str]) -> Owner:
    if "schema" in entry:
        return SharedTool(entry["tool"], entry["schema"])
    return Target(entry["computer"], entry["tool"])


Yields: TypeAlias = Callable[[Owner, Owner], bool]
"""True if the first one's name may pass to the second one."""

_MOST, _MOST_OF_ONE = 20_000, 2_000


class GivenNames:
    """The names of an office's tools. With a file they are kept across restarts, and shared with other bridges.

    At most `most` names are kept, and of one computer `most_of_one` that are not used now.
    """

    def __init__(
        self,
        file: Path | None = None,
        *,
        most: int = _MOST,
        most_of_one: int = _MOST_OF_ONE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = NamesFile(file) if file else None
        self._most, self._most_of_one = most, most_of_one
        self._clock = clock
        self._records: dict[Owner, NameRecord] = {}
        self._owners: dict[str, Owner] = {}

    def names_of(
        self,
        owners: Sequence[Owner],
        *,
        reserved: Collection[str] = (),
        yields: Yields = lambda holder, newcomer: False,
    ) -> dict[Owner, str]:
        """The name of each. Owners without one are given one, in this order, but none of the `reserved`."""
        self._read()
        today = datetime.fromtimestamp(self._clock(), UTC).date().isoformat()
        if not all(self._is_current(owner, reserved, today) for owner in owners):
            self._give(owners, reserved, yields, today)
        return {owner: self._records[owner].name for owner in owners}

    def shared_tools(self) -> set[SharedTool]:
        """The shared tools that have, or had, a name."""
        self._read()
        return {owner for owner in self._records if isinstance(owner, SharedTool)}

    def owner_of(self, name: str) -> Owner | None:
        """The owner of a name, also one that is away."""
        return self._owners.get(name)

    def _is_current(self, owner: Owner, reserved: Collection[str], today: str) -> bool:
        record = self._records.get(owner)
        return record is not None and record.seen >= today and record.name not in reserved

    def _give(self, owners: Sequence[Owner], reserved: Collection[str], yields: Yields, today: str) -> None:
        with self._file.locked() if self._file else nullcontext(False) as may_write:
            self._read()
            used = {*owners}
            for owner in owners:
                record = self._records.get(owner)
                if record is None or record.name in reserved:
                    name = self._best_name(
                        owner, reserved, lambda holder, new: holder not in used and yields(holder, new)
                    )
                    self._take(owner, name)
            self._records |= {owner: self._records[owner]._replace(seen=today) for owner in owners}
            self._make_room(used)
            if self._file and may_write:
                self._file.save(self._records.values())

    def _best_name(self, owner: Owner, reserved: Collection[str], yields: Yields) -> str:
        for name in spellings(owner):
            holder = self._owners.get(name)
            if name not in reserved and (holder is None or yields(holder, owner)):
                return name
        raise AssertionError("spellings never end")

    def _take(self, owner: Owner, name: str) -> None:
        if record := self._records.pop(owner, None):
            del self._owners[record.name]
        if holder := self._owners.get(name):
            del self._records[holder]
        self._records[owner] = NameRecord(name, owner, "")
        self._owners[name] = owner

    def _make_room(self, used: Collection[Owner]) -> None:
        """Drop names that have not been used for longest, if there are too many; never one that is used now."""
        away = [record for record in self._records.values() if record.owner not in used]
        room, kept = self._most - len(used), Counter[str]()
        for record in sorted(away, key=lambda record: record.seen, reverse=True):
            computer = record.owner.computer if isinstance(record.owner, Target) else ""
            kept[computer] += 1
            room -= 1
            if room < 0 or kept[computer] > self._most_of_one:
                del self._records[record.owner], self._owners[record.name]

    def _read(self) -> None:
        """Take over the names of other processes. Names of our own that could not be written are kept if free."""
        records = self._file.changed() if self._file else None
        if records is None:
            return
        ours, self._records, self._owners = self._records, {}, {}
        for record in (*records, *ours.values()):
            if record.owner not in self._records and record.name not in self._owners:
                self._records[record.owner] = record
                self._owners[record.name] = record.owner
