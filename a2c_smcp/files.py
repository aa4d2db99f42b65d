"""Files beside an event loop. What the system has in memory is read at once; a few threads do what may wait for a disk.

To hand a chunk to a thread and back costs as much as the chunk itself. So chunks are written several at a time, while
the next ones come in.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import secrets
import shlex
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, BinaryIO, TypeAlias, TypeVar

from a2c_smcp.errors import NotPrivate

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
_Work: TypeAlias = Callable[[], None]

_AT_ONCE = 1024 * 1024
_FREED = 8 * 1024 * 1024
_NAME = "a2c-smcp"
_PLATFORM: str = sys.platform
_LOCKED_BYTE = (1 << 31) - 2
_PAUSES = (0.005, 0.02, 0.08, 0.2)
"""Seconds in which a program that reads a file should have closed it."""


class FileThreads:
    """A few daemon threads for short blocking functions that come often."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads = self._busy = 0

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Returns or raises what the function does. A cancel does not stop it: its result is dropped."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()

        def work() -> None:
            result, failure = None, None
            try:
                result = function(*arguments)
            except BaseException as error:
                failure = error
            with suppress(RuntimeError):  # the loop was closed: nothing waits for the result
                loop.call_soon_threadsafe(_settle, done, result, failure)

        if self._busy >= self._threads < self._most:
            self._threads += 1
            queue = self._queue

            def work_off() -> None:
                while task := queue.get():
                    task()

            Thread(target=work_off, name="a2c-files", daemon=True).start()
        self._busy += 1
        self._queue.put(work)
        try:
            return await done
        finally:
            self._busy -= 1

    def close(self) -> None:
        """Ends the threads when they have done their work. Others are started if there is more."""
        for _ in range(self._threads):
            self._queue.put(None)
        self._queue, self._threads = SimpleQueue(), 0


def _settle(done: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if done.done():
        return
    if failure:
        done.set_exception(failure)
    else:
        done.set_result(result)


class WriteBehind:
    """Writes into a file, in threads, while the next content comes in. Up to 2 MiB are waiting to be written.

    Each method raises the `OSError` of an earlier write. The file must be a buffered one: closing it waits for a write.
    """

    def __init__(self, file: BinaryIO, threads: FileThreads) -> None:
        self._file = file
        self._threads = threads
        self._waiting: list[bytes] = []
        self._size = 0
        self._writing: asyncio.Future[None] | None = None

    async def write(self, content: bytes) -> None:
        self._waiting.append(content)
        self._size += len(content)
        if self._size >= _AT_ONCE:
            await self._start()

    async def finish(self) -> None:
        """Waits until all is written."""
        await self._start()
        await self._ended()

    async def clear(self) -> None:
        """Empties the file."""
        await self.finish()
        await self._threads.run(lambda: self._file.truncate(self._file.seek(0)))

    async def _start(self) -> None:
        await self._ended()
        contents, self._waiting, self._size = self._waiting, [], 0
        if contents:
            self._writing = asyncio.ensure_future(self._threads.run(self._file.writelines, contents))
            self._writing.add_done_callback(_retrieve)

    async def _ended(self) -> None:
        if self._writing:
            await asyncio.shield(self._writing)
            self._writing = None


def _retrieve(writing: asyncio.Future[None]) -> None:
    """Retrieve the error of a write that nothing waits for, because the file was given up: asyncio would log it."""
    if not writing.cancelled():
        writing.exception()


def read_cached(descriptor: int, size: int, offset: int) -> bytearray | None:
    """Reads a part of a file that the system has in memory; `None` if that would have to wait for a disk."""
    if not hasattr(os, "preadv") or not hasattr(os, "RWF_NOWAIT"):
        return None
    content = bytearray(size)
    try:
        return content if os.preadv(descriptor, [content], offset, os.RWF_NOWAIT) == size else None
    except OSError:  # not in memory, or a file system that does not say
        return None


def keep_freed_memory() -> None:
    """Keep freed memory in this process: call it before large contents pass through.

    The allocator of glibc gives freed memory back to the system at once, until a large piece has been freed. With
    contents that come and go, the system would have to clear hundreds of pages for each of them.
    """
    bytes(_FREED)  # never touched, so it takes no memory itself


# Files that programs keep on this machine, and that only their owner may change.
#
# Another user who can write to one of them decides what runs here, so such a file is refused.


def check_private(*paths: Path) -> None:
    """Raise `NotPrivate` if other users of this machine may write to one of them. A missing file is fine."""
    for path in paths:
        if remedy := remedy_for(path):
            if _is_for_everybody(path):
                raise NotPrivate(f"{path} is for all users of this machine, and is not used; use a folder of your own")
            raise NotPrivate(f"{path} can be changed by others on this machine, and is not used; run: {remedy}")


def _is_for_everybody(path: Path) -> bool:
    """True if others are meant to write to it, such as /tmp or /dev/null: it must not be made private."""
    mode = path.stat().st_mode
    return bool(mode & stat.S_ISVTX) if stat.S_ISDIR(mode) else not stat.S_ISREG(mode)


def remedy_for(path: Path) -> str | None:
    """The command that makes a file private; `None` if it is private, or if the system has no such permissions."""
    if os.name != "posix":
        return None
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    return f"chmod go-w {shlex.quote(str(path))}" if mode & (stat.S_IWGRP | stat.S_IWOTH) else None


def default_folder() -> Path:
    """The folder in which programs of this user keep their state: where the system expects it, or XDG_STATE_HOME."""
    if named := os.environ.get("XDG_STATE_HOME"):
        return Path(named) / _NAME
    older = Path.home() / ".local" / "state" / _NAME
    return older if os.name != "nt" and _PLATFORM != "darwin" else _moved(older)


@cache
def _moved(older: Path) -> Path:
    """The folder of this system, to which the one of earlier versions is moved once."""
    import platformdirs

    folder = Path(platformdirs.user_state_dir(_NAME, appauthor=False))
    if not older.is_dir() or folder.exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        older.rename(folder)
    except OSError as error:  # it is in use, or on another disk
        logger.warning("%s is used still: it could not be moved to %s: %s", older, folder, error.strerror)
        return older
    logger.warning("the state of earlier versions was moved from %s to %s", older, folder)
    return folder


def data_folder() -> Path:
    """The folder in which MCP servers of this user are installed, and have their data."""
    if named := os.environ.get("XDG_DATA_HOME"):
        return Path(named) / _NAME
    if os.name != "nt" and _PLATFORM != "darwin":
        return Path.home() / ".local" / "share" / _NAME
    import platformdirs

    return Path(platformdirs.user_data_dir(_NAME, appauthor=False))


def private_folder(folder: Path, name: str) -> Path:
    """A folder inside the state folder, or inside that of data. Missing folders are made for their owner alone.

    Raises `OSError`, and `NotPrivate` if others may write to it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / name).mkdir(mode=0o700, exist_ok=True)
    check_private(folder, folder / name)
    return folder / name


def lock(descriptor: int) -> bool:
    """Lock an open file for this process, until it is closed. False if another process has it."""
    try:
        if os.name == "nt":
            _lock_on_windows(descriptor)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _lock_on_windows(descriptor: int) -> None:
    """Lock a byte far behind the end: nobody else could read what is locked there."""
    import msvcrt

    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    finally:
        os.lseek(descriptor, position, os.SEEK_SET)


def make_private(descriptor: int) -> None:
    """Let only its owner read and write an open file. On Windows it has the permissions of its folder."""
    if os.name != "nt":
        os.fchmod(descriptor, 0o600)


def open_private(path: Path, flags: int = 0) -> int:
    """Open a file for reading and writing bytes; a new one is its owner's alone. Raises `OSError`."""
    return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | flags, 0o600)


def write_at_start(descriptor: int, content: bytes) -> None:
    """Write over the beginning of an open file. Raises `OSError`."""
    if os.name != "nt":
        os.pwrite(descriptor, content, 0)
    else:
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, content)


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file as a whole or not at all. Raises `OSError`."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # with mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if mode != 0o600:
            Path(draft).chmod(mode)
        _replace(Path(draft), path)
    except BaseException:
        with suppress(OSError):
            Path(draft).unlink()
        raise


def _replace(draft: Path, path: Path) -> None:
    """Rename a file. Windows refuses that while another program has the file open: a reader, or a virus scanner."""
    for pause in _PAUSES if os.name == "nt" else ():
        try:
            draft.replace(path)
        except PermissionError:
            time.sleep(pause)
        else:
            return
    draft.replace(path)


class PrivateFileUnusable(Exception):
    """A private file cannot be read or written."""


class PrivateJSONFile:
    """A JSON object in a file that only its owner can read.

    `folders` must be its owner's alone as well: who may write to the folder of a file can replace the file.
    """

    def __init__(self, path: Path, *folders: Path) -> None:
        self._path = path
        self._folders = folders

    def load(self) -> dict[str, Any]:
        """The object; empty if there is no file. Raises `PrivateFileUnusable`."""
        for path in (*self._folders, self._path):
            if remedy := remedy_for(path):
                raise PrivateFileUnusable(f"{path}: can be changed by others on this machine; run: {remedy}")
        try:
            values = json.loads(self._path.read_text("utf-8"))
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise PrivateFileUnusable(f"{self._path}: cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise PrivateFileUnusable(f"{self._path}: not a JSON object: correct or delete it")
        return values

    def save(self, values: Mapping[str, Any]) -> None:
        """Replace the object. Raises `PrivateFileUnusable`."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(dict(values), indent=2).encode())
        except OSError as error:
            raise PrivateFileUnusable(f"{self._path}: cannot be written: {error.strerror}") from None


@contextmanager
def instance_of(name: str, url: str, folder: Path | None = None) -> Iterator[str]:
    """The instance of this computer at this Server: the secret by which the Server recognises it when it reconnects.

    It is kept in a file that is locked meanwhile. A second process of the same name gets an instance of its own, so
    that the Server refuses it instead of giving it the seat of the first. If nothing can be kept on this machine, the
    instance lasts as long as the process. Raises `NotPrivate` if others may change the file.
    """
    folder, digest = folder or default_folder(), hashlib.sha256(f"{url}\0{name}".encode()).hexdigest()[:32]
    try:
        path = private_folder(folder, "instances") / digest
        check_private(path)
        descriptor = open_private(path)
    except OSError as error:
        logger.warning("nothing can be kept in %s: %s", folder, error.strerror)
        yield secrets.token_urlsafe(32)
        return
    try:
        if not lock(descriptor):
            yield secrets.token_urlsafe(32)
            return
        known = os.read(descriptor, 128).decode("ascii", "replace")
        if not 16 <= len(known) <= 128 or not known.isascii():
            known = secrets.token_urlsafe(32)
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, known.encode())
        yield known
    finally:
        os.close(descriptor)


# Stamps of files, by which changes are noticed without reading the files.

Stamp: TypeAlias = tuple[int, int, int, int]


def stamp(path: Path) -> Stamp | None:
    """The stamp of a file; `None` if it is not there."""
    try:
        return stamp_of(path.stat())
    except OSError:
        return None


def stamp_of(known: os.stat_result) -> Stamp:
    """Return a value that changes with a file. Its modification time can be set, its status change time cannot."""
    return known.st_mtime_ns, known.st_ctime_ns, known.st_ino, known.st_size


def stamps_below(folder: Path, most: int) -> dict[str, Stamp]:
    """The stamps of what is in a folder and its subfolders, by path, of at most so many entries.

    Links are not followed, except those in the folder itself, which may lead to folders elsewhere.
    """
    stamps: dict[str, Stamp] = {}
    rest = [str(folder)]
    while rest:
        path = rest.pop()
        with suppress(OSError), os.scandir(path) as listed:
            for entry in listed:
                if len(stamps) == most:
                    return stamps
                stamps[entry.path] = stamp_of(entry.stat(follow_symlinks=False))
                if entry.is_dir(follow_symlinks=path == str(folder)):
                    rest.append(entry.path)
    return stamps
