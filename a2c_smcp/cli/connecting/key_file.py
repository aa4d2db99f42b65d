"""The file with the API key that a bridge reads. The configuration of an MCP client names it, and holds no key."""

from __future__ import annotations

import os
import shlex
import stat
from dataclasses import dataclass, field
from pathlib import Path

from a2c_smcp.cli.errors import Failed, WrongUse
from a2c_smcp.cli.up_state import find_running_up
from a2c_smcp.private_files import default_folder, private_folder, replace_file

__all__ = ["KeyFile", "find_key_file"]

_FOLDER = "connect"


@dataclass(frozen=True)
class KeyFile:
    """A file with a key. `new` is the key that has to be written into it; `None` if it is there.

    `url` is the URL of the running `a2c-smcp up` whose key it is: another program may listen on another address of
    `localhost`.
    """

    path: Path
    new: str | None = field(default=None, repr=False)
    url: str | None = None

    def write(self) -> None:
        """Make the file, for its owner alone. Raises `Failed`."""
        if self.new is None:
            return
        try:
            if self.path.parent == default_folder() / _FOLDER:
                private_folder(default_folder(), _FOLDER)
            replace_file(self.path, f"{self.new}\n".encode())
        except OSError as error:
            raise Failed(f"{self.path}: cannot be written: {error.strerror}", "Name another with --key-file.") from None

    @property
    def warning(self) -> str:
        """What is wrong with the permissions of the file; empty if nothing is."""
        others = stat.S_IRWXG | stat.S_IRWXO
        if os.name != "posix" or self.new is not None or not self.path.stat().st_mode & others:
            return ""
        return f"others on this machine can read {self.path}; run: chmod 600 {shlex.quote(str(self.path))}"


def find_key_file(given: Path | None, api_key: str | None, *, url: str, server: str) -> KeyFile | None:
    """The file of the key for a Server; `None` if it wants no key, as far as is known. Raises `WrongUse`.

    It is the given one; or one of our own for the given key, by the name of the entry; or that of the `a2c-smcp up`
    that runs at this URL.
    """
    if given:
        return _given(given.expanduser().absolute(), api_key)
    if api_key:
        return KeyFile(default_folder() / _FOLDER / f"{server}.key", api_key)
    running = find_running_up(url)
    return KeyFile(running.key_file, url=running.info.url) if running else None


def _given(path: Path, api_key: str | None) -> KeyFile:
    if not path.exists():
        if api_key is None:
            raise WrongUse(f"There is no file {path}", "Give the key with --api-key, and the file is made.")
        return KeyFile(path, api_key)
    try:
        kept = path.read_text("utf-8").strip()
    except (OSError, ValueError):
        raise WrongUse(f"{path} cannot be read as text", "Name a file with the key alone in it.") from None
    if not kept or len(kept.split()) > 1:
        raise WrongUse(f"{path} does not hold a key", "Name a file with the key alone in it.")
    if api_key not in (None, kept):
        raise WrongUse(f"{path} holds another key than --api-key", "Leave out --api-key, or name another file.")
    return KeyFile(path)
