"""Handles of contents that agents fetch in chunks (PROTOCOL-0.4 §6), and contents that are spooled until they are.

A handle is a random number that stands for a source, for one agent in one office. It ends after a while (`BlobLimits`),
when its agent leaves by itself, when another agent enters, and with the Computer. A handle of another agent is answered
like one that has ended.

Results that are kept for duplicates hold handles. So a handle lives longer than a kept result, unless others need its
place; then its agent is told that the blob is gone.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.blobs.limits import BlobLimits
from a2c_smcp.computer.blobs.side_band import movable, move_binary, move_texts
from a2c_smcp.computer.blobs.sources import BlobMark, BlobSource, FileBlob
from a2c_smcp.computer.blobs.spool import Spool, Spooled, remove
from a2c_smcp.errors import AnswerTooLarge, BlobNotAccessible
from a2c_smcp.file_io import FileThreads, keep_freed_memory
from a2c_smcp.loops import in_thread, start_in_thread_async
from a2c_smcp.protocol.chunks import to_base64, with_blob

__all__ = ["Blobs"]

logger = logging.getLogger(__name__)

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
        if size > min(self._limits.largest, self._limits.most_bytes):
            raise AnswerTooLarge(f"{size} bytes, at most {self._limits.largest} can be kept", size=size)
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
        """How many characters of items `move_large` would move."""
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

    def forget(self, office: str, agent: str | None = None) -> None:
        """Drop the handles of an agent that has left, or of an office that this computer has left."""
        self._drop(*(each for each in self._of(office) if agent in (None, each.caller.agent)))

    def keep_only(self, office: str, agent: str) -> None:
        """Drop the handles of other agents: this one has entered the office."""
        self._drop(*(each for each in self._of(office) if each.caller.agent != agent))

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
        self._make_room()
        return offered

    def _use(self, offered: _Offered) -> None:
        offered.until = min(self._clock() + self._limits.age, offered.ends)
        self._offered.move_to_end(offered.handle)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._limits.age, self._on_timer)

    def _make_room(self) -> None:
        while len(self._offered) > self._limits.most:
            self._drop(next(iter(self._offered.values())))
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
