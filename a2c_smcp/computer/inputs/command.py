"""Commands whose output is the value of an input: how they are read, and how they are run. No shell is involved."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Mapping
from contextlib import suppress

from a2c_smcp.computer.inputs.errors import CommandFailed

__all__ = ["argv_of", "run"]

LIMIT = 30.0
"""How long a command may take, in seconds."""

LARGEST = 64 * 1024
"""How much it may print, in bytes."""

_KILLED_WITHIN = 2.0


def argv_of(command: str, args: Mapping[str, str] | None) -> tuple[str, ...]:
    """The words of the command, then each pair of `args` as `--key value`."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise CommandFailed(f"its command cannot be split into words: {error}") from None
    if not words:
        raise CommandFailed("its command is empty")
    return (*words, *(word for key, value in (args or {}).items() for word in (f"--{key}", value)))


async def run(argv: tuple[str, ...], *, environ: Mapping[str, str], limit: float = LIMIT) -> str:
    """What the command prints, without the newline at its end. Raises `CommandFailed`, which quotes no output."""
    name = argv[0]
    process = await _start(argv, environ)
    try:
        async with asyncio.timeout(limit):
            output = await _read(process)
            code = await process.wait()
    except TimeoutError:
        raise CommandFailed(f"its command {name!r} took longer than {limit:g} s") from None
    finally:
        await _end(process)
    if code:
        raise CommandFailed(f"its command {name!r} failed with exit code {code}: run it by hand to see why")
    try:
        value = output.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise CommandFailed(f"what its command {name!r} prints is not UTF-8 text") from None
    if not value:
        raise CommandFailed(f"its command {name!r} printed nothing")
    return value


async def _start(argv: tuple[str, ...], environ: Mapping[str, str]) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(environ),
            start_new_session=True,
        )
    except OSError as error:
        raise CommandFailed(f"its command {argv[0]!r} cannot be started: {error.strerror}") from None
    except ValueError:  # a null character
        raise CommandFailed(f"its command {argv[0]!r} cannot be started") from None


async def _read(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    output = b""
    while chunk := await process.stdout.read(LARGEST):
        output += chunk
        if len(output) > LARGEST:
            raise CommandFailed(f"its command printed more than {LARGEST} bytes")
    return output


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ends the command and everything it started, unless it has ended by itself."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(_KILLED_WITHIN):
            await process.wait()
