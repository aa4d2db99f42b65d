"""One skill: a folder with a `SKILL.md`, what its frontmatter says, and how agents are told of it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, BinaryIO, NamedTuple, TypeAlias, cast
from weakref import WeakSet, finalize

import yaml

from a2c_smcp.computer.secrets.mask import Mask
from a2c_smcp.errors import BlobNotAccessible, ConfigError, SkillFileNotAccessible, SkillNotFound
from a2c_smcp.files import Stamp, stamp_of
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.skills import (
    BINARY_TYPE,
    SKILL_FILE,
    PathFault,
    fault_in_rel_path,
    is_private_file,
    is_text_type,
    mime_type_of,
)
from a2c_smcp.v04_events import A2CSkillRef

# The frontmatter of a `SKILL.md`: the YAML between two lines `---` at its beginning, which describes the skill.
#
# It may come from a hostile MCP server. So it is read up to a size only, and what it becomes is bounded: aliases, by
# which a few bytes of YAML become gigabytes, count as broken YAML, and values that JSON does not have are replaced.

LONGEST_FRONTMATTER = 32 * 1024
"""Characters. A longer frontmatter has no fields."""

_FENCE = "---"
_MOST_VALUES = 2000
_DEEPEST = 32
_LARGEST_INTEGER = 2**63


@dataclass(frozen=True)
class Frontmatter:
    """The fields that are there and usable."""

    name: str | None = None
    description: str | None = None
    license: str | None = None
    compatibility: str | None = None
    allowed_tools: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None
    metadata: Mapping[str, Any] | None = None
    whole: Mapping[str, Any] = field(default_factory=dict, compare=False)


def split_frontmatter(text: str) -> tuple[str | None, str]:
    """The YAML of a file, `None` if it has no frontmatter, and its body. Line ends are LF."""
    if not text.startswith(f"{_FENCE}\n"):
        return None, text
    begin = len(_FENCE) + 1
    if text.startswith(f"{_FENCE}\n", begin) or text[begin:] == _FENCE:
        return "", text[begin + len(_FENCE) + 1 :]
    end = text.find(f"\n{_FENCE}\n", begin)
    if end >= 0:
        return text[begin:end], text[end + len(_FENCE) + 2 :]
    if text.endswith(f"\n{_FENCE}"):
        return text[begin : -len(_FENCE) - 1], ""
    return None, text


def parse_frontmatter(text: str | None) -> Frontmatter:
    """The fields of a frontmatter. Broken YAML has none."""
    return frontmatter_of(_loaded(text) if text and len(text) <= LONGEST_FRONTMATTER else None)


def frontmatter_of(value: object) -> Frontmatter:
    """The fields of a frontmatter as JSON has it. One that is no object, or has too many values, has none."""
    try:
        found = _JSONValues().of(value)
    except _TooMuch:
        found = None
    if not isinstance(found, dict):
        return Frontmatter()
    tools = found.get("allowed-tools", found.get("allowed_tools"))
    tags, metadata = found.get("tags"), found.get("metadata")
    return Frontmatter(
        name=_text(found.get("name")),
        description=_text(found.get("description")),
        license=_text(found.get("license")),
        compatibility=_text(found.get("compatibility")),
        allowed_tools=None if tools is None else tuple(map(_written, tools if isinstance(tools, list) else [tools])),
        tags=tuple(tags) if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags) else None,
        metadata=metadata if isinstance(metadata, dict) else None,
        whole=found,
    )


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Makes plain values only, and refuses aliases."""

    def compose_node(self, parent: object, index: object) -> object:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases are not read", self.peek_event().start_mark)
        return super().compose_node(parent, index)


class _TooMuch(Exception):
    """More values, or deeper ones, than a frontmatter may have."""


def _loaded(text: str) -> Any:
    """The values in YAML; `None` if it is broken."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506  # it is a SafeLoader
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, AttributeError, RecursionError):
        return None  # PyYAML's own constructors raise all of these, for instance for the 99th of a month


class _JSONValues:
    """Replaces what JSON does not have: dates, bytes, sets, keys that are not text, infinities, huge integers."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def of(self, value: Any, depth: int = 0) -> Any:
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            raise _TooMuch
        if isinstance(value, dict):
            return {_written(key): self.of(each, depth + 1) for key, each in value.items()}
        if isinstance(value, list | tuple | set):
            return [self.of(each, depth + 1) for each in value]
        return _scalar(value)


def _scalar(value: Any) -> Any:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and abs(value) >= _LARGEST_INTEGER:
        return hex(value)
    return value


def _text(value: Any) -> str | None:
    """A field that is a text. An empty one counts as missing."""
    text = "" if value is None else _written(value)
    return text if text.strip() else None


def _written(value: Any) -> str:
    value = _scalar(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# Files of a skill's folder, opened so that nothing outside of it is ever read.
#
# A path is first resolved, as text: the place where it leads, through links too, must be inside of the folder. The file
# there is then opened part by part, from the folder downwards, and no part may be a link. So a link that is put in the
# place of a file or folder after the check is not followed: the file counts as missing. Only regular files are opened;
# opening a pipe may block, and opening a device may have effects.

_LONGEST_PATH = 4096
_PLAIN = getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_FILE = os.O_RDONLY | _PLAIN | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_FOLDER = os.O_RDONLY | _PLAIN | getattr(os, "O_DIRECTORY", 0)
_HAS_DESCRIPTORS = os.open in os.supports_dir_fd
"""True if files can be opened relative to an open folder. Windows cannot."""


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


# The content of a skill's file as an agent gets it (PROTOCOL-0.4 §4): inline, or in chunks by a handle.
#
# What is sent of a `SKILL.md` is the text after its frontmatter, of any other file its bytes. Text is masked, like
# all text that leaves the Computer; size and hash are those of what is sent. A file counts as text if its type is
# one, or if it has no zero byte at its beginning: a script has no text type, and may hold a secret all the same.
#
# A file is read in pieces that end with a line, so that a large one needs little memory and the event loop is not
# kept waiting; no secret of one line is cut. If what is sent is not simply the end of the file, a copy of it is kept
# in a temporary file that has no name, for as long as its handle lives.

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
    """The text of a file as it is sent, where that is not simply the end of the file."""

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
    """A file as it is sent. `copy` is `None` if it is the end of the file."""

    total_size: int
    sha256: str
    copy: _Copy | None = None


class SkillContents:
    """Reads files of skills. Its methods block, and may be called in any thread."""

    def __init__(self, mask: Mask, limits: SkillLimits) -> None:
        self._mask, self._limits = mask, limits
        self._copies: WeakSet[_Copy] = WeakSet()

    def load(
        self, open_skill_file: OpenSkillFile, name: str, rel_path: str, server: str | None, added: str | None = None
    ) -> SkillFile:
        """Read a file as it is sent now. Raises `SkillNotFound`, `SkillFileNotAccessible`.

        With `added`, a `SKILL.md` is sent with its frontmatter, and this text at the beginning of that.
        """
        mime_type = mime_type_of(rel_path)
        for _ in range(_ATTEMPTS):
            version = self._mask.version
            with open_skill_file() as file:
                before = os.fstat(file.fileno())
                self._check_size(before.st_size, rel_path)
                is_text = is_text_type(mime_type)
                if mime_type == BINARY_TYPE:
                    is_text = b"\0" not in file.read(_LOOKED_AT)
                    file.seek(0)
                if is_text:
                    sent = self._text(file, rel_path, server, added)
                else:
                    size = os.fstat(file.fileno()).st_size
                    sent = _Sent(size, _hash_of_end(file, size))
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

    def _text(self, file: BinaryIO, rel_path: str, server: str | None, added: str | None) -> _Sent:
        """The masked text, copied if it is not the end of the file."""
        digest, size = hashlib.sha256(), 0
        with ExitStack() as unless_kept:
            sent = cast(BinaryIO, unless_kept.enter_context(tempfile.SpooledTemporaryFile(_PIECE)))
            is_skill_file = PurePosixPath(rel_path).name == SKILL_FILE
            pieces = _pieces(file, is_skill_file=is_skill_file and added is None)
            if added and rel_path == SKILL_FILE:
                pieces = _with_field(added, pieces)
            for text, errors in pieces:
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


def _with_field(added: str, pieces: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The pieces of a whole `SKILL.md`, with a line more after its first one."""
    first, errors = next(pieces)
    fence, end, rest = first.partition("\n")
    yield f"{fence}{end}{added}\n{rest}", errors
    yield from pieces


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
    """The content as text; `None` if it is not UTF-8."""
    try:
        if sent.copy:
            return sent.copy.read(0, sent.total_size).decode()
        file.seek(-sent.total_size, os.SEEK_END)
        return file.read(sent.total_size).decode()
    except UnicodeDecodeError:
        return None


_LARGEST_REFERENCE = 16 * 1024
"""Bytes. Hundreds of references fit into one message."""


Digests: TypeAlias = Mapping[str, tuple[int, str]]


class NotASkill(Exception):
    """Why a folder, or what an MCP server offers, cannot be used as a skill: a sentence for the owner."""


@dataclass(frozen=True)
class Skill:
    """`reference` is what agents are shown, not masked yet. `server` is the MCP server that it comes from, if any.

    `digests` are size and SHA-256 of each file that this server has or promises, by path.
    """

    root: Path
    reference: A2CSkillRef
    server: str | None = None
    frontmatter: Mapping[str, Any] = field(default_factory=dict)
    digests: Digests = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.reference["name"]


def read_frontmatter(root: Path) -> Frontmatter:
    """The frontmatter of the `SKILL.md` in a folder. Raises `NotASkill`, `OSError`."""
    try:
        with open_file(root, SKILL_FILE) as file:
            head = file.read(4 * LONGEST_FRONTMATTER + 16)  # a character has at most four bytes
    except SkillFileNotAccessible as error:
        raise NotASkill(f"its {SKILL_FILE} cannot be used: {error.reason}") from None
    return frontmatter_in(head)


def frontmatter_in(content: bytes) -> Frontmatter:
    """The frontmatter in the bytes of a `SKILL.md`."""
    text = io.TextIOWrapper(io.BytesIO(content), "utf-8", "replace").read(LONGEST_FRONTMATTER + 16)
    return parse_frontmatter(split_frontmatter(text)[0])


def skill_of(
    root: Path,
    found: Frontmatter,
    *,
    name: str,
    source: str,
    uri: str | None = None,
    version: str | None = None,
    server: str | None = None,
    digests: Digests | None = None,
) -> Skill:
    """The skill in a folder. Raises `NotASkill` if nothing describes it, or too much does."""
    if found.description is None:
        raise NotASkill(f"the frontmatter of its {SKILL_FILE} is missing, broken, or has no description")
    said = {
        "uri": uri,
        "license": found.license,
        "compatibility": found.compatibility,
        "version": version,
        "allowed_tools": None if found.allowed_tools is None else [*found.allowed_tools],
        "tags": None if found.tags is None else [*found.tags],
        "skill_metadata": found.metadata,
    }
    reference = A2CSkillRef(name=name, source=source, path=str(root), description=found.description)
    reference |= {key: value for key, value in said.items() if value is not None}  # type: ignore[typeddict-item]
    if (size := len(dumps(reference))) > _LARGEST_REFERENCE:
        raise NotASkill(f"the frontmatter of its {SKILL_FILE} has {size} bytes, at most {_LARGEST_REFERENCE} are shown")
    return Skill(root, reference, server, found.whole, digests or {})
