"""Files that programs keep on this machine, and that only their owner may change.

Another user who can write to one of them decides what runs here, so such a file is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shlex
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from a2c_smcp.errors import NotPrivate

__all__ = [
    "PrivateFileUnusable",
    "PrivateJSONFile",
    "check_private",
    "default_folder",
    "instance_of",
    "lock",
    "private_folder",
    "remedy_for",
    "replace_file",
]

logger = logging.getLogger(__name__)


def check_private(*paths: Path) -> None:
    """Raise `NotPrivate` if other users of this machine may write to one of them. A missing file is fine."""
    for path in paths:
        if remedy := remedy_for(path):
            if _is_for_everybody(path):
                raise NotPrivate(f"{path} is for all users of this machine, and is not used; use a folder of your own")
            raise NotPrivate(f"{path} can be changed by others on this machine, and is not used; run: {remedy}")


def _is_for_everybody(path: Path) -> bool:
    """Whether others are meant to write to it, such as /tmp or /dev/null: it must not be made private."""
    mode = path.stat().st_mode
    return bool(mode & stat.S_ISVTX) if stat.S_ISDIR(mode) else not stat.S_ISREG(mode)


def remedy_for(path: Path) -> str | None:
    """The command that makes a file private; `None` if it is private, or if the system has no such permissions."""
    if os.name != "posix":
        return None
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    return f"chmod go-w {shlex.quote(str(path))}" if mode & (stat.S_IWGRP | stat.S_IWOTH) else None


def default_folder() -> Path:
    """The folder in which programs of this user keep their state."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "a2c-smcp"


def private_folder(folder: Path, name: str) -> Path:
    """A folder inside the state folder. Missing folders are made for their owner alone.

    Raises `OSError`, and `NotPrivate` if others may write to it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / name).mkdir(mode=0o700, exist_ok=True)
    check_private(folder, folder / name)
    return folder / name


def lock(descriptor: int) -> bool:
    """Lock an open file for this process, until it is closed. False if another process has it."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file as a whole or not at all. Raises `OSError`."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # with mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if mode != 0o600:
            Path(draft).chmod(mode)
        Path(draft).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(draft).unlink()
        raise


class PrivateFileUnusable(Exception):
    """A private file cannot be read or written."""


class PrivateJSONFile:
    """A JSON object in a file that only its owner can read.

    `folders` must be its owner's alone as well: who may write to the folder of a file can replace the file.
    """

    def __init__(self, path: Path, *folders: Path) -> None:
        self._path = path
        self._folders = folders

    def load(self) -> dict[str, Any]:
        """The object; empty if there is no file. Raises `PrivateFileUnusable`."""
        for path in (*self._folders, self._path):
            if remedy := remedy_for(path):
                raise PrivateFileUnusable(f"{path}: can be changed by others on this machine; run: {remedy}")
        try:
            values = json.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise PrivateFileUnusable(f"{self._path}: cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise PrivateFileUnusable(f"{self._path}: not a JSON object: correct or delete it")
        return values

    def save(self, values: Mapping[str, Any]) -> None:
        """Replace the object. Raises `PrivateFileUnusable`."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(dict(values), indent=2).encode())
        except OSError as error:
            raise PrivateFileUnusable(f"{self._path}: cannot be written: {error.strerror}") from None


@contextmanager
def instance_of(name: str, url: str, folder: Path | None = None) -> Iterator[str]:
    """The instance of this computer at this Server: the secret by which the Server recognises it when it reconnects.

    It is kept in a file that is locked meanwhile. A second process of the same name gets an instance of its own, so
    that the Server refuses it instead of giving it the seat of the first. If nothing can be kept on this machine, the
    instance lasts as long as the process. Raises `NotPrivate` if others may change the file.
    """
    folder, digest = folder or default_folder(), hashlib.sha256(f"{url}\0{name}".encode()).hexdigest()[:32]
    try:
        path = private_folder(folder, "instances") / digest
        check_private(path)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        logger.warning("nothing can be kept in %s: %s", folder, error.strerror)
        yield secrets.token_urlsafe(32)
        return
    try:
        if not lock(descriptor):
            yield secrets.token_urlsafe(32)
            return
        known = os.read(descriptor, 128).decode("ascii", "replace")
        if not 16 <= len(known) <= 128 or not known.isascii():
            known = secrets.token_urlsafe(32)
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, known.encode())
        yield known
    finally:
        os.close(descriptor)
