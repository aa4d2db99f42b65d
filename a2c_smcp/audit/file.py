"""An audit file that is written: one process each, private, rotated by size, chained (`chain.py`).

Entries are gathered, and `flush` writes them with one call, as one block of the chain. Who answers a request flushes
before the answer leaves. The operating system has the lines then: they outlast the process, and after a loss of power
the last of them may be gone. So all that costs much is done once for a block: encoding, hashing, writing, and the time.

If writing fails, such as on a full disk, the program goes on, and the lines wait: `trouble` says why, and the log says
so once. Writing is tried again once a second, by a timer if an event loop runs. When more than a mebibyte waits, new
entries are dropped and counted; when writing works again, an entry `audit lost` says how many there were. If a new file
cannot be begun, the present one grows.

Beside `FILE` are `FILE.state`, which the process holds locked, and `FILE.key`, the random key of the hashes of
arguments: who has it can check whether a call had certain arguments, nobody can read them from the file.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from hashlib import blake2s
from pathlib import Path
from typing import Any

import msgspec

from a2c_smcp.audit.chain import STATE_MISSING, Chain, KeptState
from a2c_smcp.audit.reading import chain_end, first_number, rotated
from a2c_smcp.errors import ConfigError
from a2c_smcp.private_files import check_private, lock

__all__ = ["AuditFile", "AuditFileUnusable", "encoded", "hash_of_arguments", "read_key"]

logger = logging.getLogger(__name__)

MIB = 1024 * 1024
_LARGEST = 64 * MIB
_KEPT = 16
_MOST_WAITING = MIB
_KEY_SIZE, _HASH_SIZE = 32, 16
_PAUSE = 1.0  # seconds between attempts
_encoder = msgspec.json.Encoder(enc_hook=str)


class AuditFileUnusable(ConfigError):
    """An audit file cannot be written where it should be."""


class AuditFile:
    """Writes one audit file. Raises `AuditFileUnusable`, or `NotPrivate`; then it leaves no new file behind.

    `lost` counts the entries that were dropped since it was opened.
    """

    def __init__(self, path: Path, *, largest: int = _LARGEST, kept: int = _KEPT, pause: float = _PAUSE) -> None:
        self.path = path
        self.lost = 0
        self._lost_before = 0
        self._largest, self._kept = largest, kept
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._writing, self._rotating = _Attempts(pause), _Attempts(pause)
        self._is_torn = False
        self._timer: asyncio.TimerHandle | None = None
        self._second, self._prefix = 0, ""
        self._is_closed = False
        is_known = self._open()
        self.write({"event": "audit opened", "pid": os.getpid(), **({} if is_known else STATE_MISSING)})
        self.flush()

    @property
    def trouble(self) -> str:
        """Why entries wait or the file grows; empty if all is well."""
        return self._writing.trouble or self._rotating.trouble

    def _open(self) -> bool:
        """Whether the state of the lines that are there already is known."""
        files = _beside(self.path, "state"), _beside(self.path, "key"), self.path
        if not self.path.parent.is_dir():
            raise AuditFileUnusable(f"there is no folder {self.path.parent} for the audit file {self.path.name}")
        check_private(self.path.parent, *files)
        for path in files:
            if path.exists() and not path.is_file():
                raise AuditFileUnusable(f"the audit file {self.path} cannot be written: {path} is no regular file")
        with ExitStack() as stack:
            try:
                self._open_files(stack, *files)
                is_known = self._continue_chain()
            except OSError as error:
                why = error.strerror or str(error)
                raise AuditFileUnusable(f"the audit file {self.path} cannot be written: {why}") from None
            stack.pop_all()
        return is_known

    def _open_files(self, undo: ExitStack, state: Path, key: Path, file: Path) -> None:
        self._state = os.open(state, os.O_RDWR | os.O_CREAT, 0o600)
        undo.callback(os.close, self._state)
        if not lock(self._state):
            raise AuditFileUnusable(f"the audit file {file} is written by another process")
        if not os.fstat(self._state).st_size:
            undo.callback(state.unlink)
        for path in (key, file):
            if not os.path.lexists(path):
                undo.callback(path.unlink, missing_ok=True)
        os.fchmod(self._state, 0o600)
        self._keyed = blake2s(key=_key(key), digest_size=_HASH_SIZE)
        self._file, self._size = _open_file(file)
        undo.callback(os.close, self._file)

    def _continue_chain(self) -> bool:
        found, begun, self._number, torn = chain_end(self.path)
        if torn:
            os.ftruncate(self._file, self._size - torn)
            self._size -= torn
            logger.warning("the last line of %s was cut by a crash, and is dropped", self.path)
        kept = KeptState.of_bytes(os.pread(self._state, 128, 0))
        is_known = kept is not None or self._number == 0
        if not is_known:
            logger.error("%s.state is missing: lines of %s may be missing, too", self.path, self.path)
        if kept and kept.end.number > self._number:
            logger.error("%s: the lines %d to %d are missing", self.path, self._number + 1, kept.end.number)
        self._dropped = (kept or KeptState.guessed(first_number(self.path), found)).dropped
        if kept and kept.end.number >= found.number:
            found = kept.end  # the next line shows to `audit verify` what is missing, or was changed
        if found.number >= self._number:
            begun, self._number = b"", found.number
        self._chain = Chain(found, begun)
        self._keep_state()
        self._drop_old()
        return is_known

    def now(self) -> str:
        """The time of an entry, in UTC."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second = second
            self._prefix = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._prefix}.{int((now - second) * 1000):03d}Z"

    def write(self, facts: Mapping[str, Any]) -> None:
        """Adds an entry, with the time in front. `flush` has to follow. `arguments` that are no JSON are left out."""
        self.write_encoded(encoded({"time": self.now(), **facts}))

    def write_encoded(self, entry: bytes) -> None:
        """Adds an entry, a JSON object with `time` and `event`. Raises `ValueError` if it is more than one line."""
        if b"\n" in entry:
            raise ValueError("an entry of an audit file is one line")
        self._add(b'{"n":%d,%b\n' % (self._number + 1, entry[1:]), 1)

    @property
    def next_number(self) -> int:
        """The number of the next entry."""
        return self._number + 1

    def write_numbered(self, entries: Sequence[msgspec.Struct]) -> None:
        """Adds entries whose fields begin with `n`, from `next_number` on, and `time`.

        JSON that they hold as it is must have no newline: counting those of all lines would cost as much as encoding.
        """
        self._add(_encoder.encode_lines(entries), len(entries))

    def _add(self, lines: bytes, count: int) -> None:
        if self._waiting_bytes > _MOST_WAITING and self._writing.trouble:
            self.lost += count
            return
        self._waiting.append(lines)
        self._waiting_bytes += len(lines)
        self._number += count

    def flush(self) -> None:
        """Writes what was added, unless writing has just failed. It does not raise."""
        if self._waiting and self._writing.is_due:
            self._flush()

    def _flush(self) -> None:
        try:
            self._write()
        except OSError as error:
            if not self._writing.trouble:
                logger.error("the audit file %s cannot be written: %s", self.path, error.strerror)  # noqa: TRY400
            self._writing.failed(f"the audit file cannot be written: {error.strerror}")
            self._schedule()
            return
        if self._writing.trouble:
            self._recover()
        if (self._size >= self._largest or self._rotating.trouble) and self._rotating.is_due:
            self._try_to_rotate()

    def _write(self) -> None:
        if self._is_torn:
            os.ftruncate(self._file, self._size)
        self._is_torn = True
        text, state = self._chain.block(self._waiting, self._number)
        left = memoryview(text)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._is_torn = False
        self._size += len(text)
        self._chain.was_written(state)
        self._waiting.clear()
        self._waiting_bytes = 0
        os.pwrite(self._state, state.to_bytes(), 0)

    def _keep_state(self) -> None:
        os.pwrite(self._state, KeptState(self._chain.state, self._dropped).to_bytes(), 0)

    def _schedule(self) -> None:
        """Tries again after a pause. Without an event loop, `flush` does."""
        if self._is_closed or self._timer is not None:
            return
        with suppress(RuntimeError):
            self._timer = asyncio.get_running_loop().call_later(self._writing.pause, self._try_again)

    def _try_again(self) -> None:
        self._timer = None
        if self._waiting:
            self._flush()

    def _recover(self) -> None:
        lost, self._lost_before = self.lost - self._lost_before, self.lost
        logger.warning("the audit file %s is written again; %d entries were lost", self.path, lost)
        self._writing.succeeded()
        if lost:
            self.write({"event": "audit lost", "entries": lost})
            self._flush()

    def _try_to_rotate(self) -> None:
        try:
            if self._size >= self._largest:
                self._rotate()
            self._drop_old()
        except OSError as error:
            if not self._rotating.trouble:
                logger.error("the audit file %s cannot be rotated: %s", self.path, error.strerror)  # noqa: TRY400
            self._rotating.failed(f"the audit file cannot be rotated: {error.strerror}")
        else:
            self._rotating.succeeded()

    def _rotate(self) -> None:
        """Begins a new file. The chain goes on in it. If that fails, the present one stays open and in its place."""
        draft = _beside(self.path, "new")
        file, size = _open_file(draft)
        full = _beside(self.path, str(max((number for number, _ in rotated(self.path)), default=0) + 1))
        try:
            self.path.rename(full)
            try:
                draft.rename(self.path)
            except OSError:
                full.rename(self.path)
                raise
        except OSError:
            os.close(file)
            raise
        (self._file, self._size), old = (file, size), self._file
        os.close(old)

    def _drop_old(self) -> None:
        """Removes the oldest files. The state says first where the others begin."""
        dropped = [old for _, old in rotated(self.path)[: -self._kept]]
        if not dropped:
            return
        self._dropped = chain_end(dropped[-1], alone=True).state
        self._keep_state()
        for old in dropped:
            old.unlink()

    def close(self) -> None:
        """Writes the rest, and that this is the end. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._try_again()
        self.write({"event": "audit closed"})
        self._try_again()
        os.close(self._file)
        os.close(self._state)

    def hash(self, arguments: bytes | memoryview) -> str:
        """The keyed hash of the JSON of arguments, as `hash_of_arguments` makes it."""
        keyed = self._keyed.copy()
        keyed.update(arguments)
        return keyed.hexdigest()


class _Attempts:
    """Something that may fail, and is tried again after a pause."""

    def __init__(self, pause: float) -> None:
        self.trouble = ""
        self.pause = pause
        self._next = 0.0

    @property
    def is_due(self) -> bool:
        return not self.trouble or time.monotonic() >= self._next

    def failed(self, why: str) -> None:
        self.trouble, self._next = why, time.monotonic() + self.pause

    def succeeded(self) -> None:
        self.trouble = ""


def encoded(facts: dict[str, Any]) -> bytes:
    """Facts as one line of JSON. msgspec refuses what JSON of others may hold, such as half a surrogate pair.

    Raises `ValueError`.
    """
    attempts: tuple[Callable[[dict[str, Any]], bytes], ...] = (_encoder.encode, _escaped)
    for without in ("", "arguments"):
        known = {name: fact for name, fact in facts.items() if name != without}
        for encode in attempts:
            with suppress(TypeError, ValueError, OverflowError, RecursionError):
                return encode(known)
    raise ValueError("an entry of an audit file is JSON")


def _escaped(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, separators=(",", ":"), default=str, allow_nan=False).encode("ascii")


def hash_of_arguments(key: bytes, arguments: bytes | memoryview) -> str:
    return blake2s(arguments, key=key, digest_size=_HASH_SIZE).hexdigest()


def read_key(path: Path) -> bytes | None:
    """The key of the hashes in an audit file, if there is one."""
    try:
        return _beside(path, "key").read_bytes()
    except OSError:
        return None


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f"{path.name}.{ending}")


def _open_file(path: Path) -> tuple[int, int]:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    os.fchmod(file, 0o600)
    return file, os.fstat(file).st_size


def _key(path: Path) -> bytes:
    """The key of a set of files, made with the first of them."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.fchmod(file, 0o600)
        key = os.read(file, _KEY_SIZE)
        if len(key) != _KEY_SIZE:
            key = secrets.token_bytes(_KEY_SIZE)
            os.pwrite(file, key, 0)
        return key
    finally:
        os.close(file)
