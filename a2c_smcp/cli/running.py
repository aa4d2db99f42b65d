"""Work of a command that Ctrl-C stops, and commands that are kept running: `supervise`."""

from __future__ import annotations

import asyncio
import codecs
import logging
import os
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from a2c_smcp.cli.logs import write_the_rest
from a2c_smcp.cli.terminal import Terminal
from a2c_smcp.loops import stop_on_signals

WRONG_USE = 2
"""The exit code of a command that cannot work as it is called."""
LONGEST_PAUSE = 300.0
END_TIME = 30.0
_FIRST_PAUSE, _STABLE = 1.0, 60.0
_LOG_SIZE, _LOGS = 1024 * 1024, 5


async def unless_stopped(work: Coroutine[Any, Any, None], terminal: Terminal) -> bool:
    """Do the work; return whether a signal stopped it. The first signal cancels the work, a second one exits."""
    stop = stop_on_signals()
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    for task in (stopping, working):
        task.cancel()
    try:
        await asyncio.wait([working])
    except asyncio.CancelledError:
        # Exit without waiting for tasks or for a Server that does not answer.
        terminal.take_away()
        sys.stdout.flush()
        write_the_rest()
        os._exit(1)
    if not working.cancelled():
        working.result()
    return working.cancelled()


async def supervise(
    command: Sequence[str], log: Path, environ: Mapping[str, str], *, first_pause: float = _FIRST_PAUSE
) -> int:
    """Run a command until it ends well, or a signal comes, and again with growing pauses after a crash.

    Return its last exit code. What it prints is kept in the log, in at most six files of a mebibyte.
    """
    stopping, pause = asyncio.ensure_future(stop_on_signals().wait()), first_pause
    handler = RotatingFileHandler(log, maxBytes=_LOG_SIZE, backupCount=_LOGS, encoding="utf-8")
    handler.terminator = ""
    try:
        while True:
            began = time.monotonic()
            code = await _run_once(command, environ, handler, stopping)
            if stopping.done() or code in (0, WRONG_USE):
                return 0 if stopping.done() else code
            pause = first_pause if time.monotonic() - began >= _STABLE else pause
            _log(handler, f"it ended with code {code}, and is started again in {pause:g} s\n")
            await asyncio.wait([stopping], timeout=pause)
            pause = min(2 * pause, LONGEST_PAUSE)
    finally:
        stopping.cancel()
        handler.close()


async def _run_once(
    command: Sequence[str], environ: Mapping[str, str], handler: RotatingFileHandler, stopping: asyncio.Future[Any]
) -> int:
    if stopping.done():
        return 0
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(environ),
    )
    assert process.stdout
    reading = asyncio.ensure_future(_keep(process.stdout, handler))
    ending = asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait([ending, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            process.terminate()
            await asyncio.wait([ending], timeout=END_TIME)
    finally:
        if not ending.done():
            process.kill()
        code = await ending
        await asyncio.wait([reading], timeout=1)
        reading.cancel()
    return code


async def _keep(output: asyncio.StreamReader, handler: RotatingFileHandler) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while chunk := await output.read(65536):
        _log(handler, decoder.decode(chunk))


def _log(handler: RotatingFileHandler, text: str) -> None:
    handler.emit(logging.makeLogRecord({"msg": text}))
