"""The values of inputs: from which sources, in which order, and who is notified when one changes."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from a2c_smcp.computer.configuration.definitions import (
    KEYRING_SERVICE,
    CommandFailed,
    Input,
    InputProblem,
    InvalidInput,
    MissingInputs,
    UnknownInput,
    advice,
    check,
    default_of,
    is_ours,
    is_secret,
    published_variable_of,
    variable_of,
)
from a2c_smcp.computer.consent.approval import ask
from a2c_smcp.files import PrivateJSONFile
from a2c_smcp.loops import cancel_once, in_thread
from a2c_smcp.mcp_host.config.servers import CommandInput

logger = logging.getLogger(__name__)

# Values of inputs from outside: the output of a command, run without a shell, and the keyring of this machine.

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


Prompt: TypeAlias = Callable[[Input], Awaitable[str | None] | str | None]
"""Asks the owner for a value. Returns `None` if there is no answer."""
Approve: TypeAlias = Callable[[CommandInput, tuple[str, ...]], Awaitable[bool] | bool]
"""Shows a command to the owner. Only `True` lets it run."""
Storage: TypeAlias = Literal["memory", "file", "keyring"]
Source: TypeAlias = Literal["explicit", "environment", "keyring", "answer", "command", "default"]


@dataclass(frozen=True)
class Resolved:
    """The values of the inputs of a server, and those among them that are secrets."""

    values: Mapping[str, Any] = field(repr=False)
    secrets: frozenset[str] = field(repr=False)


@dataclass(frozen=True)
class InputState:
    """An input as it may be shown: `value` is `None` for a secret. The keyring is not read for this."""

    definition: Input = field(repr=False)
    id: str
    is_secret: bool
    source: Source | None
    value: Any


@dataclass(frozen=True)
class _Value:
    value: Any = field(repr=False)
    source: Source


class Inputs:
    """The values of `${input:id}`.

    The first source that has a value counts: explicit, the environment, the keyring, the owner (for a command: its
    output), the default. Answers of the owner are kept while the process lives; commands run each time, since their
    output may expire. Explicit values come from `values`, from the file `store` and from `set`; `values` win over the
    file. Secrets are never written into the file.
    """

    def __init__(
        self,
        definitions: Iterable[Input] = (),
        *,
        values: Mapping[str, Any] | None = None,
        prompt: Prompt | None = None,
        approve: Approve | None = None,
        store: Path | str | None = None,
        environ: Mapping[str, str] = os.environ,
        keyring: bool = True,
    ) -> None:
        self.definitions = {definition.id: definition for definition in definitions}
        self._prompt, self._approve, self._environ = prompt, approve, environ
        self._keychain = Keychain(enabled=keyring)
        self._store = PrivateJSONFile(Path(store)) if store is not None else None
        self._kept = self._store.load() if self._store else {}
        self._explicit = {**self._kept, **(values or {})}
        self._answers: dict[str, str] = {}
        self._approved: set[tuple[str, ...]] = set()
        self._listeners: list[Callable[[frozenset[str]], None]] = []
        self._asking, self._writing = asyncio.Lock(), asyncio.Lock()
        self._sources = (
            self._from_explicit,
            self._from_environment,
            self._from_keyring,
            self._from_owner,
            _from_default,
        )
        self._distrust_file()

    def define(self, definitions: Iterable[Input]) -> None:
        """Replace all definitions. Listeners are called with those that are new, gone or different."""
        before, after = self.definitions, {definition.id: definition for definition in definitions}
        self.definitions = after
        self._distrust_file()
        self._notify(id_ for id_ in before.keys() | after.keys() if before.get(id_) != after.get(id_))

    def subscribe(self, listener: Callable[[frozenset[str]], None]) -> Callable[[], None]:
        """Call the listener with the ids of changed inputs. Returns a function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def resolve(self, ids: Iterable[str], *, server: str) -> Resolved:
        """The values of these inputs. Raises `UnknownInput`, or `MissingInputs` naming all without a usable value."""
        wanted = sorted(set(ids))
        if unknown := [id_ for id_ in wanted if id_ not in self.definitions]:
            raise UnknownInput(unknown, server)
        values: dict[str, Any] = {}
        secrets: set[str] = set()
        problems: dict[str, InputProblem] = {}
        for definition in [self.definitions[id_] for id_ in wanted]:
            try:
                found = await self._find(definition)
            except (_NotGiven, CommandFailed, InvalidInput) as problem:
                problems[definition.id] = advice(definition, problem)
                continue
            values[definition.id] = found.value
            if found.source == "keyring" or is_secret(definition):
                secrets.add(str(found.value))
        if problems:
            raise MissingInputs(problems, server)
        return Resolved(values, frozenset(secrets))

    async def set(self, id_: str, value: Any, *, keep: bool = False) -> Storage:
        """Set a value; with `keep`, also for later runs: a secret in the keyring, another value in the file.

        Returns where it is kept: in memory if nothing else is possible. Raises `UnknownInput`, `InvalidInput` or
        `PrivateFileUnusable`.
        """
        definition = self._defined(id_)
        check(definition, value)
        async with self._writing:
            is_new = self._explicit.get(id_, self._answers.get(id_)) != value
            self._explicit[id_] = value
            self._answers.pop(id_, None)
            place = await self._keep(id_, value) if keep else "memory"
        if is_new:
            self._notify([id_])
        return place

    async def clear(self, id_: str) -> bool:
        """Forget a value wherever it is kept. Returns whether there was one. Raises `UnknownInput`."""
        self._defined(id_)
        async with self._writing:
            held = [values.pop(id_, None) is not None for values in (self._explicit, self._answers)]
            if self._kept.pop(id_, None) is not None:
                held.append(True)
                await self._save()
            held.append(await self._keychain.delete(id_))
        if any(held):
            self._notify([id_])
        return any(held)

    def list(self) -> list[InputState]:
        """Every input, with the value that is known without asking the owner or the keyring, unless it is a secret."""
        return [self._state(definition) for definition in self.definitions.values()]

    def _state(self, definition: Input) -> InputState:
        known = (self._from_explicit, self._from_environment, self._from_answers, _from_default)
        found = next((found for source in known if (found := source(definition))), None)
        is_secret = self._hides(definition.id)
        if found is None:
            return InputState(definition, definition.id, is_secret, None, None)
        return InputState(definition, definition.id, is_secret, found.source, None if is_secret else found.value)

    async def _find(self, definition: Input) -> _Value:
        for source in self._sources:
            found = source(definition)
            found = await found if isinstance(found, Awaitable) else found
            if found is not None:
                check(definition, found.value, f"its value ({found.source}) ")
                return found
        raise _NotGiven

    def _from_explicit(self, definition: Input) -> _Value | None:
        value = self._explicit.get(definition.id)
        return _Value(value, "explicit") if value is not None else None

    def _from_environment(self, definition: Input) -> _Value | None:
        value = self._environ.get(variable_of(definition.id)) or self._from_published_variable(definition.id)
        return _Value(value, "environment") if value else None

    def _from_published_variable(self, id_: str) -> str | None:
        """Of the variable that the published package reads, unless it stands for several inputs."""
        variable = published_variable_of(id_)
        is_shared = sum(published_variable_of(other) == variable for other in self.definitions) > 1
        return None if is_shared else self._environ.get(variable)

    def _from_answers(self, definition: Input) -> _Value | None:
        value = self._answers.get(definition.id)
        return _Value(value, "answer") if value is not None else None

    async def _from_keyring(self, definition: Input) -> _Value | None:
        value = await self._keychain.get(definition.id)
        return _Value(value, "keyring") if value is not None else None

    async def _from_owner(self, definition: Input) -> _Value | None:
        if isinstance(definition, CommandInput):
            return _Value(await self._run(definition), "command")
        async with self._asking:  # one question at a time, and none twice
            if (answered := self._from_answers(definition)) or self._prompt is None:
                return answered
            answer = await ask(self._prompt, definition)
            if answer is None:
                return None
            check(definition, answer, "the answer ")
            self._answers[definition.id] = answer
        return _Value(answer, "answer")

    async def _run(self, definition: CommandInput) -> str:
        argv = argv_of(definition.command, definition.args)
        async with self._asking:
            if argv not in self._approved:
                if self._approve is None:
                    raise CommandFailed("its command must be approved first, and there is nobody to ask")
                if await ask(self._approve, definition, argv) is not True:
                    raise CommandFailed("its command was not approved")
                self._approved.add(argv)
        return await run(argv, environ={name: value for name, value in os.environ.items() if not is_ours(name)})

    async def _keep(self, id_: str, value: Any) -> Storage:
        if self._hides(id_):
            return "keyring" if await self._keychain.set(id_, str(value)) else "memory"
        if self._store is None:
            return "memory"
        self._kept[id_] = value
        await self._save()
        return "file"

    async def _save(self) -> None:
        if self._store:
            await asyncio.to_thread(self._store.save, dict(self._kept))

    def _hides(self, id_: str) -> bool:
        return id_ in self.definitions and is_secret(self.definitions[id_])

    def _distrust_file(self) -> None:
        """Do not use a value in the file if its input has become a secret: it should not be in a file."""
        for id_ in [id_ for id_ in self._kept if self._hides(id_)]:
            if self._explicit.get(id_) == self._kept.pop(id_):
                self._explicit.pop(id_, None)

    def _defined(self, id_: str) -> Input:
        if id_ not in self.definitions:
            raise UnknownInput([id_])
        return self.definitions[id_]

    def _notify(self, ids: Iterable[str]) -> None:
        if changed := frozenset(ids):
            for listener in tuple(self._listeners):
                listener(changed)


class _NotGiven(Exception):
    def __str__(self) -> str:
        return "it has no value"


def _from_default(definition: Input) -> _Value | None:
    default = default_of(definition)
    return _Value(default, "default") if default is not None else None
