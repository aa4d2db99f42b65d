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
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Any, BinaryIO, NamedTuple

from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.content.blob_handles import BlobLimits
from a2c_smcp.errors import BadRequest, BlobWriteFailed
from a2c_smcp.files import FileThreads, WriteBehind, keep_freed_memory, lock
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol.escaping import one_line
from a2c_smcp.protocol.results import from_base64

logger = logging.getLogger(__name__)

# The folder in which files of agents land, and the part files that grow in it.
#
# Part files are in `.a2c-upload` inside the landing folder, a folder that only its owner can enter. A complete file
# is renamed in one step. Names never come from an agent: a file is called by a random id, to which only harmless
# characters of the agent's hint are added. Links are not followed: each folder is opened first, and files are made,
# renamed and removed inside the open folder, so nobody can put another one in its place meanwhile. (Systems without
# such operations use paths.)
#
# A part file is locked while it grows. One that is not locked was left by a process that died, and is removed.
#
# Before a file lands, the oldest ones make room for it: those of its agent first, and then of all. Only names that are
# made here are counted and removed, so files of the owner stay.

_PARTS = ".a2c-upload"
_PART = ".part"
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_OLD = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_HAS_FOLDERS = {os.open, os.rename, os.unlink, os.mkdir} <= os.supports_dir_fd
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_HINT = 64
_TRIES = 10
_LANDED = re.compile(r"[0-9a-f]{32}(_[A-Za-z0-9._-]+)?")
_LEAST = 64 * 1024
"""The least bytes that a file counts, which bounds their number, too."""


class _OpenFolder(NamedTuple):
    """A folder, and its descriptor where the system can work with that."""

    path: Path
    descriptor: int | None

    def at(self, name: str) -> str | Path:
        return self.path / name if self.descriptor is None else name


class LandingFolder:
    """All methods block, and raise `OSError`."""

    def __init__(self, root: Path, limits: BlobLimits) -> None:
        self._root = root.absolute()
        self._limits = limits
        self._senders: dict[str, Caller] = {}
        self._landing = Lock()

    def create(self, upload_id: str) -> BinaryIO:
        """A new part file, locked. If another process removes it as left over before that, it is made again."""
        for _ in range(_TRIES):
            with suppress(FileNotFoundError), self._parts() as (_, parts):
                descriptor = os.open(parts.at(upload_id + _PART), _NEW, 0o600, dir_fd=parts.descriptor)
                if lock(descriptor) and os.fstat(descriptor).st_nlink:
                    return os.fdopen(descriptor, "w+b")
                os.close(descriptor)
        raise OSError(None, f"{_PARTS} is emptied by another program")

    def land(self, upload_id: str, file: BinaryIO, hint: object, sender: Caller) -> tuple[Path, list[str]]:
        """Rename a part file to the name under which it stays, and close it. Return which files made room for it."""
        safe = _UNSAFE.sub("_", hint)[:_LONGEST_HINT].strip("._-") if isinstance(hint, str) else ""
        name = f"{upload_id}_{safe}" if safe else upload_id
        file.flush()
        size = os.fstat(file.fileno()).st_size
        if os.name == "nt":  # an open file cannot be renamed there
            file.close()
        with self._landing, self._parts() as (root, parts):
            removed = self._make_room(root, max(size, _LEAST), sender)
            self._senders[name] = sender
            os.rename(  # inside open folders
                parts.at(upload_id + _PART), root.at(name), src_dir_fd=parts.descriptor, dst_dir_fd=root.descriptor
            )
        file.close()
        return self._root / name, removed

    def _make_room(self, root: _OpenFolder, size: int, sender: Caller) -> list[str]:
        sizes = _landed(root)
        self._senders = {name: one for name, one in self._senders.items() if name in sizes}
        removed: list[str] = []
        own = {name for name, one in self._senders.items() if one == sender}
        for names, most in ((own, self._limits.landed_of_agent), ({*sizes}, self._limits.landed)):
            left = sorted(names - {*removed}, key=sizes.__getitem__)
            excess = size + sum(sizes[name][1] for name in left) - most
            for name in left:
                if excess <= 0:
                    break
                with suppress(FileNotFoundError):
                    os.unlink(root.at(name), dir_fd=root.descriptor)
                excess -= sizes[name][1]
                removed.append(name)
        return removed

    def discard(self, upload_id: str) -> None:
        with suppress(OSError), self._parts() as (_, parts):
            os.unlink(parts.at(upload_id + _PART), dir_fd=parts.descriptor)

    def remove_left(self) -> None:
        """Remove the part files of processes that died, and the folder of part files if it is empty."""
        if not (self._root / _PARTS).exists():
            return
        with suppress(OSError), self._parts() as (root, parts):
            for name in os.listdir(parts.path if parts.descriptor is None else parts.descriptor):  # noqa: PTH208
                if name.endswith(_PART):
                    with suppress(OSError):
                        descriptor = os.open(parts.at(name), _OLD, dir_fd=parts.descriptor)
                        try:
                            is_left = lock(descriptor)
                        finally:
                            os.close(descriptor)
                        if is_left:
                            os.unlink(parts.at(name), dir_fd=parts.descriptor)
            os.rmdir(root.at(_PARTS), dir_fd=root.descriptor)  # refused unless it is empty

    @contextmanager
    def _parts(self) -> Iterator[tuple[_OpenFolder, _OpenFolder]]:
        """The landing folder and the folder of part files, which are made if they are missing."""
        self._root.mkdir(parents=True, exist_ok=True)
        with _opened(self._root, None) as root:
            with suppress(FileExistsError):
                os.mkdir(root.at(_PARTS), 0o700, dir_fd=root.descriptor)
            with _opened(self._root / _PARTS, root) as parts:
                yield root, parts


def _landed(root: _OpenFolder) -> dict[str, tuple[int, int]]:
    """Return the files of agents, each with when it was written and how large it counts."""
    found: dict[str, tuple[int, int]] = {}
    with os.scandir(root.path if root.descriptor is None else root.descriptor) as entries:
        for entry in entries:
            if _LANDED.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                found[entry.name] = status.st_mtime_ns, max(status.st_size, _LEAST)
    return found


@contextmanager
def _opened(path: Path, inside: _OpenFolder | None) -> Iterator[_OpenFolder]:
    """A folder; one `inside` another must be a folder itself, not a link to one, and must be its owner's alone."""
    if not _HAS_FOLDERS:
        if inside and path.is_symlink():
            raise OSError(None, f"{path.name} is a link")
        yield _OpenFolder(path, None)
        return
    if inside is None:
        descriptor = os.open(path, _DIRECTORY)
    else:
        descriptor = os.open(path.name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=inside.descriptor)
    try:
        status = os.fstat(descriptor)
        if inside and (status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077):
            raise OSError(None, f"{path.name} is open to others on this machine")
        yield _OpenFolder(path, descriptor)
    finally:
        os.close(descriptor)


_SHA256 = re.compile(r"[0-9a-f]{64}")
_DECLARED = ("total_size", "sha256", "name_hint")
_MISPLACED = "chunk_offset does not match received bytes"
_MOST_LANDED = 100
_LONGEST_LIST = 400
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
        self._landing = LandingFolder(landing, limits) if landing else None
        self._limits = limits
        self._beginning: list[tuple[Caller, int]] = []
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
        self.drop(lambda _: True)
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
        largest = min(self._limits.upload_size, self._limits.landed_of_agent, self._limits.landed)
        if total_size > largest:
            text = f"declared total_size exceeds the upload cap of {largest} bytes"
            raise BlobWriteFailed(text, reason="too_large", total_size=total_size)
        self._require_room(caller, total_size)
        self._beginning.append((caller, total_size))
        try:
            upload_id = token_hex(16)
            file = await self._threads.run(self._created, self._landing, upload_id)
        except OSError as error:
            logger.warning("a file of %s is refused, nothing can be written: %s", caller.agent, error)
            raise BlobWriteFailed("nothing can be written into the landing root", reason="forbidden") from None
        finally:
            self._beginning.remove((caller, total_size))
        keep_freed_memory()
        hint, writing = data.get("name_hint"), WriteBehind(file, self._threads)
        upload = _Upload(upload_id, caller, data["req_id"], total_size, sha256, hint, file, writing)
        self._uploads[upload_id] = upload
        return upload

    def _require_room(self, caller: Caller, total_size: int) -> None:
        under_way = [*self._beginning, *((each.caller, each.total_size) for each in self._uploads.values())]
        if len(under_way) >= self._limits.uploads:
            raise BlobWriteFailed("too many concurrent uploads", reason="busy")
        most = self._limits.landed_of_agent
        if total_size + sum(size for one, size in under_way if one == caller) > most:
            raise BlobWriteFailed(f"more than {most} bytes of this agent would be under way", reason="busy")

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
            land = self._landing.land
            path, removed = await self._threads.run(land, upload.id, upload.file, upload.name_hint, upload.caller)
        if removed:
            logger.warning(
                "the landing folder is full: the oldest files of agents were removed for a new one of %s: %s",
                upload.caller.agent,
                one_line(", ".join(removed), _LONGEST_LIST),
            )
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

    def drop(self, matches: Callable[[Caller], bool]) -> None:
        """Give up the uploads of these agents."""
        for upload in [*self._uploads.values(), *self._landed.values()]:
            if matches(upload.caller):
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
