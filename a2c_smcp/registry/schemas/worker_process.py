"""Checks of arguments in a worker process, which is killed when a check takes too long.

One process per program, started with the first check and replaced when it is gone. Checks wait for each other (`turn`):
the time of a check counts from when it is its turn. The process is killed by a timer in a thread; the blocked reader
then sees the end of its pipe. A forked child starts a process of its own: the pipes belong to its parent.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock, Timer
from typing import IO, Any

from a2c_smcp.mcp_host.processes.worker import ENVIRONMENT, worker_command

__all__ = ["CheckFailed", "CheckImpossible", "Checks", "checks"]

_COMMAND = worker_command(Path(__file__).with_name("worker.py"))
_STARTED_WITHIN = 15.0


class CheckFailed(Exception):
    """The process was killed or died instead of answering. The message is the end of a sentence."""


class CheckImpossible(CheckFailed):
    """No process could be started, which says nothing about the schema."""


class Checks:
    """The worker process. All methods block."""

    def __init__(self) -> None:
        self.turn = Lock()
        self.thread = ThreadPoolExecutor(1, "a2c-schema-checks")
        """For async callers: their checks do not fill the thread pool of the event loop."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def ask(self, letter: bytes, schema: bytes, arguments: bytes, *, limit: float) -> Any:
        """The worker's answer, within `limit` seconds after the process has started. Call it with `turn` held."""
        process = self._started()
        try:
            return _exchange(process, b"".join((letter, len(schema).to_bytes(4, "big"), schema, arguments)), limit)
        except CheckFailed:
            self._end()
            raise

    def close(self) -> None:
        with self.turn:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            try:
                self._process = subprocess.Popen(  # noqa: S603
                    _COMMAND,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=ENVIRONMENT,
                    cwd=os.path.sep,
                    start_new_session=True,
                )
            except OSError as error:
                raise CheckImpossible(f"has no process to run in: {error.strerror}") from None
            try:
                _read(self._process, _STARTED_WITHIN)
            except CheckFailed:
                self._end()
                raise CheckImpossible("has no process to run in: it did not start") from None
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]  # both are pipes
            process.wait()


def _exchange(process: subprocess.Popen[bytes], request: bytes, limit: float) -> Any:
    assert process.stdin is not None
    with suppress(OSError):  # it is gone: reading tells how
        process.stdin.write(len(request).to_bytes(4, "big") + request)
        process.stdin.flush()
    return json.loads(_read(process, limit))


def _read(process: subprocess.Popen[bytes], limit: float) -> bytes:
    assert process.stdout is not None
    timer = Timer(limit, process.kill)
    timer.daemon = True
    timer.start()
    try:
        size = int.from_bytes(_exactly(process.stdout, 4), "big")
        return _exactly(process.stdout, size)
    except EOFError:
        is_late = timer.finished.is_set()
        raise CheckFailed(f"took longer than {limit:g} s" if is_late else "ran out of memory, or crashed") from None
    finally:
        timer.cancel()


def _exactly(pipe: IO[bytes], size: int) -> bytes:
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


_current = Checks()


def checks() -> Checks:
    """The worker process of this program."""
    return _current


def _renew() -> None:
    global _current
    _current = Checks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
atexit.register(lambda: checks().close())
