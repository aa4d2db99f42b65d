"""The secret by which a computer is recognised when it comes back, kept on disk for its owner alone."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["default_folder", "instance_of"]


logger = logging.getLogger(__name__)


def default_folder() -> Path:
    """Where programs of this user keep state."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "a2c-smcp"


@contextmanager
def instance_of(name: str, url: str, folder: Path | None = None) -> Iterator[str]:
    """The instance of this computer at this Server, while nobody else on this machine uses it.

    A second process of the same name gets one of its own: it shall be refused, and not take over the first. Where
    nothing can be kept, it lasts as long as the process.
    """
    path = (folder or default_folder()) / "instances" / hashlib.sha256(f"{url}\0{name}".encode()).hexdigest()[:32]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        logger.warning("%s cannot be kept: %s", path, error.strerror)
        yield secrets.token_urlsafe(32)
        return
    try:
        if not _lock(descriptor):
            yield secrets.token_urlsafe(32)
            return
        known = os.read(descriptor, 128).decode("ascii", "replace")
        if not 16 <= len(known) <= 128 or not known.isascii():
            known = secrets.token_urlsafe(32)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, known.encode(), 0)
        yield known
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
