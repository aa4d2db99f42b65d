"""Stamps of files, by which changes are noticed without reading the files."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

__all__ = ["Stamp", "stamp", "stamp_of", "stamps_below"]

Stamp: TypeAlias = tuple[int, int, int, int]


def stamp(path: Path) -> Stamp | None:
    """The stamp of a file; `None` if it is not there."""
    try:
        return stamp_of(path.stat())
    except OSError:
        return None


def stamp_of(known: os.stat_result) -> Stamp:
    """What changes with a file. Programs can set the time of modification to any value, not that of status change."""
    return known.st_mtime_ns, known.st_ctime_ns, known.st_ino, known.st_size


def stamps_below(folder: Path, most: int) -> dict[str, Stamp]:
    """The stamps of what is in a folder and its subfolders, by path, of at most so many entries.

    Links are not followed, except those in the folder itself, which may lead to folders elsewhere.
    """
    found: dict[str, Stamp] = {}
    rest = [str(folder)]
    while rest:
        path = rest.pop()
        with suppress(OSError), os.scandir(path) as listed:
            for entry in listed:
                if len(found) == most:
                    return found
                found[entry.path] = stamp_of(entry.stat(follow_symlinks=False))
                if entry.is_dir(follow_symlinks=path == str(folder)):
                    rest.append(entry.path)
    return found
