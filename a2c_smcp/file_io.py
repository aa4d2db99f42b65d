"""Files beside an event loop. What the system has in memory is read at once; a few threads do what may wait for a disk.

To hand a chunk to a thread and back costs as much as the chunk itself. So chunks are written several at a time, while
the next ones come in.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, BinaryIO, TypeAlias, TypeVar

__all__ = ["FileThreads", "WriteBehind", "keep_freed_memory", "read_cached"]

Result = TypeVar("Result")
_Work: TypeAlias = Callable[[], None]

_AT_ONCE = 1024 * 1024
_FREED = 8 * 1024 * 1024


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
            Thread(target=_work_off, args=(self._queue,), name="a2c-files", daemon=True).start()
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


def _work_off(queue: SimpleQueue[_Work | None]) -> None:
    while work := queue.get():
        work()


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
        await self._threads.run(_truncate, self._file)

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
    """The file may be given up, and closed, before anybody waits for this: asyncio would log the error."""
    if not writing.cancelled():
        writing.exception()


def _truncate(file: BinaryIO) -> None:
    file.seek(0)
    file.truncate()


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
    """To be called before large contents pass through.

    The allocator of glibc gives freed memory back to the system at once, until a large piece has been freed. With
    contents that come and go, the system would have to clear hundreds of pages for each of them.
    """
    bytes(_FREED)  # never touched, so it takes no memory itself
