"""The secret by which a computer is recognised when it comes back, kept on disk for its owner alone."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from a2c_smcp.computer.private_files import check_private

__all__ = ["default_folder", "instance_of", "lock", "private_folder"]


logger = logging.getLogger(__name__)


def default_folder() -> Path:
    """Where programs of this user keep state."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "a2c-smcp"


def private_folder(folder: Path, name: str) -> Path:
    """A folder in the one where state is kept. What has to be made is made for its owner alone.

    Raises `OSError`, and `NotPrivate` if others may write to it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / name).mkdir(mode=0o700, exist_ok=True)
    check_private(folder, folder / name)
    return folder / name


@contextmanager
def instance_of(name: str, url: str, folder: Path | None = None) -> Iterator[str]:
    """The instance of this computer at this Server, while nobody else on this machine uses it.

    A second process of the same name gets one of its own: it shall be refused, and not take over the first. Where
    nothing can be kept, it lasts as long as the process. Raises `NotPrivate` where others may change what is kept.
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


def lock(descriptor: int) -> bool:
    """Whether this process has the file for itself now, until it closes it."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
