"""The two keys of a bridge: the one that it has for the Server, and the one that MCP clients need for it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from a2c_smcp.cli.errors import WrongUse
from a2c_smcp.cli.options import SHORTEST_KEY
from a2c_smcp.cli.up_state import find_running_up
from a2c_smcp.endpoint import Credentials
from a2c_smcp.errors import ConfigError
from a2c_smcp.private_files import default_folder, private_folder, replace_file
from a2c_smcp.server.auth.api_keys import new_key

__all__ = ["BearerKeyChoice", "ServerKey", "kept_file", "read_key"]


@dataclass(frozen=True, kw_only=True)
class ServerKey:
    """Supplies the key for the Server on every dial: the one given, that of a file, or that of a running `up`.

    A file is read again each time, so that a key which was replaced is used without a restart.
    """

    url: str
    api_key: str | None
    key_file: Path | None

    def credentials(self) -> Credentials:
        """Raises `ConfigError`."""
        if self.key_file is not None:
            try:
                return Credentials.of_key(self.key_file.read_text("utf-8").strip())
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not a text"
                raise ConfigError(f"the key file {self.key_file} cannot be read: {reason}") from None
        found = find_running_up(self.url) if self.api_key is None else None
        return Credentials.of_key(found.key if found else self.api_key)


@dataclass(frozen=True, kw_only=True)
class BearerKeyChoice:
    """The key that clients need. `is_new`: it was made now, and nobody has seen it yet."""

    key: str | None
    file: Path | None = None
    is_new: bool = False

    @classmethod
    def of(cls, given: str | None, file: Path | None, *, none: bool, kept: Path) -> BearerKeyChoice:
        """Raises `WrongUse`, or `OSError` if no key can be kept."""
        if none:
            return cls(key=None)
        if given is not None:
            return cls(key=_checked(given, "--bearer-key"))
        if file is not None:
            return cls(key=read_key(file, "--bearer-key-file"), file=file)
        if kept.exists():
            return cls(key=read_key(kept, "the kept key"), file=kept)
        key = new_key()
        replace_file(kept, f"{key}\n".encode())
        return cls(key=key, file=kept, is_new=True)


def read_key(file: Path, flag: str) -> str:
    """The key in a file. Raises `WrongUse`."""
    try:
        text = file.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text"
        raise WrongUse(f"{flag}: {file}: {reason}", "Name a file that holds a key and nothing else.") from None
    return _checked(text, flag)


def kept_file(url: str, office: str, ending: str) -> Path:
    """The file in the state folder for a bridge to this office. Raises `OSError` or `NotPrivate`."""
    folder = private_folder(default_folder(), "bridge")
    digest = hashlib.sha256(os.fsencode(f"{url}\n{office}")).hexdigest()[:16]
    return folder / f"{digest}.{ending}"


def _checked(key: str, flag: str) -> str:
    is_sendable = key.isascii() and key.isprintable() and " " not in key
    if len(key) < SHORTEST_KEY or not is_sendable:
        raise WrongUse(
            f"{flag}: a key has at least {SHORTEST_KEY} characters, all of them ASCII and none a blank",
            f"Take this new one, for example: {new_key()}",
        )
    return key
