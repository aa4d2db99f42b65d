"""Write what an agent receives into files: names that do no harm, and files that are complete or not there."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

__all__ = ["file_name", "write_file"]

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
    `replace`, the new one gets a number. After an error, or a cancel, nothing is left.
    """
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(descriptor, "w+b") as file:
            await write(file)
        return _settled(Path(draft), path, replace=replace)
    except BaseException:
        _remove(Path(draft))
        raise


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
