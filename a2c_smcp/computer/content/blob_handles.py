"""Handles of contents that agents fetch in chunks (PROTOCOL-0.4 §6), and contents that are spooled until they are.

A handle is a random number that stands for a source, for one agent in one office. It ends after a while (`BlobLimits`),
when its agent leaves by itself, when another agent enters, and with the Computer. A handle of another agent is answered
like one that has ended.

Results that are kept for duplicates hold handles. So a handle lives longer than a kept result, unless others need its
place; then its agent is told that the blob is gone.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import shutil
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeAlias

from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.errors import AnswerTooLarge, BadRequest, BlobNotAccessible, NotPrivate
from a2c_smcp.files import FileThreads, default_folder, keep_freed_memory, lock, private_folder, read_cached
from a2c_smcp.loops import in_thread, start_in_thread_async
from a2c_smcp.protocol.results import CHUNK, decoded_size, from_base64, to_base64, with_blob

logger = logging.getLogger(__name__)

# Large contents of answers go by the side band: they are spooled, and a mark stands in their place (PROTOCOL-0.4 §7).
#
# An item is a content item of a tool result or of a prompt, or one of the `contents` of a resource. The mark is in its
# `_meta`; the field that had the content is empty. Binary is moved for every agent that can fetch it. Text is moved
# only for agents that say so, with `blobs: true` (WIRE §9).

# What a blob is read from, and the mark by which an agent finds it.


class BlobSource(Protocol):
    """Bytes that an agent may read in chunks. Equal sources of one agent have one handle, so a source is hashable."""

    @property
    def mime_type(self) -> str: ...
    @property
    def total_size(self) -> int: ...
    @property
    def sha256(self) -> str:
        """Of the whole, in lower-case hexadecimal."""

    def read(self, offset: int, size: int) -> bytes:
        """Called in a thread, for each chunk, inside the bounds of `total_size`.

        Whatever decides whether the agent may read this is checked here, each time. Raises `BlobNotAccessible`, with
        the reason `forbidden` or `gone`; an `OSError` means `gone`. A source may have a method `read_cached` that does
        the same without waiting for a disk, or returns `None`: then `read` is called, in a thread.
        """


class BlobMark(NamedTuple):
    """The description of an item's content that is sent in its place (PROTOCOL-0.4 §7)."""

    handle: str
    total_size: int
    sha256: str

    def to_meta(self) -> dict[str, Any]:
        return {
            "a2c_blob_handle": self.handle,
            "a2c_total_size": self.total_size,
            "a2c_sha256": self.sha256,
        }


@dataclass(frozen=True, slots=True)
class FileBlob:
    """A file that does not change."""

    path: Path
    mime_type: str
    total_size: int
    sha256: str

    def read(self, offset: int, size: int) -> bytes:
        with self._opened() as file:
            file.seek(offset)
            return file.read(size)

    def read_cached(self, offset: int, size: int) -> bytearray | None:
        with self._opened() as file:
            return read_cached(file.fileno(), size, offset)

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        with self.path.open("rb") as file:
            if os.fstat(file.fileno()).st_size != self.total_size:
                raise BlobNotAccessible("the file has changed", reason="gone")
            yield file


Spooling: TypeAlias = Callable[[bytes, str], Awaitable[BlobMark]]
"""Keeps a content of this MIME type."""


class _Place(NamedTuple):
    """Where an item has its content: in itself, or in its embedded `resource`."""

    field: str
    is_inner: bool
    mime_type: str
    content: str

    def emptied(self, item: Mapping[str, Any], mark: BlobMark) -> dict[str, Any]:
        empty = {self.field: ""}
        new = {"resource": {**item["resource"], **empty}} if self.is_inner else empty
        meta = item.get("_meta")
        return {**item, **new, "_meta": {**(meta if isinstance(meta, dict) else {}), **mark.to_meta()}}


async def move_binary(items: list[Any], inline: int, spool: Spooling) -> list[Any]:
    """The items with binary contents of more than `inline` bytes moved. What cannot be spooled stays."""
    return await _moved_all(items, _BINARY, inline, _decoded, spool)


async def move_texts(items: list[Any], inline: int, spool: Spooling) -> list[Any]:
    """The items with texts of more than `inline` characters moved. What cannot be spooled stays."""
    return await _moved_all(items, _TEXT, inline, _encoded, spool)


def movable(items: list[Any], inline: int, *, texts: bool) -> int:
    """The number of characters of the items that can be moved."""
    kinds = (_BINARY, _TEXT) if texts else (_BINARY,)
    return sum(len(place.content) for item in items for kind in kinds if (place := _place(item, kind, inline)))


_Read: TypeAlias = Callable[[str], bytes | None]


async def _moved_all(items: list[Any], kind: _ContentKind, inline: int, read: _Read, spool: Spooling) -> list[Any]:
    """The same list if there is nothing to move."""
    places = [_place(item, kind, inline) for item in items]
    if not any(places):
        return items
    pairs = zip(items, places, strict=True)
    return [await _moved(item, place, read, spool) if place else item for item, place in pairs]


async def _moved(item: Any, place: _Place, read: _Read, spool: Spooling) -> Any:
    content = await in_thread(read, place.content)
    if content is None:
        return item
    try:
        mark = await spool(content, place.mime_type)
    except (OSError, NotPrivate, AnswerTooLarge) as error:
        logger.warning("a content of %d bytes could not be kept for an agent: %s", len(content), error)
        return item
    return place.emptied(item, mark)


class _ContentKind(NamedTuple):
    """Where contents of a kind are: in a content item, in the contents of a resource; their size; their MIME type."""

    in_item: str
    in_resource: str
    size: Callable[[str], int]
    mime_type: str


_BINARY = _ContentKind("data", "blob", decoded_size, "application/octet-stream")
_TEXT = _ContentKind("text", "text", len, "text/plain")


def _place(item: Any, kind: _ContentKind, inline: int) -> _Place | None:
    """Where the item has a content of this kind that is larger than `inline`."""
    if not isinstance(item, Mapping):
        return None
    is_inner = isinstance(item.get("resource"), Mapping)
    holder = item["resource"] if is_inner else item
    field = kind.in_resource if "uri" in holder else kind.in_item
    content, mime_type = holder.get(field), holder.get("mimeType")
    if not isinstance(content, str) or kind.size(content) <= inline:
        return None
    return _Place(field, is_inner, mime_type if isinstance(mime_type, str) else kind.mime_type, content)


def _decoded(content: str) -> bytes | None:
    """`None` if it is not base64: then it is no binary content."""
    try:
        return from_base64(content)
    except BadRequest:
        return None


def _encoded(content: str) -> bytes | None:
    """`None` if it has a lone surrogate, which UTF-8 cannot express."""
    try:
        return content.encode()
    except UnicodeEncodeError:
        return None


# How much agents may make a Computer keep for them, and for how long.

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobLimits:
    """Numbers, bytes and seconds. `inline` and `chunk` are those of the published 0.4 generation (PROTOCOL-0.4 §§6-9).

    Contents that agents fetch: at most `most` handles; at most `most_bytes` on disk, of which an agent has at most
    `most_of_agent`, and one content `largest`; those that were not used for the longest time make room. A handle ends
    when it was not used for `age`, and `longest` after it was made. `age` is more than the ten minutes for which
    results are kept. `reads` chunks are read at a time.
    Files that agents send: at most `uploads` at a time of at most `upload_size` each; one that stands still for
    `upload_idle` is given up. In the landing folder they have at most `landed` bytes, of which one agent has at most
    `landed_of_agent`; the oldest make room. As much may be under way from an agent.
    """

    most: int = 1000
    most_bytes: int = 512 * _MIB
    most_of_agent: int = 256 * _MIB
    largest: int = 100 * _MIB
    age: float = 900.0
    longest: float = 6 * 3600.0
    inline: int = 32_768
    chunk: int = CHUNK
    reads: int = 4
    uploads: int = 4
    upload_size: int = 100 * _MIB
    upload_idle: float = 120.0
    landed: int = 1024 * _MIB
    landed_of_agent: int = 256 * _MIB


# The folder in which a Computer keeps large contents until agents have read them.
#
# Each running Computer has a folder of its own, `<state>/blobs/<id>`, made for its owner alone when it is first needed,
# and removed when the Computer is closed. `<state>/blobs/<id>.lock` is locked for as long as the process lives, and is
# there before the folder and after it. So the next Computer that starts knows which folders were left by a crash: those
# whose lock is free.

_NAME = "blobs"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_PIECE = 1024 * 1024


class Spooled(NamedTuple):
    path: Path
    size: int
    sha256: str


class Spool:
    """Files in a folder. `add` and `close` block, and may be called in any thread."""

    def __init__(self) -> None:
        self._state: Path | None = None
        self._folder: Path | None = None
        self._lock = -1
        self._making = Lock()

    def open(self, state_folder: Path | None) -> None:
        """Remove what earlier processes have left. The folder itself is made by the first `add`."""
        self._state = state_folder or default_folder()
        with suppress(OSError):
            for path in (self._state / _NAME).glob("*.lock"):
                descriptor = os.open(path, os.O_RDWR)
                try:
                    if is_left := lock(descriptor):
                        shutil.rmtree(path.with_suffix(""), ignore_errors=True)
                        if os.name != "nt":
                            path.unlink()
                finally:
                    os.close(descriptor)
                if is_left and os.name == "nt":  # an open file cannot be removed there
                    path.unlink()

    def add(self, content: bytes | Path) -> Spooled:
        """Write a file, and return its size and hash. Raises `OSError`, `NotPrivate` if others could change it."""
        path = self._own_folder() / token_hex(16)
        digest, size = hashlib.sha256(), 0
        try:
            with os.fdopen(os.open(path, _FLAGS, 0o600), "wb") as file:
                for piece in _pieces(content):
                    file.write(piece)
                    digest.update(piece)
                    size += len(piece)
        except BaseException:
            remove(path)
            raise
        return Spooled(path, size, digest.hexdigest())

    def close(self) -> None:
        with self._making:
            folder, self._folder, self._state = self._folder, None, None
        if folder is None:
            return
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.with_suffix(".lock").unlink()
        os.close(self._lock)
        self._lock = -1

    def _own_folder(self) -> Path:
        with self._making:
            if self._state is None:
                raise OSError(None, "the computer is not running")
            if self._folder is None:
                self._folder, self._lock = _locked_folder(private_folder(self._state, _NAME))
            return self._folder


def remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _locked_folder(parent: Path) -> tuple[Path, int]:
    while True:
        folder = parent / token_hex(8)
        descriptor = os.open(folder.with_suffix(".lock"), _FLAGS, 0o600)
        if lock(descriptor):
            folder.mkdir(mode=0o700)
            return folder, descriptor
        os.close(descriptor)  # another process has just taken it for one that was left


def _pieces(content: bytes | Path) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


_HANDLE = re.compile(r"[0-9a-f]{32}")


@dataclass(eq=False, slots=True)
class _Offered:
    handle: str
    caller: Caller
    source: BlobSource
    ends: float
    until: float = 0.0
    spooled: Spooled | None = None

    @property
    def size(self) -> int:
        return self.spooled.size if self.spooled else 0


class Blobs:
    """The contents that agents may fetch at this moment, the least recently used first."""

    def __init__(self, limits: BlobLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._spool = Spool()
        self._offered: OrderedDict[str, _Offered] = OrderedDict()
        self._handles: dict[tuple[Caller, object], str] = {}
        self._bytes = 0
        self._threads = FileThreads(limits.reads)
        self._timer: asyncio.TimerHandle | None = None

    on_fetched: Callable[[Caller, int], None] = staticmethod(lambda caller, size: None)
    """Is called when an agent begins to fetch a content."""

    def open(self, state_folder: Path | None) -> None:
        self._spool.open(state_folder)

    def offer(self, caller: Caller, source: BlobSource) -> str:
        """A handle by which this agent, in this office, may read the source for a while."""
        return self._add(caller, source, source).handle

    async def spool(self, caller: Caller, content: bytes | Path, mime_type: str) -> BlobMark:
        """Keep a copy of the content for this agent. It must be masked already.

        Raises `AnswerTooLarge`, or `OSError` or `NotPrivate` if nothing can be kept on this machine.
        """
        size = len(content) if isinstance(content, bytes) else (await in_thread(content.stat)).st_size
        largest = min(self._limits.largest, self._limits.most_bytes, self._limits.most_of_agent)
        if size > largest:
            raise AnswerTooLarge(f"{size} bytes, at most {largest} can be kept", size=size)
        spooled = await self._written(content)
        key = (spooled.sha256, mime_type)
        if (handle := self._handles.get((caller, key))) and handle in self._offered:
            remove(spooled.path)
            self._use(self._offered[handle])
        else:
            source = FileBlob(spooled.path, mime_type, spooled.size, spooled.sha256)
            handle = self._add(caller, source, key, spooled).handle
        return BlobMark(handle, spooled.size, spooled.sha256)

    async def move_large(self, caller: Caller, items: list[Any], *, texts: bool = False) -> list[Any]:
        """Content items, or contents of a resource, with large binary contents spooled for this agent, and texts, too.

        They must be masked already. What cannot be spooled stays where it is.
        """

        def spool(content: bytes, mime_type: str) -> Coroutine[Any, Any, BlobMark]:
            return self.spool(caller, content, mime_type)

        moved = await move_binary(items, self._limits.inline, spool)
        return await move_texts(moved, self._limits.inline, spool) if texts else moved

    def movable(self, items: list[Any], *, texts: bool) -> int:
        """The number of characters of items that `move_large` would move."""
        return movable(items, self._limits.inline, texts=texts)

    async def chunk(self, caller: Caller, data: Mapping[str, Any], *, binary: bool = False) -> dict[str, Any]:
        """The answer to `client:get_blob`, with the chunk as it is, or in base64. Raises `BlobNotAccessible`."""
        source = self._find(caller, data.get("blob_handle"))
        offset, size = data.get("chunk_offset"), data.get("max_chunk_bytes")
        offset = 0 if offset is None else offset
        if type(offset) is not int or not 0 <= offset <= source.total_size:
            raise BlobNotAccessible(f"chunk_offset: must be an integer from 0 to {source.total_size}", reason="range")
        size = min(size, self._limits.chunk) if type(size) is int and size > 0 else self._limits.chunk
        size = min(size, source.total_size - offset)
        cached = _read_cached(source, offset, size)
        content = await self._threads.run(_read, source, offset, size) if cached is None else cached
        if offset == 0:
            self.on_fetched(caller, source.total_size)
        return with_blob(_about(data, source, offset, len(content)), bytes(content) if binary else to_base64(content))

    def drop(self, matches: Callable[[Caller], bool]) -> None:
        """Drop the handles of these agents."""
        self._drop(*(each for each in self._offered.values() if matches(each.caller)))

    def close(self) -> None:
        """Drop all handles, and remove what is spooled."""
        self._drop(*self._offered.values())
        self._spool.close()
        self._threads.close()

    # Inside

    async def _written(self, content: bytes | Path) -> Spooled:
        writing = start_in_thread_async(self._spool.add, content)
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            writing.add_done_callback(_remove_written)
            raise

    def _of(self, office: str) -> list[_Offered]:
        return [each for each in self._offered.values() if each.caller.office == office]

    def _find(self, caller: Caller, handle: object) -> BlobSource:
        if not isinstance(handle, str) or not _HANDLE.fullmatch(handle):
            raise BlobNotAccessible("blob_handle: is none of this computer", reason="invalid_handle")
        self._drop_old()
        offered = self._offered.get(handle)
        if offered is None or offered.caller != caller:
            raise BlobNotAccessible("it is not kept any more: ask again for what it is a part of", reason="gone")
        self._use(offered)
        return offered.source

    def _add(self, caller: Caller, source: BlobSource, key: object, spooled: Spooled | None = None) -> _Offered:
        self._drop_old()
        known = self._offered.get(self._handles.get((caller, key), ""))
        if known:
            self._use(known)
            return known
        keep_freed_memory()
        offered = _Offered(token_hex(16), caller, source, self._clock() + self._limits.longest, spooled=spooled)
        self._offered[offered.handle] = offered
        self._handles[caller, key] = offered.handle
        self._bytes += offered.size
        self._use(offered)
        self._make_room(caller)
        return offered

    def _use(self, offered: _Offered) -> None:
        offered.until = min(self._clock() + self._limits.age, offered.ends)
        self._offered.move_to_end(offered.handle)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._limits.age, self._on_timer)

    def _make_room(self, caller: Caller) -> None:
        while len(self._offered) > self._limits.most:
            self._drop(next(iter(self._offered.values())))
        own = [each for each in self._offered.values() if each.spooled and each.caller == caller]
        while sum(each.size for each in own) > self._limits.most_of_agent:
            self._drop(own.pop(0))
        spooled = [each for each in self._offered.values() if each.spooled]
        while self._bytes > self._limits.most_bytes:
            self._drop(spooled.pop(0))

    def _drop_old(self) -> None:
        now = self._clock()
        self._drop(*(each for each in self._offered.values() if each.until <= now))

    def _drop(self, *offered: _Offered) -> None:
        for each in offered:
            del self._offered[each.handle]
            self._bytes -= each.size
            if each.spooled:
                remove(each.spooled.path)
        if offered:
            self._handles = {key: handle for key, handle in self._handles.items() if handle in self._offered}
        if not self._offered and self._timer:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        self._drop_old()
        if self._offered:
            pause = min(each.until for each in self._offered.values()) - self._clock()
            self._timer = asyncio.get_running_loop().call_later(max(pause, 0.05), self._on_timer)


def _remove_written(writing: asyncio.Future[Spooled]) -> None:
    if not writing.cancelled() and writing.exception() is None:
        remove(writing.result().path)


def _read(source: BlobSource, offset: int, size: int) -> bytes:
    """Raises `BlobNotAccessible`."""
    try:
        content = source.read(offset, size)
    except OSError:
        raise BlobNotAccessible("it cannot be read any more", reason="gone") from None
    if len(content) != size:
        raise BlobNotAccessible("it has become shorter", reason="gone")
    return content


def _read_cached(source: BlobSource, offset: int, size: int) -> bytearray | None:
    """Raises `BlobNotAccessible`."""
    read = getattr(source, "read_cached", None)
    try:
        return read(offset, size) if read else None
    except OSError:
        return None


def _about(data: Mapping[str, Any], source: BlobSource, offset: int, size: int) -> dict[str, Any]:
    """The answer without the chunk."""
    return {
        "blob_handle": data["blob_handle"],
        "mime_type": source.mime_type,
        "total_size": source.total_size,
        "sha256": source.sha256,
        "chunk_offset": offset,
        "eof": offset + size == source.total_size,
        "req_id": data["req_id"],
    }
