"""A worker process answers one request at a time, is killed if it takes too long, and replaced when it is gone."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

LARGEST_ANSWER = 16 * 1024 * 1024
_ENVIRONMENT = {name: value for name, value in os.environ.items() if name == "SYSTEMROOT"}
"""All that a worker gets of our environment: the folder of Windows, without which no program runs there."""

_STARTED_WITHIN = 10.0
_ENDED_WITHIN = 0.5
_KILLED_WITHIN = 5.0


def worker_command(module: Path) -> list[str]:
    """Return the command of a worker that answers with the module of this path; see `worker_program`."""
    return [sys.executable, "-I", str(Path(__file__).with_name("worker_program.py")), str(module)]


class WorkerDied(Exception):
    """The process ended instead of answering. The message says how, as the end of a sentence."""


class WorkerNotStarted(WorkerDied):
    """No process could be started, which says nothing about the request."""


class WorkerTooSlow(Exception):
    """The process was killed because it took too long. The message is the end of a sentence."""


class Worker:
    """One process, started with the first request. Requests and answers are bytes; see `worker_program`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The id of the running process; `None` before the first request and after `close`."""
        return self._process.pid if self._process else None

    async def ask(self, request: bytes, *, limit: float) -> bytes:
        """Return the answer. `limit` does not count the start of the process, nor earlier requests.

        Raises `WorkerDied`, `WorkerNotStarted` or `WorkerTooSlow`.
        """
        async with self._turn:
            if self._process is None or self._process.returncode is not None:
                await self._end()
                self._process = await _start(self._command)
                try:
                    await self._answered(self._process, b"", _STARTED_WITHIN)  # the worker is ready
                except (WorkerDied, WorkerTooSlow):
                    raise WorkerNotStarted("could not be started") from None
            return await self._answered(self._process, len(request).to_bytes(4, "big") + request, limit)

    async def close(self) -> None:
        async with self._turn:
            await self._end()

    async def _answered(self, process: asyncio.subprocess.Process, data: bytes, limit: float) -> bytes:
        """Write the data and read one answer. A process that fails to answer is ended."""
        try:
            async with asyncio.timeout(limit):
                return await _exchange(process, data)
        except TimeoutError:
            _kill(process)
            await self._end()
            raise WorkerTooSlow(f"took longer than {limit:g} s") from None
        except (OSError, EOFError):
            await self._end()
            code = process.returncode or 0
            raise WorkerDied(f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}") from None
        except asyncio.CancelledError:  # a later request must not read the answer to this one
            _kill(process)
            await self._end()
            raise

    async def _end(self) -> None:
        """Close its input, at which it ends by itself; kill it if it does not."""
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


async def _start(command: Sequence[str]) -> asyncio.subprocess.Process:
    try:
        async with asyncio.timeout(_STARTED_WITHIN):
            return await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=_ENVIRONMENT,
                cwd=os.path.sep,
                start_new_session=True,
            )
    except OSError as error:
        raise WorkerNotStarted(f"could not be started: {error.strerror}") from None
    except NotImplementedError:
        raise WorkerNotStarted("could not be started: this event loop starts no processes") from None


def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()


async def _exchange(process: asyncio.subprocess.Process, data: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(data)
    await process.stdin.drain()
    size = int.from_bytes(await process.stdout.readexactly(4), "big")
    if size > LARGEST_ANSWER:
        raise EOFError
    return await process.stdout.readexactly(size)
