"""Fetch the content that a handle of a computer stands for, in chunks (PROTOCOL-0.4 §6), and verify it.

The first chunk is asked for alone: it says how large the whole is, its hash, and how large a chunk of this computer is.
Then `WINDOW` chunks are in flight at a time. They are taken in order, so that the hash can be computed on the way and
a file is written from its beginning to its end. Whatever happens, the download goes on at the offset that it reached:

- The connection is lost: each chunk is asked for again on the next one (`retries.py`).
- The computer is away, or the Server has too much to do: the download waits a moment. It gives up after `ATTEMPTS`
  such failures, or after about a minute, without any progress.
- The content has changed, or the hash is wrong at the end: it begins again, `ATTEMPTS` times in all.
- The computer says that the handle has ended: that is final.

So a download returns all bytes, with the right hash, or raises one error. All downloads of an agent share a limit on
the chunks in flight, which keeps them far below what a Server holds for one member (WIRE §6).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeAlias

from a2c_smcp.agent.blobs.files import file_name, write_file
from a2c_smcp.errors import (
    AnswerTooLarge,
    BadRequest,
    BlobNotAccessible,
    CallTimeout,
    ComputerLeft,
    ComputerNotFound,
    RateLimited,
    SMCPError,
    Unavailable,
)
from a2c_smcp.files import FileThreads, WriteBehind, keep_freed_memory
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.protocol.operations import GET_BLOB
from a2c_smcp.protocol.results import CHUNK, SAVED_TO, from_base64, to_base64

logger = logging.getLogger(__name__)

WINDOW = 12
ATTEMPTS = 3
_STANDSTILL = 50.0  # seconds; a chunk that was not answered has been waited for longer
_RETURN_TIME = 10.0  # seconds that a computer has to come back
_NEXT_TRY = 1.0
_NOT_THERE = (CallTimeout, ComputerNotFound)
"""At the beginning of a transfer these are final: the computer is not there, or does not know blobs."""
TRANSIENT = (CallTimeout, Unavailable, ComputerNotFound, ComputerLeft, RateLimited)

AskComputer: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
"""`Requests.ask`."""
OnBytes: TypeAlias = Callable[[int, int], None]
"""Called with the bytes that have come, and with all that are expected."""
Pause: TypeAlias = Callable[[float], Coroutine[Any, Any, None]]
"""Waits until something has changed, at most so many seconds."""


class Perseverance:
    """Decides after each failure of a transfer whether it goes on."""

    def __init__(self, pause: Pause) -> None:
        self._pause = pause
        self._clock = asyncio.get_running_loop().time
        self._moved, self._offset, self._failures = self._clock(), 0, 0

    def on_progress(self, offset: int) -> None:
        self._moved, self._offset, self._failures = self._clock(), offset, 0

    async def wait_after(self, error: SMCPError, *, has_begun: bool) -> None:
        """Wait until it may be tried again. Raises the error if it is final."""
        self._failures += 1
        is_over = self._failures == ATTEMPTS or self._clock() - self._moved > _STANDSTILL
        if is_over or (not has_begun and isinstance(error, _NOT_THERE)):
            raise error
        logger.info("a transfer waits at %d bytes: %s", self._offset, error)
        await self._pause(_NEXT_TRY if isinstance(error, RateLimited) else _RETURN_TIME)


class BlobRef(NamedTuple):
    """A content on a computer. Where `total_size` and `sha256` are known before, they must be right."""

    computer: str
    office: str | None
    handle: str
    total_size: int | None = None
    sha256: str | None = None


class _Sink(Protocol):
    """Receives the bytes of a download, in order."""

    async def write(self, content: bytes) -> None: ...
    async def clear(self) -> None:
        """The download begins again."""

    async def finish(self) -> None: ...


class _MemorySink:
    def __init__(self) -> None:
        self.content = bytearray()

    async def write(self, content: bytes) -> None:
        self.content += content

    async def clear(self) -> None:
        self.content.clear()

    async def finish(self) -> None:
        """There is nothing to wait for."""


class _Changed(Exception):
    """The content is not the one that the download began with."""


class _Chunk(NamedTuple):
    offset: int
    content: bytes
    total_size: int
    sha256: str


@dataclass(slots=True)
class _State:
    """The progress of a download."""

    ref: BlobRef
    sink: _Sink
    on_bytes: OnBytes | None
    perseverance: Perseverance
    total_size: int | None
    sha256: str | None
    offset: int = 0
    step: int = CHUNK
    digest: Any = field(default_factory=hashlib.sha256)

    async def take(self, chunk: _Chunk) -> None:
        """Raises `_Changed`."""
        if self.total_size is None or self.sha256 is None:
            self.total_size, self.sha256 = chunk.total_size, chunk.sha256
        if (chunk.total_size, chunk.sha256) != (self.total_size, self.sha256):
            raise _Changed("its size or hash is not the one that was announced")
        if self.offset < self.total_size and not chunk.content:
            raise _Changed("a chunk is empty")
        self.digest.update(chunk.content)
        await self.sink.write(chunk.content)
        self.offset += len(chunk.content)
        self.perseverance.on_progress(self.offset)
        if self.on_bytes:
            self.on_bytes(self.offset, self.total_size)

    def check(self) -> None:
        if self.digest.hexdigest() != self.sha256:
            raise _Changed("its hash is not the one that was announced")

    async def begin_again(self) -> None:
        self.total_size, self.sha256, self.offset = self.ref.total_size, self.ref.sha256, 0
        self.step, self.digest = CHUNK, hashlib.sha256()
        await self.sink.clear()


@dataclass(eq=False)
class ChunkRequests:
    """Requests that move chunks, `WINDOW` of them at a time. `_carries_bytes`: not base64 only."""

    _ask: AskComputer
    _pause: Pause
    _carries_bytes: Callable[[], bool]
    _threads: FileThreads

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        """Call this in the event loop in which the requests are made."""
        self._in_flight = asyncio.Semaphore(WINDOW)


@dataclass(eq=False)
class Downloads(ChunkRequests):
    """The downloads of an agent. `most` is how many bytes one may take up in memory."""

    most: int

    async def read(self, ref: BlobRef, on_bytes: OnBytes | None = None) -> bytes:
        """The whole content. Raises `AnswerTooLarge`, `BlobNotAccessible` and other `SMCPError`s."""
        sink = _MemorySink()
        await self._download(ref, sink, on_bytes, self.most)
        return bytes(sink.content)

    async def write_to(self, file: BinaryIO, ref: BlobRef, on_bytes: OnBytes | None = None) -> int:
        """Write the whole content to a file, and return its size. Raises `BlobNotAccessible` and other `SMCPError`s.

        After an error the file has a part of the content.
        """
        return await self._download(ref, WriteBehind(file, self._threads), on_bytes, None)

    async def _download(self, ref: BlobRef, sink: _Sink, on_bytes: OnBytes | None, most: int | None) -> int:
        keep_freed_memory()
        state = _State(ref, sink, on_bytes, Perseverance(self._pause), ref.total_size, ref.sha256)
        changes = 0
        while True:
            try:
                return await self._go_on(state, most)
            except _Changed as error:
                changes += 1
                if changes == ATTEMPTS:
                    raise BlobNotAccessible(f"computer {ref.computer!r}: {error}", reason="integrity") from None
                await state.begin_again()
            except TRANSIENT as error:
                await state.perseverance.wait_after(error, has_begun=state.offset > 0)

    async def _go_on(self, state: _State, most: int | None) -> int:
        """From the offset that was reached to the end."""
        if state.offset == 0:
            _require_at_most(most, state.total_size)
            first = await self._chunk(state.ref, 0, CHUNK)
            _require_at_most(most, first.total_size)
            await state.take(first)
            state.step = len(first.content) or CHUNK
        assert state.total_size is not None
        while state.offset < state.total_size:
            await self._window(state, state.total_size)
        await state.sink.finish()
        state.check()
        return state.total_size

    async def _window(self, state: _State, total_size: int) -> None:
        """Keep several chunks in flight until the end, or until one has not the expected size."""
        chunks: deque[asyncio.Task[_Chunk]] = deque()
        offsets = iter(range(state.offset, total_size, state.step))

        def fill() -> None:
            while len(chunks) < WINDOW and (offset := next(offsets, None)) is not None:
                chunks.append(asyncio.create_task(self._chunk(state.ref, offset, state.step)))

        try:
            fill()
            while chunks:
                chunk = await chunks.popleft()
                await state.take(chunk)
                if len(chunk.content) != min(state.step, total_size - chunk.offset):
                    state.step = len(chunk.content)
                    return
                fill()
        finally:
            await cancel_and_wait(*chunks)

    async def _chunk(self, ref: BlobRef, offset: int, size: int) -> _Chunk:
        data: dict[str, Any] = {"blob_handle": ref.handle, "chunk_offset": offset, "max_chunk_bytes": size}
        if self._carries_bytes():
            data["binary"] = True
        async with self._in_flight:
            answer = await self._ask(GET_BLOB, ref.computer, data, ref.office)
        return _read(answer, offset, size)


def _read(answer: Any, offset: int, size: int) -> _Chunk:
    """Raises `SMCPError` for what is no chunk, such as the answer of a computer that does not know blobs."""
    answer = answer if isinstance(answer, dict) else {}
    blob, total, sha256 = answer.get("blob"), answer.get("total_size"), answer.get("sha256")
    if not isinstance(blob, str | bytes) or type(total) is not int or total < 0 or not isinstance(sha256, str):
        raise SMCPError("the answer is not a chunk of a blob")
    if answer.get("chunk_offset", offset) != offset:
        raise SMCPError("the answer is another chunk of the blob than the one asked for")
    try:
        content = blob if isinstance(blob, bytes) else from_base64(blob)
    except BadRequest:
        raise SMCPError("a chunk of the blob is not base64") from None
    if len(content) > min(size, max(total - offset, 0)):
        raise SMCPError("a chunk of the blob is larger than the blob")
    return _Chunk(offset, content, total, sha256.lower())


def _require_at_most(most: int | None, size: int | None) -> None:
    if most is not None and size is not None and size > most:
        raise AnswerTooLarge(f"it has {size} bytes, this agent takes {most} into memory: save it to a file", size=size)


# Items of answers whose content went by the side band (PROTOCOL-0.4 §7): find the marks, put the content back.
#
# An item is a content item of a tool result or of a prompt, or one of the `contents` of a resource. Its content is put
# where computers take it from: into `data`, `blob` or `text`, in the item or in its embedded `resource`. Or binary
# content is written to files, that which came in the item as well.

_OWN = "a2c_"


async def complete_items(
    downloads: Downloads,
    items: list[Any],
    computer: str,
    office: str | None,
    on_bytes: OnBytes | None = None,
    folder: Path | None = None,
) -> list[Any]:
    """The items with their contents. Raises `AnswerTooLarge` if they are too much for memory, and other `SMCPError`s.

    With a `folder`, binary contents are written to files in it, and are not in the items; their `_meta` says where they
    are. Raises `OSError` if that fails.
    """
    refs = [ref_in(item, computer, office) for item in items]
    if folder is None and not any(refs):
        return items
    receiving = _Receiving(downloads, folder, on_bytes, sum(ref.total_size or 0 for ref in refs if ref))
    receiving.require_memory(ref for item, ref in zip(items, refs, strict=True) if ref and not receiving.saves(item))
    return [await receiving.received(item, ref) for item, ref in zip(items, refs, strict=True)]


def handles_in(items: Iterable[Any]) -> list[str]:
    """The handles of the items whose content is not there."""
    return [ref.handle for item in items if (ref := ref_in(item, "", None))]


def ref_in(item: Any, computer: str, office: str | None) -> BlobRef | None:
    """Where the content of an item, or of a whole result, is, if it is not in it."""
    meta = item.get("_meta") if isinstance(item, Mapping) else None
    handle = meta.get("a2c_blob_handle") if isinstance(meta, Mapping) else None
    if not isinstance(handle, str) or not handle or not isinstance(meta, Mapping):
        return None
    size, sha256 = meta.get("a2c_total_size"), meta.get("a2c_sha256")
    return BlobRef(
        computer,
        office,
        handle,
        size if type(size) is int and size >= 0 else None,
        sha256.lower() if isinstance(sha256, str) else None,
    )


@dataclass(slots=True)
class _Receiving:
    downloads: Downloads
    folder: Path | None
    on_bytes: OnBytes | None
    total: int
    done: int = 0
    saved: int = 0

    def saves(self, item: Any) -> bool:
        """True if the item has binary content that goes into a file."""
        return self.folder is not None and isinstance(item, Mapping) and _field(item) in ("data", "blob")

    def require_memory(self, refs: Iterable[BlobRef]) -> None:
        size = sum(ref.total_size or 0 for ref in refs)
        if size > self.downloads.most:
            raise AnswerTooLarge(
                f"{size} bytes of content stayed on the computer, this agent takes {self.downloads.most} into memory: "
                "have them written to files with save_to=, or raise max_result",
                size=size,
            )

    async def received(self, item: Any, ref: BlobRef | None) -> Any:
        if self.saves(item):
            return await self._saved(item, ref)
        if ref is None:
            return item
        content = await self.downloads.read(ref, self._progress())
        self.done += len(content)
        return _with(_unmarked(item), _field(item), content)

    async def _saved(self, item: Mapping[str, Any], ref: BlobRef | None) -> Any:
        assert self.folder
        inline = _inline(item) if ref is None else None
        if ref is None and inline is None:
            return item

        async def write(file: BinaryIO) -> None:
            if ref:
                self.done += await self.downloads.write_to(file, ref, self._progress())
            else:
                file.write(inline or b"")

        self.saved += 1
        path = await write_file(self.folder / file_name(item, self.saved), write)
        item = _with(_unmarked(item), _field(item), b"")
        return {**item, "_meta": {**item.get("_meta", {}), SAVED_TO: str(path)}}

    def _progress(self) -> OnBytes | None:
        on_bytes, before, total = self.on_bytes, self.done, self.total
        return (lambda size, _: on_bytes(before + size, total)) if on_bytes else None


def _holder(item: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = item.get("resource")
    return inner if isinstance(inner, Mapping) and "data" not in item else item


def _field(item: Mapping[str, Any]) -> str:
    """The field that has the content, or had it."""
    holder = _holder(item)
    if "data" in holder or holder.get("type") in ("image", "audio"):
        return "data"
    return next((field for field in ("blob", "text") if field in holder), "data" if "uri" not in holder else "blob")


def _inline(item: Mapping[str, Any]) -> bytes | None:
    content = _holder(item).get(_field(item))
    try:
        return from_base64(content) if isinstance(content, str) and content else None
    except BadRequest:
        return None


def _unmarked(item: Mapping[str, Any]) -> dict[str, Any]:
    found = item.get("_meta")
    meta = (
        {key: value for key, value in found.items() if not key.startswith(_OWN)} if isinstance(found, Mapping) else {}
    )
    rest = {key: value for key, value in item.items() if key != "_meta"}
    return {**rest, "_meta": meta} if meta else rest


def _with(item: dict[str, Any], field: str, content: bytes) -> dict[str, Any]:
    new = {field: _decoded(content) if field == "text" else to_base64(content)}
    holder = _holder(item)
    return {**item, **new} if holder is item else {**item, "resource": {**holder, **new}}


def _decoded(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise SMCPError("a text that came in chunks is not UTF-8") from None
