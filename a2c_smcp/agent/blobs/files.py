"""Write what an agent receives into files: names that do no harm, and files that are complete or not there.

A file that is being written has no name where the system allows that (Linux), so nothing is left of it if the program
is killed. Elsewhere it is a hidden file.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from a2c_smcp.loops import in_thread

_UNSAFE = re.compile(r"[^\w.-]+")
_LONGEST = 100
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.IGNORECASE)  # names of devices on Windows
_EXTENSIONS = {
    "application/gzip": ".gz",
    "application/json": ".json",
    "application/pdf": ".pdf",
    "application/zip": ".zip",
    "audio/flac": ".flac",
    "audio/mp4": ".m4a",
    "audio/mpeg": ".mp3",
    "audio/ogg": ".ogg",
    "audio/wav": ".wav",
    "audio/webm": ".webm",
    "audio/x-wav": ".wav",
    "image/bmp": ".bmp",
    "image/gif": ".gif",
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "image/svg+xml": ".svg",
    "image/webp": ".webp",
    "text/csv": ".csv",
    "text/html": ".html",
    "text/markdown": ".md",
    "text/plain": ".txt",
    "video/mp4": ".mp4",
    "video/webm": ".webm",
}
"""Not those of the host: they differ from machine to machine."""
_KINDS = {"image": "image", "audio": "audio"}


def file_name(item: Mapping[str, Any], number: int) -> str:
    """The name of a file for the content of an item: from its URI, or from its kind and number."""
    inner = item.get("resource")
    holder: Mapping[str, Any] = inner if isinstance(inner, Mapping) else item
    uri, mime_type = holder.get("uri"), holder.get("mimeType")
    named = safe_name(unquote(urlsplit(uri).path.rpartition("/")[2])) if isinstance(uri, str) else ""
    extension = _EXTENSIONS.get(str(mime_type).partition(";")[0].strip().lower(), ".bin")
    if named:
        return named if "." in named else named + extension
    return f"{_KINDS.get(str(item.get('type')), 'file')}-{number}{extension}"


def safe_name(name: str) -> str:
    """A name without folders, control characters and other surprises; empty if nothing is left of it."""
    safe = _UNSAFE.sub("_", name).strip("._-")
    stem, dot, extension = safe.rpartition(".")
    if len(safe) > _LONGEST:
        safe = (
            f"{stem[: _LONGEST - len(extension) - 1]}.{extension}" if dot and len(extension) < 16 else safe[:_LONGEST]
        )
    return f"_{safe}" if _RESERVED.fullmatch(safe) else safe


async def write_file(path: Path, write: Callable[[BinaryIO], Awaitable[Any]], *, replace: bool = False) -> Path:
    """Make a file, let `write` fill it, and return its path. Raises `OSError`.

    It appears under its name when it is complete. If there is a file of this name, it is replaced, or, without
    `replace`, the new one gets a number. After an error, or a cancel, nothing is left. A link is followed, and a device
    or a pipe is written to when all is there.
    """
    if replace and _is_special(path):
        return await _write_into(path, write)
    path = _followed(path) if replace else path
    file, draft = _draft(path.parent)
    try:
        with file:
            await write(file)
            file.flush()
            draft = draft or _named(file, path.parent)
        return _settled(draft, path, replace=replace)
    except BaseException as error:
        if draft:
            _remove(draft)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _followed(path: Path) -> Path:
    return path.resolve() if path.is_symlink() else path


async def _write_into(path: Path, write: Callable[[BinaryIO], Awaitable[Any]]) -> Path:
    """Write to what is no regular file, such as a pipe."""

    def copy() -> None:
        file.seek(0)
        with path.open("wb") as target:
            shutil.copyfileobj(file, target)

    with tempfile.TemporaryFile() as file:
        await write(file)
        await in_thread(copy)
    return path


def _draft(folder: Path) -> tuple[BinaryIO, Path | None]:
    """A new file in the folder, and its name if it has one."""
    if hasattr(os, "O_TMPFILE"):
        with suppress(OSError):  # not every file system has files without names
            return os.fdopen(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600), "w+b"), None
    return _hidden(folder)


def _hidden(folder: Path) -> tuple[BinaryIO, Path]:
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=".", suffix=".part")
    return os.fdopen(descriptor, "w+b"), Path(name)


def _named(file: BinaryIO, folder: Path) -> Path:
    """Give a hidden name to a file without one. Where that is not allowed, it is copied."""
    name = folder / f".{token_hex(8)}.part"
    try:
        os.link(f"/proc/self/fd/{file.fileno()}", name, src_dir_fd=file.fileno())
    except OSError:
        copy, name = _hidden(folder)
        try:
            with copy:
                file.seek(0)
                shutil.copyfileobj(file, copy)
        except BaseException:
            _remove(name)
            raise
    return name


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _settled(draft: Path, path: Path, *, replace: bool) -> Path:
    """Give a complete file its name, and the permissions that a new file has."""
    for candidate in [path] if replace else _candidates(path):
        with suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | (0 if replace else os.O_EXCL)
            descriptor = os.open(candidate, flags, 0o666)
            mode = os.fstat(descriptor).st_mode & 0o777
            os.close(descriptor)
            draft.chmod(mode)
            return draft.replace(candidate)
    raise FileExistsError(f"there are too many files like {path}")


def _candidates(path: Path) -> Iterator[Path]:
    yield path
    for number in range(2, 10_000):
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")
