"""The Valkey or Redis that nodes share: its URL, connections to it, and errors with a remedy."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.errors import ConfigError, Unavailable
from a2c_smcp.http.loopback import is_loopback
from a2c_smcp.installation import install_command

if TYPE_CHECKING:
    from a2c_smcp.server.directory.redis import RedisDirectory
    from a2c_smcp.server.directory.store import Store

__all__ = [
    "PRIVATE_SOCKET",
    "REDIS_HELP",
    "answers",
    "check_url",
    "directory_at",
    "is_on_this_machine",
    "private_folder",
    "running_stores",
    "store_at",
    "usable",
]

REDIS_HELP = "Valkey or Redis that nodes share. It may hold a password: give it in the environment."

_NO_URL = "--redis is not the URL of a Valkey or Redis"
_SCHEMES = {"redis", "rediss", "valkey", "valkeys", "unix"}
_SPELLING = (
    "Write redis://HOST:PORT, rediss://… with TLS, or unix:///PATH; in a password, write %40 for @ and %2F for /."
)
_PREFIX = "a2c:"
_PRIVATE = "a2c-valkey-"
PRIVATE_SOCKET = "valkey.sock"
_PATIENCE = 5.0


def check_url(url: str) -> None:
    """Raises `WrongUse`, without quoting the URL: a part of it may be the password."""
    try:
        parts = urlsplit(url)
        is_complete = bool(parts.path if parts.scheme == "unix" else parts.hostname) and parts.port != 0
    except ValueError:
        is_complete = False
    if not is_complete or parts.scheme not in _SCHEMES:
        raise WrongUse(_NO_URL, _SPELLING)


def private_folder() -> TemporaryDirectory[str]:
    """A folder for the socket of a private store, which only its owner can enter."""
    return TemporaryDirectory(prefix=_PRIVATE)


def running_stores() -> list[str]:
    """The URLs of private stores that run on this machine for this user."""
    sockets = sorted(Path(gettempdir()).glob(f"{_PRIVATE}*/{PRIVATE_SOCKET}"))
    return [f"unix://{path}" for path in sockets if _is_ours(path.parent) and answers(path)]


def answers(path: Path) -> bool:
    """Whether a store accepts connections at this socket."""
    with socket.socket(socket.AF_UNIX) as visitor:
        return visitor.connect_ex(str(path)) == 0


def _is_ours(folder: Path) -> bool:
    """Whether this user has made the folder: others can make one of such a name, too."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def is_on_this_machine(url: str) -> bool:
    """Whether only processes of this machine reach the store of this URL."""
    parts = urlsplit(url)
    return parts.scheme == "unix" or is_loopback(parts.hostname or "")


def directory_at(url: str, node: str, node_url: str) -> RedisDirectory:
    """The directory of a node, not started. Raises `WrongUse` or `Failed`."""
    with usable(url):
        from a2c_smcp.server.directory.redis import RedisDirectory

        return RedisDirectory(url, node=node, node_url=node_url)


@asynccontextmanager
async def store_at(url: str) -> AsyncIterator[Store]:
    """Read the store without becoming a node. Raises `WrongUse` or `Failed`."""
    with usable(url):
        from a2c_smcp.server.directory.store import Store
        from a2c_smcp.server.directory.store_connection import StoreConnection

        connection = await StoreConnection.open(url, _PATIENCE)
        try:
            yield Store(connection, _PREFIX)
        finally:
            await connection.close()


@contextmanager
def usable(url: str) -> Iterator[None]:
    """Translate errors of the store into `WrongUse` and `Failed`."""
    try:
        check_url(url)
        yield
    except ModuleNotFoundError as error:
        remedy = f"Install a2c-smcp with its extra: {install_command('redis')}"
        raise Failed(f"{error.name} is not installed, and --redis needs it", remedy) from None
    except ConfigError as error:
        raise _misread(error) from None
    except Unavailable as error:
        raise _explained(error, url) from None


_REMEDIES = {
    "refuses": "Give a user that may use it: A2C_SERVER_REDIS=redis://USER:PASSWORD@HOST:PORT.",
    "": "Start it, or correct --redis or A2C_SERVER_REDIS.",
}
"""By a word in the error message."""


def _misread(error: ConfigError) -> WrongUse:
    if isinstance(error.__context__, OSError):
        what = f"--redis names certificates that cannot be used: {error.__context__.strerror}"
        return WrongUse(what, "They are files in PEM format, which this user may read.")
    return WrongUse(_NO_URL, _SPELLING)


def _explained(error: Unavailable, url: str) -> Failed:
    from a2c_smcp.server.directory.nodes import NameInUse
    from a2c_smcp.server.directory.store_connection import masked

    if isinstance(error, NameInUse):
        remedy = f"Choose another --node, or stop that process and wait {error.seconds:.0f} s for its lease to end."
        return Failed(error.about.capitalize(), remedy)
    words = next(words for words in _REMEDIES if words in error.message)
    what = "refuses this user" if words else "cannot be reached"
    return Failed(f"The store {masked(url)} {what}", _REMEDIES[words])
