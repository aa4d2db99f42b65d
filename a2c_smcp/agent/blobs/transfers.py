"""All transfers of large contents of an agent: of results, of handles, of files."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from a2c_smcp.agent.blobs.downloads import AskComputer, BlobRef, Downloads, OnBytes, Pause
from a2c_smcp.agent.blobs.files import write_file
from a2c_smcp.agent.blobs.items import complete_items, handles_in, ref_in
from a2c_smcp.agent.blobs.uploads import Outgoing, Uploader, opened_bytes, opened_file
from a2c_smcp.agent.events import Invoke
from a2c_smcp.errors import SMCPError
from a2c_smcp.file_io import FileThreads
from a2c_smcp.loops import invoke
from a2c_smcp.protocol.codec import loads_exactly
from a2c_smcp.protocol.results import CallToolResult
from a2c_smcp.registry.calls.progress import OnProgress, ProgressInLoop

__all__ = ["MAX_RESULT", "AnyPath", "Receive", "Transfers", "is_complete"]

AnyPath: TypeAlias = str | os.PathLike[str]

MAX_RESULT = 128 * 1024 * 1024
"""Bytes of large contents that one answer may bring into memory, by default."""

_FILES = 4  # that are read or written at the same moment
_MARKS = ("a2c_blob_handle", "a2c_total_size", "a2c_sha256")


def is_complete(result: CallToolResult) -> bool:
    """Whether the result has all its contents."""
    return not ref_in({"_meta": result.meta}, "", None) and not handles_in(result.content)


class Receive(NamedTuple):
    """How the large contents of a result are received: into memory, or into files of a folder."""

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
        self.downloads = Downloads(ask, pause, carries_bytes, max_result, self._threads)
        self._uploader = Uploader(ask, pause, carries_bytes, self._threads)
        self._invoke: Invoke = invoke

    def open(self, invoke: Invoke) -> None:
        """To be called in the event loop in which the requests are made."""
        self._invoke = invoke
        self.downloads.open()
        self._uploader.open()

    def close(self) -> None:
        self._threads.close()

    async def complete(
        self, result: CallToolResult, computer: str, office: str | None, receive: Receive
    ) -> CallToolResult:
        """The result with all its contents. The tool has run, also if they cannot be fetched."""
        folder = None if receive.save_to is None else Path(receive.save_to)
        try:
            async with self.reporting(receive.on_transfer) as on_bytes:
                content = await complete_items(self.downloads, result.content, computer, office, on_bytes, folder)
            result = result if content is result.content else replace(result, content=content)
            return await self._structured(result, computer, office)
        except SMCPError as error:
            error.outcome = "done"
            raise

    async def _structured(self, result: CallToolResult, computer: str, office: str | None) -> CallToolResult:
        """The result with its structured content, if that was too large for a message (WIRE §9)."""
        ref = ref_in({"_meta": result.meta}, computer, office)
        if ref is None:
            return result
        found = loads_exactly(await self.downloads.read(ref))
        meta = {key: value for key, value in result.meta.items() if key not in _MARKS}
        return replace(result, structured_content=found, meta=meta)

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
