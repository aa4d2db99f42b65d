"""Files of a skill's folder, opened so that nothing outside of it is ever read.

A path is first resolved, as text: the place where it leads, through links too, must be inside of the folder. The file
there is then opened part by part, from the folder downwards, and no part may be a link. So a link that is put in the
place of a file or folder after the check is not followed: the file counts as missing. Only regular files are opened;
opening a pipe may block, and opening a device may have effects.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from a2c_smcp.errors import SkillFileNotAccessible
from a2c_smcp.protocol.skills import PathFault, fault_in_rel_path, is_private_file

__all__ = ["open_file"]

_LONGEST_PATH = 4096
_PLAIN = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_FILE = os.O_RDONLY | _PLAIN | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_FOLDER = os.O_RDONLY | _PLAIN | getattr(os, "O_DIRECTORY", 0)
_HAS_DESCRIPTORS = os.open in os.supports_dir_fd
"""Whether files can be opened relative to an open folder. Windows cannot."""


@contextmanager
def open_file(root: Path, rel_path: str) -> Iterator[BinaryIO]:
    """Open a file of the folder for reading. Raises `SkillFileNotAccessible`."""
    if fault := fault_in_rel_path(rel_path):
        raise _refused(fault, rel_path)
    folder, parts = _resolved(root, rel_path)
    try:
        descriptor = _open_beneath(folder, parts) if _HAS_DESCRIPTORS else _open_regular(os.path.join(folder, *parts))  # noqa: PTH118
    except (OSError, ValueError):
        raise _missing(rel_path) from None
    with os.fdopen(descriptor, "rb") as file:
        yield file


def _resolved(root: Path, rel_path: str) -> tuple[str, Sequence[str]]:
    """The folder and the parts of the path inside of it, without links."""
    try:
        if len(rel_path) > _LONGEST_PATH:
            raise _missing(rel_path)
        folder = os.path.realpath(root)
        place = os.path.realpath(os.path.join(folder, rel_path))  # noqa: PTH118  # pathlib would drop a link's `..`
    except (OSError, ValueError, RecursionError):  # a path that no system has, or a long chain of links
        raise _missing(rel_path) from None
    if os.path.commonpath((folder, place)) != folder:
        raise _refused("traversal", rel_path)
    if is_private_file(Path(place).as_posix()):
        raise _refused("forbidden", rel_path)
    return folder, Path(place).relative_to(folder).parts


def _open_beneath(folder: str, parts: Sequence[str]) -> int:
    """Raises `OSError` if a part is a link, or the last one is not a regular file."""
    if not parts:
        raise IsADirectoryError
    inside = os.open(folder, _FOLDER)
    try:
        for part in parts[:-1]:
            outer, inside = inside, os.open(part, _FOLDER, dir_fd=inside)
            os.close(outer)
        return _open_regular(parts[-1], inside)
    finally:
        os.close(inside)


def _open_regular(name: str, inside: int | None = None) -> int:
    _check_regular(os.stat(name, dir_fd=inside, follow_symlinks=False))
    descriptor = os.open(name, _FILE, dir_fd=inside)
    try:
        _check_regular(os.fstat(descriptor))  # it may be another one by now
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(known: os.stat_result) -> None:
    if not stat.S_ISREG(known.st_mode):
        raise FileNotFoundError


def _refused(reason: PathFault, rel_path: str) -> SkillFileNotAccessible:
    text = "the path leaves the skill" if reason == "traversal" else "this file stays on its computer"
    return SkillFileNotAccessible(text, reason=reason, rel_path=rel_path[:_LONGEST_PATH])


def _missing(rel_path: str) -> SkillFileNotAccessible:
    return SkillFileNotAccessible("no such file", reason="not_found", rel_path=rel_path[:_LONGEST_PATH])
