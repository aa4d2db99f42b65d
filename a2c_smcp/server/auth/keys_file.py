"""Changes of a keys file: each one reads it, checks the result and replaces it in one step, under a lock.

The lock is on its folder, so that several processes of a Server, and `a2c-smcp key --add-to`, do not overwrite each
other's changes. On Windows there is none.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

from a2c_smcp.private_files import lock, replace_file
from a2c_smcp.server.auth.api_keys import KeysFileError, key_id, read_entries, read_entry

__all__ = ["Entries", "change_keys", "entry_of"]

Entries: TypeAlias = dict[str, object]
"""The entries of a keys file by the hash of their key."""

_PATIENCE = 2.0
_TRY_AGAIN = 0.01


def change_keys(path: Path, change: Callable[[Entries], Entries]) -> None:
    """Replaces the entries of a keys file, which is made if there is none. Only its owner may read it.

    Raises `KeysFileError` if the file, or one of the new entries, cannot be used; and `OSError`.
    """
    with _locked(path):
        entries = change(read_entries(path) if path.exists() else {})
        for hashed, entry in entries.items():
            try:
                read_entry(entry)
            except KeysFileError as error:
                raise KeysFileError(f"{path}: entry {hashed[:15]}…: {error}") from None
        content = json.dumps(entries, indent=2, ensure_ascii=False) + "\n"
        replace_file(path, content.encode("utf-8", "surrogatepass"))


def entry_of(entries: Mapping[str, object], wanted: str) -> tuple[str, object] | None:
    """The hash and the entry of the key with this id."""
    return next(((hashed, entry) for hashed, entry in entries.items() if key_id(hashed) == wanted), None)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Changes take milliseconds: a lock that is held for longer belongs to a process that stands still."""
    if os.name != "posix":
        yield
        return
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        deadline = time.monotonic() + _PATIENCE
        while not lock(descriptor):
            if time.monotonic() > deadline:
                raise KeysFileError(f"{path}: another program is changing it, try again in a moment")
            time.sleep(_TRY_AGAIN)
        yield
    finally:
        os.close(descriptor)
