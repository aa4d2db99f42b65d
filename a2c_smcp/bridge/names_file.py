"""The file of given names, which several bridges of one office may share.

It is replaced as a whole, by a process that holds the lock on a file beside it and has read it before. So a reader
needs no lock, and no process loses the names that another has given. The lock is held for milliseconds. A process that
does not get it, because the one that has it stands still, goes on without the file and tries again with the next name.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from a2c_smcp.bridge.offers import Owner, SharedTool, Target
from a2c_smcp.bridge.spelling import is_valid
from a2c_smcp.computer.file_stamps import Stamp, stamp
from a2c_smcp.errors import NotPrivate
from a2c_smcp.private_files import check_private, lock, replace_file

__all__ = ["NameRecord", "NamesFile"]

logger = logging.getLogger(__name__)

_TRIES, _PAUSE = 50, 0.02


class NameRecord(NamedTuple):
    """A name, what it was given to, and the day on which that was last there: `2026-11-17`."""

    name: str
    owner: Owner
    seen: str


class NamesFile:
    """Keeps names on disk. What goes wrong is logged, once; names then last as long as the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: Stamp | None = None
        self._has_warned = False

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Whether this process may write the file meanwhile."""
        try:
            descriptor = self._open_lock()
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
        """What is in the file, if it has changed since it was last read or written."""
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

    def _open_lock(self) -> int:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_private(self._path.parent)
        return os.open(self._path.with_name(f"{self._path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)

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
