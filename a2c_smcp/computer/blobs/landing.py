"""The folder in which files of agents land, and the part files that grow in it.

Part files are in `.a2c-upload` inside the landing folder, a folder that only its owner can enter. A complete file is
renamed in one step. Names never come from an agent: a file is called by a random id, to which only harmless characters
of the agent's hint are added. Links are not followed: each folder is opened first, and files are made, renamed and
removed inside the open folder, so nobody can put another one in its place meanwhile. (Systems without such operations
use paths.)

A part file is locked while it grows. One that is not locked was left by a process that died, and is removed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from a2c_smcp.private_files import lock

__all__ = ["LandingFolder"]

_PARTS = ".a2c-upload"
_PART = ".part"
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_OLD = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_HAS_FOLDERS = {os.open, os.rename, os.unlink, os.mkdir} <= os.supports_dir_fd
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_HINT = 64
_TRIES = 10


class _OpenFolder(NamedTuple):
    """A folder, and its descriptor where the system can work with that."""

    path: Path
    descriptor: int | None

    def at(self, name: str) -> str | Path:
        return self.path / name if self.descriptor is None else name


class LandingFolder:
    """All methods block, and raise `OSError`."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def create(self, upload_id: str) -> BinaryIO:
        """A new part file, locked. If another process removes it as left over before that, it is made again."""
        for _ in range(_TRIES):
            with suppress(FileNotFoundError), self._parts() as (_, parts):
                descriptor = os.open(parts.at(upload_id + _PART), _NEW, 0o600, dir_fd=parts.descriptor)
                if lock(descriptor) and os.fstat(descriptor).st_nlink:
                    return os.fdopen(descriptor, "w+b")
                os.close(descriptor)
        raise OSError(None, f"{_PARTS} is emptied by another program")

    def land(self, upload_id: str, file: BinaryIO, hint: object) -> Path:
        """Rename a part file to the name under which it stays, and close it."""
        name = _landing_name(upload_id, hint)
        file.flush()
        if os.name == "nt":  # an open file cannot be renamed there
            file.close()
        with self._parts() as (root, parts):
            os.rename(  # inside open folders
                parts.at(upload_id + _PART), root.at(name), src_dir_fd=parts.descriptor, dst_dir_fd=root.descriptor
            )
        file.close()
        return self._root / name

    def discard(self, upload_id: str) -> None:
        with suppress(OSError), self._parts() as (_, parts):
            os.unlink(parts.at(upload_id + _PART), dir_fd=parts.descriptor)

    def remove_left(self) -> None:
        """Remove the part files of processes that died, and the folder of part files if it is empty."""
        if not (self._root / _PARTS).exists():
            return
        with suppress(OSError), self._parts() as (root, parts):
            for name in os.listdir(parts.path if parts.descriptor is None else parts.descriptor):  # noqa: PTH208
                if name.endswith(_PART):
                    _remove_if_left(parts, name)
            os.rmdir(root.at(_PARTS), dir_fd=root.descriptor)  # refused unless it is empty

    @contextmanager
    def _parts(self) -> Iterator[tuple[_OpenFolder, _OpenFolder]]:
        """The landing folder and the folder of part files, which are made if they are missing."""
        self._root.mkdir(parents=True, exist_ok=True)
        with _opened(self._root, None) as root:
            with suppress(FileExistsError):
                os.mkdir(root.at(_PARTS), 0o700, dir_fd=root.descriptor)
            with _opened(self._root / _PARTS, root) as parts:
                yield root, parts


@contextmanager
def _opened(path: Path, inside: _OpenFolder | None) -> Iterator[_OpenFolder]:
    """A folder; one `inside` another must be a folder itself, not a link to one, and must be its owner's alone."""
    if not _HAS_FOLDERS:
        if inside and path.is_symlink():
            raise OSError(None, f"{path.name} is a link")
        yield _OpenFolder(path, None)
        return
    if inside is None:
        descriptor = os.open(path, _DIRECTORY)
    else:
        descriptor = os.open(path.name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=inside.descriptor)
    try:
        status = os.fstat(descriptor)
        if inside and (status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077):
            raise OSError(None, f"{path.name} is open to others on this machine")
        yield _OpenFolder(path, descriptor)
    finally:
        os.close(descriptor)


def _remove_if_left(parts: _OpenFolder, name: str) -> None:
    with suppress(OSError):
        descriptor = os.open(parts.at(name), _OLD, dir_fd=parts.descriptor)
        try:
            is_left = lock(descriptor)
        finally:
            os.close(descriptor)
        if is_left:
            os.unlink(parts.at(name), dir_fd=parts.descriptor)


def _landing_name(upload_id: str, hint: object) -> str:
    safe = _UNSAFE.sub("_", hint)[:_LONGEST_HINT].strip("._-") if isinstance(hint, str) else ""
    return f"{upload_id}_{safe}" if safe else upload_id
