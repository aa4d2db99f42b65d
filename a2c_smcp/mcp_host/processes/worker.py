"""A process that answers one request at a time, is killed when it takes too long, and replaced when it is gone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress

__all__ = ["ENVIRONMENT", "LARGEST_ANSWER", "Worker", "WorkerDied", "WorkerTooSlow", "how_it_ended"]

LARGEST_ANSWER = 16 * 1024 * 1024
ENVIRONMENT = {name: value for name, value in os.environ.items() if name == "SYSTEMROOT"}
"""What a worker gets of ours: nothing, but where Windows is, without which no program runs there."""

_STARTED_WITHIN = 10.0
_ENDED_WITHIN = 0.5
_KILLED_WITHIN = 5.0


class WorkerDied(Exception):
    """The process ended instead of answering."""


class WorkerTooSlow(Exception):
    """The process was killed for taking too long."""


class Worker:
    """Requests and answers are bytes, sent with their length in four bytes before them."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._argv = tuple(argv)
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Of the process that is warm; `None` before the first request and after `close`."""
        return self._process.pid if self._process else None

    async def ask(self, request: bytes, *, limit: float) -> bytes:
        """The answer. Waiting for the process to start, and for earlier requests, is not counted."""
        async with self._turn:
            process = await self._started()
            try:
                async with asyncio.timeout(limit):
                    return await _exchange(process, request)
            except TimeoutError:
                _kill(process)
                await self._end()
                raise WorkerTooSlow(f"took longer than {limit:g} s") from None
            except (OSError, EOFError):
                await self._end()
                raise WorkerDied(how_it_ended(process.returncode)) from None
            except asyncio.CancelledError:  # an answer may still come, which nobody would expect
                _kill(process)
                await self._end()
                raise

    async def close(self) -> None:
        async with self._turn:
            await self._end()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process and self._process.returncode is not None:
            await self._end()
        if self._process is None:
            self._process = await _start(self._argv)
        return self._process

    async def _end(self) -> None:
        """Without more requests it ends by itself, as it should, or else by force."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        for limit in (_ENDED_WITHIN, _KILLED_WITHIN):
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await process.wait()
                    return
            _kill(process)


async def _start(argv: Sequence[str]) -> asyncio.subprocess.Process:
    try:
        async with asyncio.timeout(_STARTED_WITHIN):
            return await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=ENVIRONMENT,
                cwd=os.path.sep,
                start_new_session=True,
            )
    except OSError as error:
        raise WorkerDied(f"could not be started: {error.strerror}") from None


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()


async def _exchange(process: asyncio.subprocess.Process, request: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.writelines((len(request).to_bytes(4, "big"), request))
    await process.stdin.drain()
    size = int.from_bytes(await process.stdout.readexactly(4), "big")
    if size > LARGEST_ANSWER:
        raise EOFError
    return await process.stdout.readexactly(size)


def how_it_ended(code: int | None) -> str:
    """How a process ended, as the end of a sentence."""
    return f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
