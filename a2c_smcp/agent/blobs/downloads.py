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
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeAlias

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
from a2c_smcp.file_io import FileThreads, WriteBehind, keep_freed_memory
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.protocol.chunks import CHUNK, from_base64
from a2c_smcp.published_events import GET_BLOB_EVENT

__all__ = ["AskComputer", "BlobRef", "Downloads", "OnBytes", "Pause", "Perseverance"]

logger = logging.getLogger(__name__)

WINDOW = 12
ATTEMPTS = 3
CHUNK_PATIENCE = 60.0  # seconds for one chunk, lost connections included
_STANDSTILL = 50.0  # seconds; a chunk that was not answered has been waited for longer
_RETURN_TIME = 10.0  # seconds that a computer has to come back
_NEXT_TRY = 1.0
_NOT_THERE = (CallTimeout, ComputerNotFound)
"""At the beginning of a transfer these are final: the computer is not there, or does not know blobs."""
TRANSIENT = (CallTimeout, Unavailable, ComputerNotFound, ComputerLeft, RateLimited)

AskComputer: TypeAlias = Callable[..., Coroutine[Any, Any, Any]]
"""`Requests.ask_newer`."""
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
    """What takes the bytes of a download, in order."""

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
    """How far a download has come."""

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


class Downloads:
    """The downloads of an agent. `most` is how many bytes one may take up in memory."""

    def __init__(
        self,
        ask: AskComputer,
        pause: Pause,
        carries_bytes: Callable[[], bool],
        most: int,
        threads: FileThreads,
    ) -> None:
        """`carries_bytes`: not base64 only."""
        self.most = most
        self._threads = threads
        self._ask = ask
        self._pause = pause
        self._carries_bytes = carries_bytes
        self.open()

    def open(self) -> None:
        """To be called in the event loop in which the requests are made."""
        self._in_flight = asyncio.Semaphore(WINDOW)

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
            answer = await self._ask(GET_BLOB_EVENT, ref.computer, data, ref.office, timeout=CHUNK_PATIENCE)
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
