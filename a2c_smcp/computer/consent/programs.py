"""A scanner's definition, and its program: a Python function, or a command that runs once for each question.

It is defined in a configuration file, on the command line or in Python. In a file it is an entry of `scanners`, an
object; elsewhere it may also be one text: `module:function`, `file.py:function`, or a command with its arguments.

Both get the same JSON object and answer with one. A command reads it from its standard input and writes its answer to
its standard output. It runs without a shell, with the harmless variables of our environment, in a process that ends
with us (`mcp_host/processes`), and is killed at its deadline. A function may be async. A plain one runs in a thread,
which cannot be ended: one that hangs keeps its place among those that may run at the same time.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import os
import re
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeAlias

from pydantic import Field, ValidationError

from a2c_smcp.computer.secrets.replace import masked_server
from a2c_smcp.errors import ConfigError, SMCPError
from a2c_smcp.loops import in_thread, start_in_thread_async
from a2c_smcp.mcp_host.config.fields import FieldContent, NonEmpty, Seconds
from a2c_smcp.mcp_host.config.inputs import Fault, StrictModel, config_error, faults_of
from a2c_smcp.mcp_host.limits import LARGE, is_within
from a2c_smcp.mcp_host.processes.environment import child_environment, find_command, why_not_found
from a2c_smcp.mcp_host.processes.guard import GuardedProcess, ProcessGuard

When: TypeAlias = Literal["before", "after"]

_FUNCTION = re.compile(r"(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|.+\.py):[A-Za-z_]\w*")
"""`module:function` or `file.py:function`."""
_BOTH: tuple[When, ...] = ("before", "after")
_DEADLINE, _LONGEST = 10.0, 600.0


class ScannerConfig(StrictModel):
    """A scanner: a `function` or a `command`. `when` it is asked, and how many seconds it has for an answer."""

    name: Annotated[NonEmpty | None, FieldContent.NAME] = None
    function: Annotated[NonEmpty | None, FieldContent.NAME] = None
    command: Annotated[NonEmpty | None, FieldContent.COMMAND] = None
    args: Annotated[list[str], FieldContent.ARGUMENTS] = Field(default_factory=list)
    when: Annotated[list[When], FieldContent.SETTING] = Field(default_factory=lambda: [*_BOTH], min_length=1)
    deadline: Annotated[Seconds, FieldContent.SETTING] = _DEADLINE

    @property
    def shown(self) -> str:
        """The name in logs and errors."""
        return self.name or self.function or (self.command or "").rpartition("/")[2]


def parse_scanner(data: object) -> ScannerConfig:
    """The model of a scanner, written as an object or as one text. Raises `ConfigError`, which quotes no value."""
    fields = _of_text(data) if isinstance(data, str) else data
    if not isinstance(fields, Mapping):
        raise config_error("scanner", [((), "must be an object, or text: module:function, or a command")])
    try:
        config = ScannerConfig.model_validate(dict(fields))
    except ValidationError as error:
        raise config_error("scanner", faults_of(error)) from None
    if faults := _faults(config):
        raise config_error("scanner", faults)
    return config


def _of_text(text: str) -> dict[str, Any]:
    if _FUNCTION.fullmatch(text):
        return {"function": text}
    try:
        command, *args = shlex.split(text)
    except ValueError:
        raise ConfigError("its command cannot be read: a quotation mark is missing", subject="scanner") from None
    return {"command": command, "args": args}


def _faults(config: ScannerConfig) -> list[Fault]:
    faults: list[Fault] = []
    if (config.function is None) == (config.command is None):
        faults.append((("function",), "either a function or a command must be given"))
    if config.function is not None and not _FUNCTION.fullmatch(config.function):
        faults.append((("function",), 'must be like "module:function" or "file.py:function"'))
    if config.function is not None and config.args:
        faults.append((("args",), "belong to a command"))
    if config.deadline > _LONGEST:
        faults.append((("deadline",), f"must be at most {_LONGEST:g} seconds"))
    if config.model_extra:  # a misspelt "when" would let calls pass unchecked
        faults += [((name,), "there is no such field") for name in config.model_extra]
    return faults


def shown_scanner(config: ScannerConfig) -> dict[str, Any]:
    """The entry as its owner is shown it, without secrets in the arguments."""
    data = config.model_dump(mode="json", exclude_defaults=True)
    if config.command is None:
        return data
    masked = masked_server({"server_parameters": {"command": config.command, "args": config.args}})
    return {**data, **{name: value for name, value in masked["server_parameters"].items() if name in data}}


_MOST_AT_ONCE = 16
_LARGEST = 64 * 1024 * 1024
"""Bytes of an answer: a result has 16 MiB at the most, and JSON may need a few bytes for one."""
_CHUNK = 256 * 1024
_STDERR_KEPT = 4000
_TERM, _END_LIMIT = 0.5, 3.0


class ProgramFailed(Exception):
    """A scanner gave no answer that can be used. The message is for its owner."""


class ScannerProgram(Protocol):
    """Answers one question. Raises `ProgramFailed`; the caller sets the deadline, and cancels."""

    async def ask(self, question: dict[str, Any]) -> Any: ...


class FunctionProgram:
    def __init__(self, function: Callable[[dict[str, Any]], Any]) -> None:
        self._function = function
        self._places = asyncio.Semaphore(_MOST_AT_ONCE)

    async def ask(self, question: dict[str, Any]) -> Any:
        copied = json.loads(await _written(question))  # what the function does to its copy has no effect
        try:
            answer = await self._called(copied)
            return {} if answer is None else json.loads(await _written(answer))
        except Exception as error:
            raise ProgramFailed(f"{type(error).__name__}: {error}") from error

    async def _called(self, question: dict[str, Any]) -> Any:
        if iscoroutinefunction(self._function):
            return await self._function(question)
        await self._places.acquire()
        try:
            running = start_in_thread_async(self._function, question)
        except BaseException:
            self._places.release()
            raise
        running.add_done_callback(self._ended)
        answer = await asyncio.shield(running)
        return await answer if isawaitable(answer) else answer

    def _ended(self, running: asyncio.Future[Any]) -> None:
        self._places.release()
        running.exception()  # retrieved, or asyncio logs it: nothing waits for it after the deadline


class CommandProgram:
    """Runs the program at `path`."""

    def __init__(self, path: str, argv: list[str], guard: ProcessGuard) -> None:
        self._path, self._argv, self._guard = path, argv, guard
        self._places = asyncio.Semaphore(_MOST_AT_ONCE)

    async def ask(self, question: dict[str, Any]) -> Any:
        async with self._places:
            answer = await self._run((await _written(question)).encode())
        try:
            return json.loads(answer)
        except (ValueError, RecursionError):
            raise ProgramFailed("its answer is not JSON") from None

    async def _run(self, question: bytes) -> bytes:
        environment = child_environment(os.environ, None)
        try:
            process = await self._guard.launch(self._path, self._argv, environment, os.getcwd())  # noqa: PTH109
        except SMCPError as error:
            raise ProgramFailed(error.message) from None
        try:
            return await _exchange(process, question)
        finally:
            ending = asyncio.ensure_future(process.end(grace=0.0, term=_TERM, limit=_END_LIMIT))
            await asyncio.shield(ending)


async def _written(value: Any) -> str:
    """As JSON. A large one is written in a thread, which does not hold the event loop."""
    write = partial(json.dumps, allow_nan=False)
    return write(value) if is_within(value, LARGE) else await in_thread(write, value)


async def _exchange(process: GuardedProcess, question: bytes) -> bytes:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_write(process, question))
        said = tasks.create_task(_last_words(process))
        answer = tasks.create_task(_program_answer(process))
        await process.exited.wait()
    if process.exit_code != 0:
        words = said.result().decode("utf-8", "replace").strip()
        raise ProgramFailed(f"it ended with {process.exit_code}" + (f": {words}" if words else ""))
    if (found := answer.result()) is None:
        raise ProgramFailed(f"its answer has more than {_LARGEST} bytes")
    return found


async def _write(process: GuardedProcess, question: bytes) -> None:
    try:
        process.stdin.write(question)
        await process.stdin.drain()
    except OSError:  # it need not read the question to answer
        return
    finally:
        process.stdin.close()


async def _program_answer(process: GuardedProcess) -> bytes | None:
    """All that it writes; `None` if that is too much."""
    found, size = [], 0
    while data := await process.stdout.read(_CHUNK):
        size += len(data)
        if size <= _LARGEST:
            found.append(data)
    return b"".join(found) if size <= _LARGEST else None


async def _last_words(process: GuardedProcess) -> bytes:
    kept = b""
    while data := await process.stderr.read(_CHUNK):
        kept = (kept + data)[-_STDERR_KEPT:]
    return kept


def program_of(config: ScannerConfig, guard: ProcessGuard) -> ScannerProgram:
    """Return the program of this scanner. Raises `ConfigError` if there is no such function or command."""
    if config.function is not None:
        return FunctionProgram(_imported(config.function))
    assert config.command is not None
    environment = child_environment(os.environ, None)
    path = find_command(config.command, os.getcwd(), environment)  # noqa: PTH109
    if path is None:
        raise ConfigError(f"{config.command!r} {why_not_found(config.command)}", subject=f"scanner {config.shown!r}")
    return CommandProgram(path, [config.command, *config.args], guard)


def _imported(place: str) -> Callable[[dict[str, Any]], Any]:
    """The function at `module:function` or `file.py:function`."""
    module_name, _, name = place.rpartition(":")
    try:
        module = _loaded(Path(module_name)) if module_name.endswith(".py") else importlib.import_module(module_name)
        function = getattr(module, name)
    except Exception as error:
        raise ConfigError(
            f"cannot be imported: {type(error).__name__}: {error}", subject=f"scanner {place!r}"
        ) from error
    if not callable(function):
        raise ConfigError("is not a function", subject=f"scanner {place!r}")
    found: Callable[[dict[str, Any]], Any] = function
    return found


def _loaded(file: Path) -> Any:
    specification = importlib.util.spec_from_file_location(f"a2c_scanner_{file.stem}", file.absolute())
    if specification is None or specification.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
