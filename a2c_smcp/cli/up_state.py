"""What `up` keeps for each setup, for its owner alone: the key of its Server, and a note while it is running.

A setup is running while a process holds the lock of its note. Checking that takes the lock for a moment, so a process
that wants to run a setup tries for longer than such a moment.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from a2c_smcp.computer.private_files import default_folder, lock, private_folder

__all__ = ["AlreadyUp", "Note", "Running", "Standing", "running", "running_at"]

_SHORTEST_KEY = 16
_TRIES, _PAUSE = 5, 0.05
_LOOPBACK = ("127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Note:
    """Where it is running."""

    url: str
    office: str
    name: str
    pid: int


class AlreadyUp(Exception):
    """`note` is `None` while it has not come so far as to say where."""

    def __init__(self, note: Note | None) -> None:
        self.note = note
        super().__init__("it is running already")


class Running(NamedTuple):
    """An `up` of this user that is running now, and the key of its Server."""

    note: Note
    key: str


def running() -> Iterator[Running]:
    """All that are."""
    for path in sorted((default_folder() / "up").glob("*.running")):
        if note := _note_in(path):
            with suppress(OSError, ValueError):
                yield Running(note, path.with_suffix(".key").read_text("ascii").strip())


def running_at(url: str) -> Running | None:
    """The `up` that serves this URL. `localhost` stands for whichever loopback address it listens on."""
    return next((found for found in running() if _is_same_place(url, found.note.url)), None)


def _is_same_place(url: str, other: str) -> bool:
    try:
        wanted, found = urlsplit(url), urlsplit(other)
        is_port = (wanted.scheme, wanted.port or 80, wanted.path.strip("/")) == (found.scheme, found.port, "")
    except ValueError:  # not a URL: whoever dials it will say so
        return False
    is_host = wanted.hostname == found.hostname or (wanted.hostname == "localhost" and found.hostname in _LOOPBACK)
    return is_port and is_host


class Standing:
    """Of one configuration file, whatever else it is called on the way there."""

    def __init__(self, config: Path, folder: Path | None = None) -> None:
        digest = hashlib.sha256(os.fsencode(config.resolve())).hexdigest()[:16]
        self._folder, self._name = folder or default_folder(), digest
        self.key_file = self._folder / "up" / f"{digest}.key"

    @property
    def has_run(self) -> bool:
        """Whether this user has run it before."""
        return self.key_file.exists()

    def key(self, new: Callable[[], str]) -> str:
        """The key that is kept, or a new one that is kept from now on. Raises `OSError`."""
        private_folder(self._folder, "up")
        descriptor = os.open(self.key_file, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+", encoding="ascii", errors="replace") as file:
            os.chmod(self.key_file, 0o600)  # noqa: PTH101, it may have been there
            known = file.read().strip()
            if len(known) >= _SHORTEST_KEY and known.isascii() and known.isprintable():
                return known
            known = new()
            file.seek(0)
            file.truncate()
            file.write(f"{known}\n")
        return known

    @contextmanager
    def claimed(self) -> Iterator[Callable[[Note], None]]:
        """Nobody else runs this setup meanwhile; what is yielded writes the note. Raises `AlreadyUp` or `OSError`."""
        path = private_folder(self._folder, "up") / f"{self._name}.running"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _lock_patiently(descriptor):
                raise AlreadyUp(_read(descriptor))
            os.ftruncate(descriptor, 0)
            yield lambda note: _write(descriptor, note)
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def note(self) -> Note | None:
        """What is running now, if it has said so."""
        return _note_in(self._folder / "up" / f"{self._name}.running")


def _note_in(path: Path) -> Note | None:
    """Of the process that holds its lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return None if lock(descriptor) else _read(descriptor)
    finally:
        os.close(descriptor)


def _lock_patiently(descriptor: int) -> bool:
    for _ in range(_TRIES - 1):
        if lock(descriptor):
            return True
        time.sleep(_PAUSE)
    return lock(descriptor)


def _write(descriptor: int, note: Note) -> None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, json.dumps(asdict(note)).encode())


def _read(descriptor: int) -> Note | None:
    with suppress(ValueError, TypeError, OSError):
        found: Any = json.loads(os.read(descriptor, 65536))
        return Note(**found)
    return None
