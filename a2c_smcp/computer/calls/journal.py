"""A journal of the tool calls that were begun, so that none runs twice for one key, even across a crash (WIRE §5).

A key (office, agent, its seat, req_id) is unknown, *begun* or *ended*. `begin` is called after the owner's approval,
directly before the request is written to the MCP server, and returns only when the line is in the file. So every
request that the MCP server may have seen is in the journal. The kernel has the line by then, and keeps it if this
process is killed; there is no fsync, so a crash of the whole machine may lose it. `end` is called when the outcome is
known. If the process dies in between, the key stays begun: the tool may or may not have run (outcome `unknown`). A
call that ended without a result, because it was cancelled or timed out, is ended and `unknown` as well; only a result
makes it `done`.

Without a file the journal lasts as long as the process. If the file cannot be locked, read or written, no call may
begin (`JournalFailed`). Each call tries again, so calls begin again as soon as the file can be used.

The file: a line is `B <unix time> <key> <call>` for a call that was begun, `D <key>` for one that ended with a result
and `U <key>` for one that ended without; keys and calls are digests. Any other line, such as the torn last line of a
killed process, is ignored. The file is opened for appending, and rewritten as a whole when most of it is out of date
and when a process takes it over. The lock is on a file beside it, which is never replaced: a lock on the journal itself
would be lost with the rewritten file.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Self

from a2c_smcp.errors import NameTaken, Outcome, RateLimited, SMCPError
from a2c_smcp.files import default_folder, lock, private_folder
from a2c_smcp.protocol.codec import MAX_TIMEOUT

logger = logging.getLogger(__name__)

_DIGEST_SIZE = 16

_LINE = re.compile(rb"B (\d{1,12}) ([0-9a-f]{32}) ([0-9a-f]{32})|([DU]) ([0-9a-f]{32})")
_MARKS: dict[Outcome, str] = {"done": "D", "unknown": "U"}
_OUTCOMES: dict[bytes, Outcome] = {mark.encode(): outcome for outcome, mark in _MARKS.items()}
_SPARE_LINES = 10_000
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)

Key = tuple[str, str, str, str]
"""Office, agent, seat, req_id. The seat is empty behind a Server that tells none."""

_KEEP = MAX_TIMEOUT + 3600.0
_MOST = 100_000


class JournalFailed(SMCPError):
    """The computer cannot write into its journal, so no call begins. The reason is in its log."""

    title = "The computer cannot write its journal; its owner must fix this (see its log)"
    default_outcome = "not_run"


class JournalTaken(JournalFailed):
    """Another process has the journal."""


@dataclass(slots=True)
class JournalRecord:
    """A call in the journal. `key` is the digest of its key, `digest` that of its tool and arguments."""

    key: bytes
    digest: bytes
    at: float
    line: bytes
    outcome: Outcome | None = None

    @classmethod
    def of(cls, key: bytes, digest: bytes, at: float) -> Self:
        digest = digest[:_DIGEST_SIZE]
        return cls(key, digest, at, f"B {at:.0f} {key.hex()} {digest.hex()}\n".encode())

    @property
    def mark(self) -> bytes:
        """The line on how it ended; empty if it has not."""
        return f"{_MARKS[self.outcome]} {self.key.hex()}\n".encode() if self.outcome else b""

    def is_of(self, digest: bytes) -> bool:
        return self.digest == digest[:_DIGEST_SIZE]


class Journal:
    """The calls that were begun within the last `keep` seconds, at most `most` of them: ended ones make room."""

    def __init__(
        self,
        path: Path | None = None,
        *,
        keep: float = _KEEP,
        most: int = _MOST,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._file = _JournalFile(path) if path else None
        self._keep = keep
        self._most = most
        self._clock = clock
        self._begun: dict[bytes, JournalRecord] = {}
        self._ended: dict[bytes, JournalRecord] = {}

    def find(self, key: Key) -> JournalRecord | None:
        """The call that was begun under this key. Raises `JournalFailed` if the file cannot be read."""
        self._open()
        self._forget_old()
        office, agent, _, req_id = key
        for digest in (_digest(key), _digest((office, agent, "", req_id))):  # begun before the Server told seats
            if found := self._begun.get(digest) or self._ended.get(digest):
                return found
        return None

    def begin(self, key: Key, digest: bytes) -> None:
        """Write down that a call begins. `digest` is that of its tool and arguments.

        Raises `RateLimited` or `JournalFailed`; then the tool must not run.
        """
        self._open()
        if len(self._begun) + len(self._ended) >= self._most:
            self._make_room()
        record = JournalRecord.of(_digest(key), digest, self._clock())
        if self._file:
            self._file.append(record.line)
        self._begun[record.key] = record

    def end(self, key: Key, outcome: Outcome) -> None:
        """Write down how a call ended. If that fails, the call stays begun in the file, with the outcome `unknown`."""
        if (record := self._begun.pop(_digest(key), None)) is None:
            return
        record.outcome = outcome
        self._ended[record.key] = record
        if self._file and self._file.is_open:
            with suppress(JournalFailed):
                self._file.append(record.mark)
                self._file.compact(self._begun, self._ended)

    def close(self) -> None:
        if self._file:
            self._file.close()

    def _open(self) -> None:
        """Take over the records of an earlier process, and rewrite the file: its last line may be torn."""
        if self._file is None or self._file.is_open:
            return
        records = self._file.read()
        self._begun = {key: record for key, record in records.items() if record.outcome is None}
        self._ended = {key: record for key, record in records.items() if record.outcome is not None}
        self._forget_old()
        while self._ended and len(self._begun) + len(self._ended) > self._most:
            self._make_room()
        self._file.rewrite(self._begun, self._ended)

    def _make_room(self) -> None:
        if not self._ended:
            raise RateLimited(f"{self._most} calls were begun and have not ended")
        del self._ended[next(iter(self._ended))]

    def _forget_old(self) -> None:
        oldest = self._clock() - self._keep
        for records in (self._begun, self._ended):
            while records and next(iter(records.values())).at < oldest:
                del records[next(iter(records))]


@contextmanager
def journal_of(name: str, url: str, office: str, folder: Path | None = None) -> Iterator[Journal]:
    """The journal of this computer in this office of this Server, in a file beside its instance (`instance_of`).

    Two processes never share one. Raises `NameTaken` if another has it: it is the same computer.
    """
    digest = hashlib.sha256(f"{url}\0{name}\0{office}".encode()).hexdigest()[:32]
    journal = Journal((folder or default_folder()) / "instances" / f"{digest}.calls")
    try:
        try:
            journal.find(("", "", "", ""))
        except JournalTaken as taken:
            raise NameTaken(taken.reason) from None
        except JournalFailed:  # logged for the owner now, and answered to the agent with each call
            pass
        yield journal
    finally:
        journal.close()


@lru_cache
def _digest(key: Key) -> bytes:
    office, agent, seat, req_id = key
    named = key if seat else (office, agent, req_id)  # as in files of before seats had an identity
    return hashlib.blake2b("\0".join(named).encode(errors="surrogatepass"), digest_size=_DIGEST_SIZE).digest()


_Records = Mapping[bytes, JournalRecord]


class _JournalFile:
    """The file of a journal, used by one process at a time.

    Every failure raises `JournalFailed`; of several in a row the first is logged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = -1
        self._descriptor = -1
        self._size = 0
        self._lines = 0
        self._is_failing = False

    @property
    def is_open(self) -> bool:
        """True if lines can be appended."""
        return self._descriptor >= 0

    def read(self) -> dict[bytes, JournalRecord]:
        """Lock the file for this process. Returns all calls in it, in the order in which they were begun."""
        with self._failing():
            self._take()
            return _read(self._path.read_bytes()) if self._path.exists() else {}

    def rewrite(self, *parts: _Records) -> None:
        """Replace the file by one with these records, and open it for appending."""
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
        """Append a line in one write: the file has all of it afterwards, or nothing of it."""
        try:
            _write(self._descriptor, line)
        except OSError:
            with self._failing():
                try:
                    os.ftruncate(self._descriptor, self._size)
                except OSError:
                    self._let_go()  # the file is read and rewritten, without a torn line, before another is appended
                raise
        self._size += len(line)
        self._lines += 1
        self._is_failing = False

    def compact(self, *parts: _Records) -> None:
        """Rewrite the file if it has far more lines than these records need."""
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
            holder = os.read(descriptor, 20).decode("ascii", "replace")
            os.close(descriptor)
            raise JournalTaken(f"this computer runs already as process {holder or 'of another version'}")
        os.ftruncate(descriptor, 0)
        _write(descriptor, str(os.getpid()).encode())
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
    """Raise `OSError` also if only a part could be written."""
    if os.write(descriptor, text) != len(text):
        raise OSError(None, os.strerror(errno.ENOSPC))


def _read(text: bytes) -> dict[bytes, JournalRecord]:
    records: dict[bytes, JournalRecord] = {}
    for line in text.splitlines():
        if not (found := _LINE.fullmatch(line)):
            continue
        at, key, digest, mark, ended = found.groups()
        if mark is None:
            key = bytes.fromhex(key.decode())
            records[key] = JournalRecord(key, bytes.fromhex(digest.decode()), float(at), line + b"\n")
        elif record := records.get(bytes.fromhex(ended.decode())):
            record.outcome = _OUTCOMES[mark]
    return records
