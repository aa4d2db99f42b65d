"""All transfers of large contents of an agent: of results, of handles, of files."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from a2c_smcp.agent.blobs.downloads import (
    ATTEMPTS,
    TRANSIENT,
    WINDOW,
    AskComputer,
    BlobRef,
    ChunkRequests,
    Downloads,
    OnBytes,
    Pause,
    Perseverance,
    complete_items,
    handles_in,
    ref_in,
)
from a2c_smcp.agent.blobs.files import write_file
from a2c_smcp.agent.events import Invoke
from a2c_smcp.errors import BadRequest, BlobWriteFailed, SMCPError
from a2c_smcp.files import FileThreads, keep_freed_memory, read_cached
from a2c_smcp.loops import cancel_and_wait, in_thread, invoke
from a2c_smcp.protocol.codec import loads_exactly
from a2c_smcp.protocol.operations import PUT_BLOB
from a2c_smcp.protocol.results import CHUNK, CallToolResult, to_base64
from a2c_smcp.registry.calls.context import OnProgress, ProgressInLoop

# Send a file to a computer in chunks (PROTOCOL-0.4 §9).
#
# The first chunk declares the size and the hash of the whole, and is answered with an id. The others follow in order.
# A computer of ours says how many may be in flight at a time (`in_flight`), and whether they may be attachments
# (`binary`); to others each is sent in base64, after the answer to the one before. The last answer says where the
# file is.
#
# An upload goes on where it was after a lost connection, at a computer that still has it: a chunk that is out of
# place is answered with the number of bytes that were received. Computers of other makes do not say so, and those
# that have forgotten the upload cannot: then it begins again, `ATTEMPTS` times in all. So the whole file is on the
# computer at the end, with the right hash, or one error is raised.

_PIECE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A file to send. `read(offset)` returns a chunk, and may block; `read_cached` does not, and may return `None`."""

    total_size: int
    sha256: str
    name: str | None
    read: Callable[[int], bytes]
    read_cached: Callable[[int], bytes | bytearray | None]


def opened_bytes(content: bytes, name: str | None) -> Outgoing:
    def read(offset: int) -> bytes:
        return content[offset : offset + CHUNK]

    return Outgoing(len(content), hashlib.sha256(content).hexdigest(), name, read, read)


@asynccontextmanager
async def opened_file(path: Path, name: str | None) -> AsyncIterator[Outgoing]:
    """The present content of a file. It is read once for its hash. Raises `OSError`."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = await in_thread(_hash, file, size)

        def read(offset: int) -> bytes:
            file.seek(offset)
            content = file.read(min(CHUNK, size - offset))
            if len(content) < min(CHUNK, size - offset):
                raise OSError(None, "the file has become shorter while it was sent", str(path))
            return content

        def cached(offset: int) -> bytearray | None:
            return read_cached(file.fileno(), min(CHUNK, size - offset), offset)

        yield Outgoing(size, digest, path.name if name is None else name, read, cached)


def _hash(file: BinaryIO, size: int) -> str:
    """Of the first `size` bytes: what is appended later, such as to a log, is not sent."""
    digest = hashlib.sha256()
    while size > 0 and (piece := file.read(min(size, _PIECE))):
        digest.update(piece)
        size -= len(piece)
    return digest.hexdigest()


class _Misplaced(Exception):
    """The computer has received another number of bytes."""

    def __init__(self, received: int) -> None:
        self.received = received


@dataclass(slots=True)
class _UploadState:
    """The progress of an upload. Without an `id`, it begins."""

    computer: str
    office: str | None
    outgoing: Outgoing
    on_bytes: OnBytes | None
    perseverance: Perseverance
    id: str | None = None
    window: int = 1
    is_binary: bool = False
    offset: int = 0

    def begin_again(self) -> None:
        self.id, self.window, self.is_binary, self.offset = None, 1, False, 0

    def reach(self, offset: int) -> None:
        self.offset = offset
        self.perseverance.on_progress(offset)
        if self.on_bytes:
            self.on_bytes(offset, self.outgoing.total_size)


class Uploader(ChunkRequests):
    """Sends files for an agent."""

    async def put(self, computer: str, outgoing: Outgoing, office: str | None, on_bytes: OnBytes | None) -> str:
        """Send it, and return its path on the computer. Raises `BlobWriteFailed` and other `SMCPError`s."""
        if outgoing.total_size < 1:
            raise BadRequest("an empty file cannot be sent")
        keep_freed_memory()
        state = _UploadState(computer, office, outgoing, on_bytes, Perseverance(self._pause))
        restarts = misplaced = 0
        while True:
            try:
                return await self._go_on(state)
            except _Misplaced as error:
                state.offset = error.received
                misplaced += 1
                if misplaced == _MOST_MISPLACED:
                    raise SMCPError(f"computer {computer!r} says of every chunk that it is out of place") from None
            except BlobWriteFailed as error:
                restarts += 1
                if restarts == ATTEMPTS or state.id is None or error.details.get("reason") not in _FORGOTTEN:
                    raise
                state.begin_again()
            except TRANSIENT as error:
                await state.perseverance.wait_after(error, has_begun=state.id is not None or restarts > 0)

    async def _go_on(self, state: _UploadState) -> str:
        """From the offset that was reached to the end."""
        if state.id is None:
            end, blob = await self._encoded(state, 0)
            answer = await self._send(state, 0, blob, is_last=end == state.outgoing.total_size)
            state.id, state.window, takes_bytes = _read_first(answer)
            state.is_binary = takes_bytes and self._carries_bytes()
            state.reach(end)
            if end == state.outgoing.total_size:
                return _landed(answer, state.outgoing)
        return await self._send_window(state)

    async def _send_window(self, state: _UploadState) -> str:
        """Send the rest, in order, with as many chunks in flight as the computer allows."""
        total = state.outgoing.total_size
        chunks: deque[tuple[int, asyncio.Task[Any]]] = deque()
        offsets = iter(range(min(state.offset, total - 1), total, CHUNK))
        answer: Any = None
        try:
            while True:
                while len(chunks) < state.window and (offset := next(offsets, None)) is not None:
                    end, blob = await self._encoded(state, offset)
                    sending = asyncio.create_task(self._send(state, offset, blob, is_last=end == total))
                    chunks.append((end, sending))
                if not chunks:
                    return _landed(answer, state.outgoing)
                end, sending = chunks.popleft()
                answer = await sending
                state.reach(end)
        finally:
            await cancel_and_wait(*(sending for _, sending in chunks))

    async def _encoded(self, state: _UploadState, offset: int) -> tuple[int, str | bytes]:
        """The end of a chunk, and its content as it is sent."""
        outgoing = state.outgoing
        cached = outgoing.read_cached(offset)
        content = await self._threads.run(outgoing.read, offset) if cached is None else cached
        return offset + len(content), bytes(content) if state.is_binary else to_base64(content)

    async def _send(self, state: _UploadState, offset: int, blob: str | bytes, *, is_last: bool) -> Any:
        outgoing = state.outgoing
        data: dict[str, Any] = {"chunk_offset": offset, "eof": is_last}
        if state.id is None:
            data |= {"total_size": outgoing.total_size, "sha256": outgoing.sha256}
            data |= {"name_hint": outgoing.name} if outgoing.name else {}
        else:
            data["upload_id"] = state.id
        async with self._in_flight:
            try:
                return await self._ask(PUT_BLOB, state.computer, data, state.office, blob=blob)
            except BlobWriteFailed as error:
                received = error.details.get("received")
                if error.details.get("reason") == "range" and type(received) is int and received >= 0:
                    raise _Misplaced(received) from None
                raise


_MOST_MISPLACED = 100
_FORGOTTEN = ("invalid_upload", "range")
"""Why an upload begins again: the computer does not know it any more, or does not say where it is."""


def _read_first(answer: Any) -> tuple[str, int, bool]:
    """The id of the upload, how many chunks may be in flight, and whether they may be attachments."""
    answer = answer if isinstance(answer, dict) else {}
    upload_id, window = answer.get("upload_id"), answer.get("in_flight")
    if not isinstance(upload_id, str):
        raise SMCPError("the answer is not one to a part of a file")
    window = min(window, WINDOW) if type(window) is int and window > 0 else 1
    return upload_id, window, answer.get("binary") is True


def _landed(answer: Any, outgoing: Outgoing) -> str:
    path = answer.get("landing_path") if isinstance(answer, dict) else None
    if not isinstance(path, str):
        raise SMCPError("the computer does not say where the file is")
    if answer.get("sha256") != outgoing.sha256:
        raise BlobWriteFailed("the computer has received other bytes", reason="integrity")
    return path


AnyPath: TypeAlias = str | os.PathLike[str]

MAX_RESULT = 128 * 1024 * 1024
"""Bytes of large contents that one answer may bring into memory, by default."""

_FILES = 4  # that are read or written at the same moment
_MARKS = ("a2c_blob_handle", "a2c_total_size", "a2c_sha256")


def is_complete(result: CallToolResult) -> bool:
    """True if the result has all its contents."""
    return not ref_in({"_meta": result.meta}, "", None) and not handles_in(result.content)


class Receive(NamedTuple):
    """Receives the large contents of a result: into memory, or into files of a folder."""

    save_to: AnyPath | None = None
    on_transfer: OnProgress | None = None

    def prepare(self) -> None:
        """Make the folder, before the tool runs. Raises `OSError` if nothing can be written into it."""
        if self.save_to is None:
            return
        folder = Path(self.save_to)
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


class Transfers:
    """`on_progress` gets the bytes that have gone, and all bytes, as a tool's progress."""

    def __init__(
        self,
        ask: AskComputer,
        pause: Pause,
        carries_bytes: Callable[[], bool],
        max_result: int = MAX_RESULT,
    ) -> None:
        """`carries_bytes`: not base64 only."""
        self._threads = FileThreads(_FILES)
        self.downloads = Downloads(ask, pause, carries_bytes, self._threads, max_result)
        self._uploader = Uploader(ask, pause, carries_bytes, self._threads)
        self._invoke: Invoke = invoke

    def open(self, invoke: Invoke) -> None:
        """Call this in the event loop in which the requests are made."""
        self._invoke = invoke
        self.downloads.open()
        self._uploader.open()

    def close(self) -> None:
        self._threads.close()

    async def with_contents(
        self, result: CallToolResult, computer: str, office: str | None, receive: Receive
    ) -> CallToolResult:
        """The result with all its contents. The tool has run, also if they cannot be fetched."""
        folder = None if receive.save_to is None else Path(receive.save_to)
        try:
            async with self.reporting(receive.on_transfer) as on_bytes:
                content = await complete_items(self.downloads, result.content, computer, office, on_bytes, folder)
            result = result if content is result.content else replace(result, content=content)
            # The result with its structured content, if that was too large for a message (WIRE §9).
            ref = ref_in({"_meta": result.meta}, computer, office)
            if ref is None:
                return result
            found = loads_exactly(await self.downloads.read(ref))
            meta = {key: value for key, value in result.meta.items() if key not in _MARKS}
            return replace(result, structured_content=found, meta=meta)
        except SMCPError as error:
            error.outcome = "done"
            raise

    async def read(self, computer: str, handle: str, office: str | None, on_progress: OnProgress | None) -> bytes:
        """The content of a handle. Raises `AnswerTooLarge`, `BlobNotAccessible` and other `SMCPError`s."""
        async with self.reporting(on_progress) as on_bytes:
            return await self.downloads.read(BlobRef(computer, office, handle), on_bytes)

    async def save(
        self, computer: str, handle: str, path: AnyPath, office: str | None, on_progress: OnProgress | None
    ) -> Path:
        """Write the content of a handle to a file, whole or not at all. Raises `OSError` and as `read`."""
        async with self.reporting(on_progress) as on_bytes:
            ref = BlobRef(computer, office, handle)
            return await write_file(Path(path), lambda file: self.downloads.write_to(file, ref, on_bytes), replace=True)

    async def put_file(
        self, computer: str, path: AnyPath, name: str | None, office: str | None, on_progress: OnProgress | None
    ) -> str:
        """Send a file, and return its path on the computer. Raises `OSError`, `BlobWriteFailed`, other `SMCPError`s."""
        async with opened_file(Path(path), name) as outgoing:
            return await self._put(computer, outgoing, office, on_progress)

    async def put_bytes(
        self, computer: str, content: bytes, name: str | None, office: str | None, on_progress: OnProgress | None
    ) -> str:
        return await self._put(computer, opened_bytes(content, name), office, on_progress)

    async def _put(self, computer: str, outgoing: Outgoing, office: str | None, on_progress: OnProgress | None) -> str:
        async with self.reporting(on_progress) as on_bytes:
            return await self._uploader.put(computer, outgoing, office, on_bytes)

    @asynccontextmanager
    async def reporting(self, on_progress: OnProgress | None) -> AsyncIterator[OnBytes | None]:
        """Tells `on_progress` how many bytes have come, while this block lasts."""
        if on_progress is None:
            yield None
            return
        progress = ProgressInLoop(on_progress, self._invoke)
        try:
            yield lambda done, total: progress.report(float(done), float(total))
        except BaseException:
            progress.stop()
            raise
        await progress.finish()
