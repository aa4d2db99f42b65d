"""Which tool has which name. A name once given stays with its tool, across restarts; newcomers never change one.

The table has at most one name for each owner and one owner for each name. An owner is a tool of one computer, or a tool
that several computers share. A new owner gets the best of its `spellings` that nobody has; owners that are away keep
theirs. When the table is full, those that have been away longest are dropped; a computer that has many that are away
drops its own, so that it cannot push out those of others.

A name passes from one owner to another only where the caller says that both are the same tool (`yields`): for example
when the tool of a computer becomes part of a shared one. Owners that are asked for together never lose theirs.

With a file, the table is what the file says. It is read again when another process has changed it, and new names are
given while it is locked, after the names of others have been read. See `names_file.py`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from a2c_smcp.bridge.names_file import NameRecord, NamesFile
from a2c_smcp.bridge.offers import Owner, SharedTool, Target
from a2c_smcp.bridge.spelling import spellings

__all__ = ["GivenNames", "Yields"]

Yields: TypeAlias = Callable[[Owner, Owner], bool]
"""Whether the first one's name may pass to the second one."""

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
        """The name of each. Those that have none are given one, in this order; nobody has one of the `reserved`."""
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
        """What has this name, or had it when it was last there."""
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
        """Take over what other processes have given. Names of our own that could not be written are kept if free."""
        found = self._file.changed() if self._file else None
        if found is None:
            return
        ours, self._records, self._owners = self._records, {}, {}
        for record in (*found, *ours.values()):
            if record.owner not in self._records and record.name not in self._owners:
                self._records[record.owner] = record
                self._owners[record.name] = record.owner
