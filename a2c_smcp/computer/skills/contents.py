"""The content of a skill's file as an agent gets it (PROTOCOL-0.4 §4): inline, or in chunks by a handle.

What is sent of a `SKILL.md` is the text after its frontmatter, of any other file its bytes. Text is masked, like all
text that leaves the Computer; size and hash are those of what is sent. A file counts as text if its type is one, or if
it has no zero byte at its beginning: a script has no text type, and may hold a secret all the same.

A file is read in pieces that end with a line, so that a large one needs little memory and the event loop is not kept
waiting; no secret of one line is cut. If what is sent is not simply the end of the file, a copy of it is kept in a
temporary file that has no name, for as long as its handle lives.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from threading import Lock
from typing import BinaryIO, NamedTuple, cast
from weakref import WeakSet, finalize

from a2c_smcp.computer.file_stamps import Stamp, stamp_of
from a2c_smcp.computer.secrets import Mask
from a2c_smcp.computer.skills.frontmatter import split_frontmatter
from a2c_smcp.errors import BlobNotAccessible, ConfigError, SkillFileNotAccessible, SkillNotFound
from a2c_smcp.protocol.skills import BINARY_TYPE, SKILL_FILE, is_text_type, mime_type_of

__all__ = ["OpenSkillFile", "SkillContents", "SkillFile", "SkillLimits"]

OpenSkillFile = Callable[[], AbstractContextManager[BinaryIO]]
"""Finds the skill, makes all checks, and opens the file. Raises `SkillNotFound` and `SkillFileNotAccessible`."""

_PIECE = 256 * 1024
_LONGEST_LINE = 4 * 1024 * 1024
_LOOKED_AT = 8 * 1024
_MOST_COPIED = 256 * 1024 * 1024
_ATTEMPTS = 3
_MOST_INLINE = 512 * 1024  # more would not surely fit into a message


@dataclass(frozen=True)
class SkillLimits:
    """Bytes: of a text that is sent inline, and of the largest file that is sent at all."""

    inline: int = 32_768
    largest: int = 100 * 1024 * 1024

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] = os.environ) -> SkillLimits:
        """The limits in A2C_SKILL_INLINE_BUDGET and A2C_SKILL_MAX_SIZE. Raises `ConfigError`."""
        return cls(
            min(_bytes_in(environ, "A2C_SKILL_INLINE_BUDGET", cls.inline), _MOST_INLINE),
            _bytes_in(environ, "A2C_SKILL_MAX_SIZE", cls.largest),
        )


def _bytes_in(environ: Mapping[str, str], variable: str, default: int) -> int:
    text = environ.get(variable) or str(default)
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise ConfigError(f"must be a number of bytes, not {text[:40]!r}", subject=variable)
    return int(text)


class _Copy:
    """What is sent of a file, where that is not simply the end of the file."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.size = size
        self._file = file
        self._reading = Lock()
        finalize(self, file.close)

    def read(self, offset: int, size: int) -> bytes:
        with self._reading:
            self._file.seek(offset)
            return self._file.read(size)


@dataclass(frozen=True)
class SkillFile:
    """A file as it was when it was asked for: a `BlobSource`. It is gone when the file or the secrets have changed.

    `body` is its text, if that is sent inline.
    """

    name: str
    rel_path: str
    mime_type: str
    total_size: int
    sha256: str
    stamp: Stamp
    body: str | None
    _copy: _Copy | None = field(compare=False, repr=False)
    _open: OpenSkillFile = field(compare=False, repr=False)
    _is_masked: Callable[[], bool] = field(compare=False, repr=False)

    def read(self, offset: int, size: int) -> bytes:
        """A chunk. The skill is looked up and the path is checked each time. Raises `BlobNotAccessible`."""
        try:
            with self._open() as file:
                known = os.fstat(file.fileno())
                if stamp_of(known) != self.stamp or not self._is_masked():
                    raise BlobNotAccessible("the file has changed: ask for it again", reason="gone")
                if self._copy:
                    return self._copy.read(offset, size)
                file.seek(known.st_size - self.total_size + offset)
                return file.read(size)
        except SkillNotFound:
            raise BlobNotAccessible("the skill is not there any more", reason="gone") from None
        except SkillFileNotAccessible as error:
            reason = "gone" if error.details.get("reason") == "not_found" else "forbidden"
            raise BlobNotAccessible(error.reason, reason=reason) from None


class _Sent(NamedTuple):
    """What is sent of a file. `copy` is `None` if it is the end of the file."""

    total_size: int
    sha256: str
    copy: _Copy | None = None


class SkillContents:
    """Reads files of skills. Its methods block, and may be called in any thread."""

    def __init__(self, mask: Mask, limits: SkillLimits) -> None:
        self._mask, self._limits = mask, limits
        self._copies: WeakSet[_Copy] = WeakSet()

    def load(self, open_skill_file: OpenSkillFile, name: str, rel_path: str, server: str | None) -> SkillFile:
        """What is sent of a file now. Raises `SkillNotFound`, `SkillFileNotAccessible`."""
        mime_type = mime_type_of(rel_path)
        for _ in range(_ATTEMPTS):
            version = self._mask.version
            with open_skill_file() as file:
                before = os.fstat(file.fileno())
                self._check_size(before.st_size, rel_path)
                is_text = is_text_type(mime_type) or (mime_type == BINARY_TYPE and _looks_like_text(file))
                sent = self._text(file, rel_path, server) if is_text else _bytes(file)
                body = _body(file, sent) if is_text_type(mime_type) and sent.total_size <= self._limits.inline else None
                if stamp_of(os.fstat(file.fileno())) != stamp_of(before) or version != self._mask.version:
                    continue
            return SkillFile(
                name,
                rel_path,
                mime_type,
                sent.total_size,
                sent.sha256,
                stamp_of(before),
                body,
                sent.copy if body is None else None,
                open_skill_file,
                partial(self._has_version, version if is_text else None),
            )
        raise SkillFileNotAccessible("the file changes while it is read", reason="not_found", rel_path=rel_path)

    def _has_version(self, version: int | None) -> bool:
        return version in (None, self._mask.version)

    def _text(self, file: BinaryIO, rel_path: str, server: str | None) -> _Sent:
        """The masked text, copied if it is not the end of the file."""
        digest, size = hashlib.sha256(), 0
        with ExitStack() as unless_kept:
            sent = cast(BinaryIO, unless_kept.enter_context(tempfile.SpooledTemporaryFile(_PIECE)))
            for text, errors in _pieces(file, is_skill_file=PurePosixPath(rel_path).name == SKILL_FILE):
                piece = self._mask.text(text, server).encode("utf-8", errors)
                sent.write(piece)
                digest.update(piece)
                size += len(piece)
                self._check_size(size, rel_path)
            if _hash_of_end(file, size) == digest.hexdigest():
                return _Sent(size, digest.hexdigest())
            if size + sum(copy.size for copy in self._copies) > _MOST_COPIED:
                raise _too_large("there are too many masked files at the same time", size, rel_path)
            unless_kept.pop_all()
        copy = _Copy(sent, size)
        self._copies.add(copy)
        return _Sent(size, digest.hexdigest(), copy)

    def _check_size(self, size: int, rel_path: str) -> None:
        if size > self._limits.largest:
            raise _too_large(f"it has {size} bytes, at most {self._limits.largest} are sent", size, rel_path)


def _too_large(text: str, size: int, rel_path: str) -> SkillFileNotAccessible:
    return SkillFileNotAccessible(text, reason="too_large", rel_path=rel_path, total_size=size)


def _looks_like_text(file: BinaryIO) -> bool:
    beginning = file.read(_LOOKED_AT)
    file.seek(0)
    return b"\0" not in beginning


def _pieces(file: BinaryIO, *, is_skill_file: bool) -> Iterator[tuple[str, str]]:
    """The texts to be sent, each with how to handle errors when it is encoded again."""
    errors, newline = ("replace", None) if is_skill_file else ("surrogateescape", "")
    reader = io.TextIOWrapper(file, "utf-8", errors, newline)
    try:
        first = reader.read(_LONGEST_LINE if is_skill_file else _PIECE) + reader.readline(_LONGEST_LINE)
        yield split_frontmatter(first)[1] if is_skill_file else first, errors
        while piece := reader.read(_PIECE):
            yield piece + reader.readline(_LONGEST_LINE), errors
    finally:
        reader.detach()


def _bytes(file: BinaryIO) -> _Sent:
    size = os.fstat(file.fileno()).st_size
    return _Sent(size, _hash_of_end(file, size))


def _hash_of_end(file: BinaryIO, size: int) -> str:
    """The hash of so many bytes at the end of a file; empty if it has fewer."""
    start = os.fstat(file.fileno()).st_size - size
    if start < 0:
        return ""
    file.seek(start)
    digest = hashlib.sha256()
    while size > 0 and (piece := file.read(min(_PIECE, size))):
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest()


def _body(file: BinaryIO, sent: _Sent) -> str | None:
    """What is sent as text; `None` if it is not UTF-8."""
    try:
        if sent.copy:
            return sent.copy.read(0, sent.total_size).decode()
        file.seek(-sent.total_size, os.SEEK_END)
        return file.read(sent.total_size).decode()
    except UnicodeDecodeError:
        return None
