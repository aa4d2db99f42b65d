"""An audit file that is written: one process each, private, rotated by size, chained (`chain.py`).

Entries are gathered, and `flush` writes them with one call, as one block of the chain. Who answers a request flushes
before the answer leaves. The operating system has the lines then: they outlast the process, and after a loss of power
the last of them may be gone. So all that costs much is done once for a block: encoding, hashing, writing, and the time.

If writing fails, such as on a full disk, the program goes on, and the lines wait: `trouble` says why, and the log says
so once. Writing is tried again once a second, by a timer if an event loop runs. When more than a mebibyte waits, new
entries are dropped and counted; when writing works again, an entry `audit lost` says how many there were. If a new file
cannot be begun, the present one grows.

Once a second it is checked that the file is still in its place. If it was renamed, as by logrotate, deleted or cut, a
new one is opened there and the chain goes on in it. Its first entry `audit opened` says after which line, and in which
file that is. If nothing can be opened, such as without the folder, entries wait as on a full disk.

Beside `FILE` are `FILE.state`, which the process holds locked, and `FILE.key`, the random key of the hashes of
arguments: its owner can check if a call had certain arguments; they cannot be read from the file.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from hashlib import blake2s
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from a2c_smcp.audit.chain import STATE_MISSING, Chain, Continued, KeptState
from a2c_smcp.audit.reading import chain_end, first_number, is_numbered, rotated
from a2c_smcp.errors import ConfigError
from a2c_smcp.files import check_private, lock, make_private, open_private, write_at_start

logger = logging.getLogger(__name__)

MIB = 1024 * 1024
_LARGEST = 64 * MIB
_KEPT = 16
_MOST_WAITING = MIB
_KEY_SIZE, _HASH_SIZE = 32, 16
_PAUSE = 1.0  # seconds between attempts, and between looks whether the file is in its place
_SHOWN = 600.0  # seconds for which `trouble` says that a file was deleted
_GONE = "the audit file was deleted, cut, or moved to another folder"
_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_NO_JSON = (TypeError, ValueError, OverflowError, RecursionError)
_encoder = msgspec.json.Encoder(enc_hook=str)


class AuditFileUnusable(ConfigError):
    """An audit file cannot be written where it should be."""


class AuditFile:
    """Writes one audit file. Raises `AuditFileUnusable`, or `NotPrivate`; then it leaves no new file behind.

    `lost` counts the entries that were dropped since it was opened, `gone` how often the file was deleted, cut or moved
    to another folder.
    """

    def __init__(self, path: Path, *, largest: int = _LARGEST, kept: int = _KEPT, pause: float = _PAUSE) -> None:
        self.path = path
        self.lost = self.gone = 0
        self._lost_before = 0
        self._gone_at = float("-inf")
        self._largest, self._kept = largest, kept
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._writing, self._rotating = _Attempts(pause), _Attempts(pause)
        self._looked_at = time.monotonic()
        self._is_torn = False
        self._timer: asyncio.TimerHandle | None = None
        self._second, self._prefix = 0, ""
        self._is_closed = False
        self.write(self._open())
        self.flush()

    @property
    def trouble(self) -> str:
        """Why entries wait or the file grows, or that the file was deleted a while ago; empty if all is well."""
        is_gone = time.monotonic() < self._gone_at + _SHOWN
        return self._writing.trouble or self._rotating.trouble or (_GONE if is_gone else "")

    def _open(self) -> dict[str, Any]:
        """Returns the first entry."""
        files = self._places()
        with ExitStack() as stack:
            try:
                self._open_files(stack, *files)
                opened = self._continue_chain()
            except OSError as error:
                why = error.strerror or str(error)
                raise AuditFileUnusable(f"the audit file {self.path} cannot be written: {why}") from None
            stack.pop_all()
        return opened

    def _places(self) -> tuple[Path, Path, Path]:
        """The paths of the state, the key and the file itself. Raises `AuditFileUnusable` or `NotPrivate`."""
        files = _beside(self.path, "state"), _beside(self.path, "key"), self.path
        if not self.path.parent.is_dir():
            raise AuditFileUnusable(f"there is no folder {self.path.parent} for the audit file {self.path.name}")
        check_private(self.path.parent, *files)
        for path in files:
            if path.is_symlink() or (path.exists() and not path.is_file()):
                raise AuditFileUnusable(f"the audit file {self.path} cannot be written: {path} is no regular file")
        return files

    def _open_files(self, undo: ExitStack, state: Path, key: Path, file: Path) -> None:
        self._state = _locked(state, file)
        undo.callback(os.close, self._state)
        if not os.fstat(self._state).st_size:
            undo.callback(state.unlink)
        for path in (key, file):
            if not os.path.lexists(path):
                undo.callback(path.unlink, missing_ok=True)
        self._key = _key(key)
        self._keyed = blake2s(key=self._key, digest_size=_HASH_SIZE)
        self._file, self._size = _open_file(file)
        undo.callback(os.close, self._file)

    def _continue_chain(self) -> dict[str, Any]:
        end, begun, self._number, torn = chain_end(self.path)
        if torn:
            os.ftruncate(self._file, self._size - torn)
            self._size -= torn
            logger.warning("the last line of %s was cut by a crash, and is dropped", self.path)
        kept = KeptState.of_bytes(os.read(self._state, 128))
        is_known = kept is not None or self._number == 0
        if not is_known:
            logger.error("%s.state is missing: lines of %s may be missing, too", self.path, self.path)
        if is_cut := kept is not None and kept.end.number > self._number:
            assert kept
            logger.error("%s: the lines %d to %d are missing", self.path, self._number + 1, kept.end.number)
        self._dropped = (kept or KeptState.guessed(first_number(self.path), end)).dropped
        if kept and kept.end.number >= end.number:
            end = kept.end  # the next line shows to `audit verify` what is missing, or was changed
        if end.number >= self._number:
            begun, self._number = b"", end.number
        self._chain = Chain(end, begun)
        self._keep_state()
        self._drop_old()
        return self._continued(is_cut=is_cut, begun=begun) if is_known else _opened(STATE_MISSING)

    def _continued(self, *, is_cut: bool, begun: bytes) -> dict[str, Any]:
        """The first entry, which says so if the file takes the place of one that was renamed, or `is_cut`."""
        if self._size or begun or not self._number:
            return _opened()
        older = [file.name for file in rotated(self.path) if not is_cut]
        return _opened(Continued(*self._chain.state, older[-1] if older else None).facts())

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
        entry = encoded({"time": self.now(), **facts})
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
        self._schedule()

    def _flush(self) -> None:
        try:
            self._look()
            if self._waiting:
                self._write()
        except (OSError, ConfigError) as error:
            why = (error.strerror if isinstance(error, OSError) else error.about) or str(error)
            if not self._writing.trouble:
                logger.error("the audit file %s cannot be written: %s", self.path, why)  # noqa: TRY400
            self._writing.failed(f"the audit file cannot be written: {why}")
            return
        if self._writing.trouble:
            lost, self._lost_before = self.lost - self._lost_before, self.lost
            logger.warning("the audit file %s is written again; %d entries were lost", self.path, lost)
            self._writing.succeeded()
            if lost:
                self.write({"event": "audit lost", "entries": lost})
                self._flush()
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
        write_at_start(self._state, state.to_bytes())

    def _look(self) -> None:
        """Opens a new file if the present one is no longer in its place. Raises `OSError` or `ConfigError`."""
        if (now := time.monotonic()) < self._looked_at + self._writing.pause:
            return
        self._looked_at = now
        if _is_at(self._state, _beside(self.path, "state")) and _is_at(self._file, self.path, self._size):
            return
        state, key, path = self._places()
        if not _is_at(self._state, state):
            self._state, old = _locked(state, path), self._state
            os.close(old)
        _key(key, self._key)
        if not _is_at(self._file, path, self._size):
            self._begin_anew(next((each.name for each in path.parent.iterdir() if _is_at(self._file, each)), None))
        self._keep_state()

    def _begin_anew(self, before: str | None) -> None:
        """Goes on in the file that is at the path now. The present one is called `before`, if it is still there."""
        is_kept = before not in (None, self.path.name)
        (self._file, self._size), old = _open_file(self.path), self._file
        os.close(old)
        self._is_torn = False
        last = self._chain.state.number
        if is_kept:
            logger.info("the audit file %s is %s now: a new one goes on after line %d", self.path, before, last)
        else:
            self.gone, self._gone_at = self.gone + 1, self._looked_at
            logger.error("%s: %s. A new one goes on after line %d", self.path, _GONE, last)
        opened = Continued(*self._chain.state, before if is_kept else None).facts()
        entry = encoded({"time": self.now(), **_opened(opened)})
        texts = [entry[1:], *(line.partition(b",")[2] for line in b"".join(self._waiting).split(b"\n")[:-1])]
        self._waiting = [b'{"n":%d,%b\n' % each for each in enumerate(texts, self._number + 2 - len(texts))]
        self._waiting_bytes = sum(map(len, self._waiting))
        self._number += 1

    def _keep_state(self) -> None:
        write_at_start(self._state, KeptState(self._chain.state, self._dropped).to_bytes())

    def _schedule(self) -> None:
        """Writes and looks again after a pause. Without an event loop, `flush` does."""
        if self._is_closed or self._timer is not None:
            return
        with suppress(RuntimeError):
            self._timer = asyncio.get_running_loop().call_later(self._writing.pause, self._try_again)

    def _try_again(self) -> None:
        self._timer = None
        self._flush()
        self._schedule()

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
        numbers = [int(old.suffix[1:]) for old in rotated(self.path) if is_numbered(old)]
        full = _beside(self.path, str(max(numbers, default=0) + 1))
        if os.name == "nt":
            os.close(file)
            self._rotate_closed(draft, full)
            return
        try:
            _swap(self.path, full, draft)
        except OSError:
            os.close(file)
            raise
        (self._file, self._size), old = (file, size), self._file
        os.close(old)

    def _rotate_closed(self, draft: Path, full: Path) -> None:
        """Rotate on Windows, where an open file cannot be renamed."""
        self._file, old = -1, self._file
        os.close(old)
        try:
            _swap(self.path, full, draft)
        finally:
            self._file, self._size = _open_file(self.path)

    def _drop_old(self) -> None:
        """Removes the oldest files. The state says first where the others begin."""
        dropped = [*takewhile(is_numbered, rotated(self.path)[: -self._kept])]  # logrotate removes its own
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
        self._flush()
        self.write({"event": "audit closed"})
        self._flush()
        os.close(self._file)
        os.close(self._state)

    def hash(self, arguments: bytes | memoryview) -> str:
        """The keyed hash of the JSON of arguments, by the key beside the file."""
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
    for without in ("", "arguments"):
        known = {name: fact for name, fact in facts.items() if name != without}
        with suppress(*_NO_JSON):
            return _encoder.encode(known)
        with suppress(*_NO_JSON):
            return json.dumps(known, separators=(",", ":"), default=str, allow_nan=False).encode("ascii")
    raise ValueError("an entry of an audit file is JSON")


def _swap(path: Path, full: Path, draft: Path) -> None:
    """Give a file the name `full`, and its place to the draft, or change nothing. Raises `OSError`."""
    path.rename(full)
    try:
        draft.rename(path)
    except OSError:
        full.rename(path)
        raise


def _opened(more: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    return {"event": "audit opened", "pid": os.getpid(), **more}


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f"{path.name}.{ending}")


def _private(path: Path, mode: int = 0) -> int:
    """The descriptor of a file that only its owner can read. Raises `OSError`, also for a link, a pipe or a device.

    Whoever may write in the folder could put one in the place of a file that was looked at a moment ago.
    """
    file = open_private(path, _PLAIN | mode)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(f"{path} is no regular file")
        make_private(file)
    except OSError:
        os.close(file)
        raise
    return file


def _open_file(path: Path) -> tuple[int, int]:
    file = _private(path, os.O_APPEND)
    return file, os.fstat(file).st_size


def _is_at(file: int, path: Path, size: int = 0) -> bool:
    """True if an open file is the one at this path, and not smaller than this."""
    status = os.fstat(file)
    with suppress(OSError):
        return os.path.samestat(status, path.stat()) and status.st_size >= size
    return False


def _locked(state: Path, file: Path) -> int:
    """The descriptor of a state that no other process holds. Raises `AuditFileUnusable` or `OSError`."""
    held = _private(state)
    if not lock(held):
        os.close(held)
        raise AuditFileUnusable(f"the audit file {file} is written by another process")
    return held


def _key(path: Path, made: bytes = b"") -> bytes:
    """The key of a set of files, made with the first of them."""
    file = _private(path)
    try:
        key = os.read(file, _KEY_SIZE)
        if len(key) != _KEY_SIZE:
            key = made or secrets.token_bytes(_KEY_SIZE)
            write_at_start(file, key)
        return key
    finally:
        os.close(file)
