"""The file of a journal: locked, appended to, read after a crash, and rewritten when most of it is out of date.

A line is `B <unix time> <key> <call>` for a call that was begun, `D <key>` for one that ended with a result and
`U <key>` for one that ended without. Whatever else is found, such as the torn last line of a killed process, is passed
over. The lock is on a file beside it, which is never replaced.
"""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Self

from a2c_smcp.computer.instance import lock, private_folder
from a2c_smcp.errors import Outcome, SMCPError

__all__ = ["DIGEST_SIZE", "JournalFailed", "JournalFile", "Record"]

logger = logging.getLogger(__name__)

DIGEST_SIZE = 16

_LINE = re.compile(rb"B (\d{1,12}) ([0-9a-f]{32}) ([0-9a-f]{32})|([DU]) ([0-9a-f]{32})")
_MARKS: dict[Outcome, str] = {"done": "D", "unknown": "U"}
_OUTCOMES: dict[bytes, Outcome] = {mark.encode(): outcome for outcome, mark in _MARKS.items()}
_SPARE_LINES = 10_000
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)


class JournalFailed(SMCPError):
    """A computer that cannot write down that a call begins does not begin it. The reason is in its log."""

    opening = "The computer cannot record calls, its owner has to look"
    usual_outcome = "not_run"


@dataclass(slots=True)
class Record:
    """A call as it stands in the file: digests of its key and of what is called, when it began, how it ended."""

    key: bytes
    call: bytes
    at: float
    line: bytes
    outcome: Outcome | None = None

    @classmethod
    def of(cls, key: bytes, call: bytes, at: float) -> Self:
        call = call[:DIGEST_SIZE]
        return cls(key, call, at, f"B {at:.0f} {key.hex()} {call.hex()}\n".encode())

    @property
    def mark(self) -> bytes:
        """The line that says how it ended, if it has."""
        return f"{_MARKS[self.outcome]} {self.key.hex()}\n".encode() if self.outcome else b""

    def is_of(self, call: bytes) -> bool:
        return self.call == call[:DIGEST_SIZE]


Records = Mapping[bytes, Record]


class JournalFile:
    """For one process at a time. What fails raises `JournalFailed` and is logged, once for all that fail in a row."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = -1
        self._descriptor = -1
        self._size = 0
        self._lines = 0
        self._is_failing = False

    @property
    def is_open(self) -> bool:
        """Whether lines can be appended."""
        return self._descriptor >= 0

    def read(self) -> dict[bytes, Record]:
        """All calls in it, in the order in which they were begun. From now on no other process has it."""
        with self._failing():
            self._take()
            return _read(self._path.read_bytes()) if self._path.exists() else {}

    def rewrite(self, *parts: Records) -> None:
        """Puts a file with these records, and nothing else, in its place. Lines can be appended then."""
        records = chain.from_iterable(part.values() for part in parts)
        text = b"".join([record.line + record.mark for record in records])
        fresh = self._path.with_suffix(".new")
        with self._failing():
            with _opened(fresh, os.O_TRUNC) as descriptor:
                _write(descriptor, text)
            self._let_go()
            fresh.replace(self._path)
            self._descriptor = os.open(self._path, _FLAGS, 0o600)
        self._size, self._lines = len(text), text.count(b"\n")

    def append(self, line: bytes) -> None:
        """In one write: all of a line is in the file afterwards, or nothing of it."""
        try:
            _write(self._descriptor, line)
        except OSError:
            with self._failing():
                self._cut_off_torn_line()
                raise
        self._size += len(line)
        self._lines += 1
        self._is_failing = False

    def _cut_off_torn_line(self) -> None:
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError:
            self._let_go()  # the file is read and rewritten, without a torn line, before another is appended

    def compact(self, *parts: Records) -> None:
        """Rewrites it if it has far more lines than these records need."""
        if self._lines > 4 * sum(map(len, parts)) + _SPARE_LINES:
            self.rewrite(*parts)

    def close(self) -> None:
        self._let_go()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _take(self) -> None:
        if self._lock >= 0:
            return
        private_folder(self._path.parent.parent, self._path.parent.name)
        descriptor = os.open(self._path.with_suffix(".lock"), _FLAGS, 0o600)
        if not lock(descriptor):
            os.close(descriptor)
            raise OSError(None, "another process of this computer is using it")
        self._lock = descriptor

    def _let_go(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._is_failing:
                logger.warning("no tool can be called: the journal of calls %s: %s", self._path, error.strerror)
            self._is_failing = True
            raise JournalFailed from None


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, _FLAGS | flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, text: bytes) -> None:
    """Raises `OSError`, also where only a part could be written."""
    if os.write(descriptor, text) != len(text):
        raise OSError(None, os.strerror(errno.ENOSPC))


def _read(text: bytes) -> dict[bytes, Record]:
    records: dict[bytes, Record] = {}
    for line in text.splitlines():
        if not (found := _LINE.fullmatch(line)):
            continue
        at, key, call, mark, ended = found.groups()
        if mark is None:
            key = bytes.fromhex(key.decode())
            records[key] = Record(key, bytes.fromhex(call.decode()), float(at), line + b"\n")
        elif record := records.get(bytes.fromhex(ended.decode())):
            record.outcome = _OUTCOMES[mark]
    return records
