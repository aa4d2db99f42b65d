"""The files that `a2c-smcp up` keeps for each setup: the API key of its Server, and where it runs.

Only their owner can read them. A setup is running while a process holds the lock on its `.running` file; the lock ends
with the process, so a file without a lock means nothing. Asking whether a setup runs takes the lock for a moment:
therefore a process that wants to run the setup tries for the lock several times.
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

from a2c_smcp.cli.options import SHORTEST_KEY
from a2c_smcp.http.loopback import is_loopback
from a2c_smcp.private_files import default_folder, lock, private_folder

__all__ = ["AlreadyUp", "RunningUp", "UpInfo", "UpState", "find_running_up", "running_ups"]

_TRIES, _PAUSE = 5, 0.05


@dataclass(frozen=True, kw_only=True)
class UpInfo:
    """Where an `a2c-smcp up` runs."""

    url: str
    office: str
    name: str
    pid: int


class AlreadyUp(Exception):
    """Another process runs this setup. `info` is `None` if it has not written yet where."""

    def __init__(self, info: UpInfo | None) -> None:
        self.info = info
        super().__init__("it is running already")


class RunningUp(NamedTuple):
    """An `a2c-smcp up` of this user that runs now, the API key of its Server, and the file that holds it."""

    info: UpInfo
    key: str
    key_file: Path


def running_ups() -> Iterator[RunningUp]:
    """All that run now."""
    for path in sorted((default_folder() / "up").glob("*.running")):
        if info := _info_in(path):
            key_file = path.with_suffix(".key")
            with suppress(OSError, ValueError):
                yield RunningUp(info, key_file.read_text("ascii").strip(), key_file)


def find_running_up(url: str) -> RunningUp | None:
    """The one that serves this URL. `localhost` means any loopback address."""
    return next((found for found in running_ups() if _is_same_place(url, found.info.url)), None)


def _is_same_place(url: str, other: str) -> bool:
    try:
        wanted, found = urlsplit(url), urlsplit(other)
        is_port = (wanted.scheme, wanted.port or 80, wanted.path.strip("/")) == (found.scheme, found.port, "")
    except ValueError:  # not a URL: connecting to it reports that
        return False
    is_any_loopback = wanted.hostname == "localhost" and is_loopback(found.hostname or "")
    return is_port and (is_any_loopback or wanted.hostname == found.hostname)


class UpState:
    """The kept files of one setup, found by a digest of the real path of its configuration file."""

    def __init__(self, config: Path, folder: Path | None = None) -> None:
        digest = hashlib.sha256(os.fsencode(config.resolve())).hexdigest()[:16]
        self._folder, self._name = folder or default_folder(), digest
        self.key_file = self._folder / "up" / f"{digest}.key"

    @property
    def has_run(self) -> bool:
        """Whether this user has run the setup before."""
        return self.key_file.exists()

    def key(self, new: Callable[[], str]) -> str:
        """The kept API key; at first a new one, which is kept. Raises `OSError`."""
        private_folder(self._folder, "up")
        descriptor = os.open(self.key_file, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+", encoding="ascii", errors="replace") as file:
            os.chmod(self.key_file, 0o600)  # noqa: PTH101, the file may have existed
            known = file.read().strip()
            if len(known) >= SHORTEST_KEY and known.isascii() and known.isprintable():
                return known
            known = new()
            file.seek(0)
            file.truncate()
            file.write(f"{known}\n")
        return known

    @contextmanager
    def claimed(self) -> Iterator[Callable[[UpInfo], None]]:
        """Hold the lock of the setup; yield a function that writes where it runs. Raises `AlreadyUp` or `OSError`."""
        path = private_folder(self._folder, "up") / f"{self._name}.running"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _lock_patiently(descriptor):
                raise AlreadyUp(_read(descriptor))
            os.ftruncate(descriptor, 0)
            yield lambda info: _write(descriptor, info)
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def info(self) -> UpInfo | None:
        """Where the setup runs now; `None` if it does not, or has not written it yet."""
        return _info_in(self._folder / "up" / f"{self._name}.running")


def _info_in(path: Path) -> UpInfo | None:
    """What the process that holds the lock has written."""
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


def _write(descriptor: int, info: UpInfo) -> None:
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, json.dumps(asdict(info)).encode())


def _read(descriptor: int) -> UpInfo | None:
    with suppress(ValueError, TypeError, OSError):
        found: Any = json.loads(os.read(descriptor, 65536))
        return UpInfo(**found)
    return None
