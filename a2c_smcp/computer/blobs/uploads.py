"""Files that agents send in chunks (PROTOCOL-0.4 §9). The checks, their order and their words are those of that page.

An upload belongs to one agent in one office; to all others it does not exist. It ends when the file is complete, when
it fails, when nothing came for a while, when its agent leaves by itself, and with the Computer. Its part file ends with
it. Each chunk is handled in a task of the upload, one after the other: a connection that is lost does not stop a chunk
half way.

An upload outlives a lost connection. The agent may not know then which chunk came last:

- It sends a chunk again that was taken: the answer is `range`, and `details.received` says where to go on. Agents of
  other makes begin again.
- It sends the first chunk again, under its `req_id`: it gets the same `upload_id`.
- It sends the last chunk again: the answer is kept for a while, and is the same.

`in_flight`, in the answer to the first chunk, is how many chunks may be sent before the answer to an earlier one. Other
makes ignore it, and send one at a time. With `binary`, later chunks may be attachments: a third smaller than base64,
and nothing has to read them on the way.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.blobs.landing import LandingFolder
from a2c_smcp.computer.blobs.limits import BlobLimits
from a2c_smcp.errors import BadRequest, BlobWriteFailed
from a2c_smcp.file_io import FileThreads, WriteBehind, keep_freed_memory
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol.chunks import from_base64

__all__ = ["Uploads"]

logger = logging.getLogger(__name__)

_SHA256 = re.compile(r"[0-9a-f]{64}")
_DECLARED = ("total_size", "sha256", "name_hint")
_MISPLACED = "chunk_offset does not match received bytes"
_MOST_LANDED = 100
_LAST_WRITE = 2.0  # seconds that a chunk has to be written when the Computer is closed
_IN_FLIGHT = 12


@dataclass(eq=False, slots=True)
class _Upload:
    """`first` and `last` are the answers to the first and to the last chunk. `is_over`: it is to be ended."""

    id: str
    caller: Caller
    first_request: str
    total_size: int
    sha256: str
    name_hint: object
    file: BinaryIO
    writing: WriteBehind
    received: int = 0
    digest: Any = field(default_factory=hashlib.sha256)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    timer: asyncio.TimerHandle | None = None
    first: dict[str, Any] | None = None
    last: dict[str, Any] | None = None
    is_over: bool = False

    async def write(self, content: bytes) -> None:
        self.digest.update(content)
        await self.writing.write(content)
        self.received += len(content)

    def known_answer(self, data: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer to a chunk that has come before.

        Raises `BlobWriteFailed` for other chunks of a complete file: the last one is then to be sent again.
        """
        is_first = data.get("upload_id") is None
        if self.last is None:
            return self.first if is_first else None
        if is_first or data["chunk_offset"] == self.last["chunk_offset"]:
            return self.last
        raise self.failed(_MISPLACED, "range", received=self.last["chunk_offset"])

    def failed(self, text: str, reason: str, **details: Any) -> BlobWriteFailed:
        return BlobWriteFailed(text, reason=reason, upload_id=self.id, **details)

    def out_of_range(self, text: str) -> BlobWriteFailed:
        return self.failed(text, "range", received=self.received)


class Uploads:
    """The uploads of a Computer. Without a `landing` folder, and while `are_refused`, none begins."""

    are_refused = False
    on_landed: Callable[[Caller, int, str], None] = staticmethod(lambda caller, size, digest: None)
    """Is called with each file that an agent has sent."""

    def __init__(self, landing: Path | None, limits: BlobLimits) -> None:
        self._landing = LandingFolder(landing) if landing else None
        self._limits = limits
        self._beginning = 0
        self._uploads: dict[str, _Upload] = {}
        self._landed: dict[str, _Upload] = {}
        self._tasks = OwnedTasks()
        self._threads = FileThreads(limits.uploads)

    async def open(self) -> None:
        """Remove what earlier processes have left."""
        if self._landing:
            await self._threads.run(self._landing.remove_left)

    async def close(self) -> None:
        """Give up all uploads."""
        self._end_where(lambda _: True)
        await self._tasks.finish(_LAST_WRITE)
        await self._tasks.close()
        await self.open()
        self._threads.close()

    async def put(self, caller: Caller, data: Mapping[str, Any], *, binary: bool = False) -> dict[str, Any]:
        """The answer to `client:put_blob`. With `binary`, attachments can be received. Raises `BlobWriteFailed`."""
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._tasks.spawn(self._answer(caller, data, answered))
        answer = {**await answered, "req_id": data["req_id"]}
        return answer | {"binary": True} if binary and "in_flight" in answer else answer

    def forget(self, office: str, agent: str | None = None) -> None:
        """Give up the uploads of an agent that has left, or of an office that this computer has left."""
        self._end_where(lambda caller: caller.office == office and agent in (None, caller.agent))

    def keep_only(self, office: str, agent: str) -> None:
        """Give up the uploads of other agents: this one has entered the office."""
        self._end_where(lambda caller: caller.office == office and caller.agent != agent)

    # One chunk

    async def _answer(self, caller: Caller, data: Mapping[str, Any], answered: asyncio.Future[dict[str, Any]]) -> None:
        try:
            answer = await self._handled(caller, data)
        except Exception as error:
            if answered.done():
                return
            answered.set_exception(error)
        else:
            if not answered.done():
                answered.set_result(answer)

    async def _handled(self, caller: Caller, data: Mapping[str, Any]) -> dict[str, Any]:
        upload = self._find(caller, data) or await self._begun(caller, data)
        async with upload.turn:
            if upload.is_over:
                raise _unknown()
            if answer := upload.known_answer(data):
                return answer
            try:
                return await self._taken(upload, data)
            finally:
                self._end_or_wait(upload)

    def _find(self, caller: Caller, data: Mapping[str, Any]) -> _Upload | None:
        """The upload that a chunk belongs to; `None` if the chunk begins one."""
        known = self._uploads | self._landed
        upload_id = data.get("upload_id")
        if upload_id is None:
            request = (caller, data["req_id"])
            return next((each for each in known.values() if (each.caller, each.first_request) == request), None)
        upload = known.get(upload_id) if isinstance(upload_id, str) else None
        if upload is None or upload.caller != caller:
            raise _unknown()
        if any(data.get(field) is not None for field in _DECLARED):
            raise upload.failed("declaration fields must only appear on the first chunk", "invalid_declaration")
        return upload

    async def _begun(self, caller: Caller, data: Mapping[str, Any]) -> _Upload:
        total_size, sha256 = data.get("total_size"), data.get("sha256")
        if self.are_refused:
            raise BlobWriteFailed("agents may only read on this computer", reason="forbidden")
        if self._landing is None:
            raise BlobWriteFailed("landing root not configured", reason="forbidden")
        if type(total_size) is not int or total_size < 1:
            raise BlobWriteFailed("total_size must be an int >= 1", reason="invalid_declaration")
        if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise BlobWriteFailed("sha256 must be a 64-char hex string", reason="invalid_declaration")
        if total_size > self._limits.upload_size:
            text = f"declared total_size exceeds the upload cap of {self._limits.upload_size} bytes"
            raise BlobWriteFailed(text, reason="too_large", total_size=total_size)
        if len(self._uploads) + self._beginning >= self._limits.uploads:
            raise BlobWriteFailed("too many concurrent uploads", reason="busy")
        self._beginning += 1
        try:
            upload_id = token_hex(16)
            file = await self._threads.run(self._created, self._landing, upload_id)
        except OSError as error:
            logger.warning("a file of %s is refused, nothing can be written: %s", caller.agent, error)
            raise BlobWriteFailed("nothing can be written into the landing root", reason="forbidden") from None
        finally:
            self._beginning -= 1
        keep_freed_memory()
        hint, writing = data.get("name_hint"), WriteBehind(file, self._threads)
        upload = _Upload(upload_id, caller, data["req_id"], total_size, sha256, hint, file, writing)
        self._uploads[upload_id] = upload
        return upload

    def _created(self, landing: LandingFolder, upload_id: str) -> BinaryIO:
        landing.remove_left()
        return landing.create(upload_id)

    async def _taken(self, upload: _Upload, data: Mapping[str, Any]) -> dict[str, Any]:
        offset, is_last = data["chunk_offset"], data["eof"] is True
        if type(offset) is not int or offset != upload.received:
            raise upload.out_of_range(_MISPLACED)
        content = _content(upload, data["blob"])
        end = offset + len(content)
        if end > upload.total_size:
            upload.is_over = True
            raise upload.out_of_range("received bytes exceed the declared total_size")
        if is_last and end < upload.total_size:
            raise upload.out_of_range("final chunk does not complete the declared total_size")
        with _ending(upload):
            await upload.write(content)
        answer: dict[str, Any] = {"upload_id": upload.id, "chunk_offset": offset}
        if is_last:
            upload.last = answer = answer | await self._land(upload)
        elif offset == 0:
            upload.first = answer = answer | {"in_flight": _IN_FLIGHT}
        return answer

    async def _land(self, upload: _Upload) -> dict[str, Any]:
        assert self._landing
        if upload.digest.hexdigest() != upload.sha256:
            upload.is_over = True
            raise upload.failed("sha256 mismatch; upload discarded", "integrity")
        with _ending(upload):
            await upload.writing.finish()
            path = await self._threads.run(self._landing.land, upload.id, upload.file, upload.name_hint)
        del self._uploads[upload.id]
        self._landed[upload.id] = upload
        while len(self._landed) > _MOST_LANDED:
            self._end(next(iter(self._landed.values())))
        self.on_landed(upload.caller, upload.total_size, upload.sha256)
        return {"landing_path": str(path), "total_size": upload.total_size, "sha256": upload.sha256}

    # The end of uploads

    def _end_or_wait(self, upload: _Upload) -> None:
        """After a chunk: the upload is over, or has time for the next one."""
        if upload.is_over:
            self._end(upload)
            return
        if upload.timer:
            upload.timer.cancel()
        loop = asyncio.get_running_loop()
        upload.timer = loop.call_later(self._limits.upload_idle, self._end_if_idle, upload)

    def _end_if_idle(self, upload: _Upload) -> None:
        if not upload.turn.locked():  # otherwise a chunk is being written, and begins the time anew
            self._end(upload)

    def _end_where(self, is_meant: Callable[[Caller], bool]) -> None:
        for upload in [*self._uploads.values(), *self._landed.values()]:
            if is_meant(upload.caller):
                upload.is_over = True
                if not upload.turn.locked():
                    self._end(upload)

    def _end(self, upload: _Upload) -> None:
        """Forget it, and remove its part file. Not while a chunk is being written."""
        upload.is_over = True
        if upload.timer:
            upload.timer.cancel()
        self._landed.pop(upload.id, None)
        if self._uploads.pop(upload.id, None):
            with suppress(OSError):  # what could not be written before
                upload.file.close()
            assert self._landing
            self._landing.discard(upload.id)


def _unknown() -> BlobWriteFailed:
    return BlobWriteFailed("unknown or expired upload session", reason="invalid_upload")


def _content(upload: _Upload, blob: object) -> bytes:
    try:
        if isinstance(blob, bytes):
            return blob
        if isinstance(blob, str):
            return from_base64(blob)
    except BadRequest:
        pass
    raise upload.failed("blob is not valid base64", "invalid_declaration")


@contextmanager
def _ending(upload: _Upload) -> Iterator[None]:
    """An error of the disk ends the upload."""
    try:
        yield
    except OSError as error:
        upload.is_over = True
        logger.warning("a file of %s could not be written: %s", upload.caller.agent, error)
        raise upload.failed("the file could not be written", "io_error") from None
