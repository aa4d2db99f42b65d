"""Values of inputs from outside: the output of a command, run without a shell, and the keyring of this machine."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from a2c_smcp.computer.inputs.definitions import KEYRING_SERVICE, CommandFailed
from a2c_smcp.loops import cancel_once, in_thread

__all__ = ["Keychain", "argv_of", "backend", "run"]

logger = logging.getLogger(__name__)

_COMMAND_TIMEOUT = 30.0
_KILL_TIMEOUT = 2.0
_LARGEST_OUTPUT = 64 * 1024  # bytes
_KEYRING_TIMEOUT = 15.0  # it may be asking its owner to unlock it


def argv_of(command: str, args: Mapping[str, str] | None) -> tuple[str, ...]:
    """The words of the command, then each pair of `args` as `--key value`."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise CommandFailed(f"its command cannot be split into words: {error}") from None
    if not words:
        raise CommandFailed("its command is empty")
    return (*words, *(word for key, value in (args or {}).items() for word in (f"--{key}", value)))


async def run(argv: tuple[str, ...], *, environ: Mapping[str, str], limit: float = _COMMAND_TIMEOUT) -> str:
    """The output of a command without the newline at its end. Raises `CommandFailed`, which quotes no output."""
    name = argv[0]
    output, code = await cancel_once(_output_and_code(argv, environ, limit))
    if code:
        raise CommandFailed(f"its command {name!r} failed with exit code {code}: run it by hand to see why")
    try:
        value = output.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise CommandFailed(f"what its command {name!r} prints is not UTF-8 text") from None
    if not value:
        raise CommandFailed(f"its command {name!r} printed nothing")
    return value


async def _output_and_code(argv: tuple[str, ...], environ: Mapping[str, str], limit: float) -> tuple[bytes, int]:
    process = await _start(argv, environ)
    try:
        async with asyncio.timeout(limit):
            return await _read(process), await process.wait()
    except TimeoutError:
        raise CommandFailed(f"its command {argv[0]!r} took longer than {limit:g} s") from None
    finally:
        await _end(process)


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
    while chunk := await process.stdout.read(_LARGEST_OUTPUT):
        output += chunk
        if len(output) > _LARGEST_OUTPUT:
            raise CommandFailed(f"its command printed more than {_LARGEST_OUTPUT} bytes")
    return output


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the command and everything it started, unless it has ended by itself."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(_KILL_TIMEOUT):
            await process.wait()


class Keychain:
    """Secrets by input id, in the keyring of this machine. Without a keyring it is empty and keeps nothing.

    `get` returns `None` if there is no such secret; `set` and `delete` return whether they succeeded.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled

    async def get(self, id_: str) -> str | None:
        value = await self._ask(lambda keyring: keyring.get_password(KEYRING_SERVICE, id_))
        return value if isinstance(value, str) else None

    async def set(self, id_: str, value: str) -> bool:
        """Keep a secret. It is read back: a keyring that is switched off takes everything, and keeps nothing."""

        def keep(keyring: Any) -> bool:
            keyring.set_password(KEYRING_SERVICE, id_, value)
            return bool(keyring.get_password(KEYRING_SERVICE, id_) == value)

        return await self._ask(keep) is True

    async def delete(self, id_: str) -> bool:
        return await self._ask(lambda keyring: keyring.delete_password(KEYRING_SERVICE, id_) or True) is True

    async def _ask(self, question: Callable[[Any], object]) -> object:
        if not self._enabled:
            return None
        try:
            async with asyncio.timeout(_KEYRING_TIMEOUT):
                return await in_thread(_answer, question)
        except TimeoutError:
            self._enabled = False
            logger.warning("the keyring did not answer within %g s and is left alone from now on", _KEYRING_TIMEOUT)
            return None


def backend() -> str | None:
    """The keyring of this machine, such as `keyring.backends.macOS.Keyring`; `None` if it has none."""
    found = _answer(lambda keyring: keyring.get_keyring())
    is_usable = found is not None and getattr(found, "priority", 0) > 0
    return f"{type(found).__module__}.{type(found).__qualname__}" if is_usable else None


def _answer(question: Callable[[Any], object]) -> object:
    """Called in a thread: loading the keyring takes a while."""
    try:
        import keyring
        from keyring.errors import NoKeyringError, PasswordDeleteError
    except ImportError:
        return None
    try:
        return question(keyring)
    except (NoKeyringError, PasswordDeleteError):
        return None
    except Exception as error:  # backends are plug-ins, and raise anything
        logger.warning("the keyring failed with %s, continuing without it", type(error).__qualname__)
        return None
