"""The folder in which a Computer keeps large contents until agents have read them.

Each running Computer has a folder of its own, `<state>/blobs/<id>`, made for its owner alone when it is first needed,
and removed when the Computer is closed. `<state>/blobs/<id>.lock` is locked for as long as the process lives, and is
there before the folder and after it. So the next Computer that starts knows which folders were left by a crash: those
whose lock is free.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import NamedTuple

from a2c_smcp.private_files import default_folder, lock, private_folder

__all__ = ["Spool", "Spooled", "remove"]

_NAME = "blobs"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_PIECE = 1024 * 1024
_CRASHED = 24 * 3600.0  # seconds after which a folder is left over, on systems without locks


class Spooled(NamedTuple):
    path: Path
    size: int
    sha256: str


class Spool:
    """Files in a folder. `add` and `close` block, and may be called in any thread."""

    def __init__(self) -> None:
        self._state: Path | None = None
        self._folder: Path | None = None
        self._lock = -1
        self._making = Lock()

    def open(self, state_folder: Path | None) -> None:
        """Remove what earlier processes have left. The folder itself is made by the first `add`."""
        self._state = state_folder or default_folder()
        with suppress(OSError):
            for path in (self._state / _NAME).glob("*.lock"):
                _remove_if_left(path)

    def add(self, content: bytes | Path) -> Spooled:
        """Write a file, and return its size and hash. Raises `OSError`, `NotPrivate` if others could change it."""
        path = self._own_folder() / token_hex(16)
        digest, size = hashlib.sha256(), 0
        try:
            with os.fdopen(os.open(path, _FLAGS, 0o600), "wb") as file:
                for piece in _pieces(content):
                    file.write(piece)
                    digest.update(piece)
                    size += len(piece)
        except BaseException:
            remove(path)
            raise
        return Spooled(path, size, digest.hexdigest())

    def close(self) -> None:
        with self._making:
            folder, self._folder, self._state = self._folder, None, None
        if folder is None:
            return
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.with_suffix(".lock").unlink()
        os.close(self._lock)
        self._lock = -1

    def _own_folder(self) -> Path:
        with self._making:
            if self._state is None:
                raise OSError(None, "the computer is not running")
            if self._folder is None:
                self._folder, self._lock = _locked_folder(private_folder(self._state, _NAME))
            return self._folder


def remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _locked_folder(parent: Path) -> tuple[Path, int]:
    while True:
        folder = parent / token_hex(8)
        descriptor = os.open(folder.with_suffix(".lock"), _FLAGS, 0o600)
        if lock(descriptor):
            folder.mkdir(mode=0o700)
            return folder, descriptor
        os.close(descriptor)  # another process has just taken it for one that was left


def _remove_if_left(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        if lock(descriptor) and (os.name == "posix" or path.stat().st_mtime < time.time() - _CRASHED):
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
            path.unlink()
    finally:
        os.close(descriptor)


def _pieces(content: bytes | Path) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece
