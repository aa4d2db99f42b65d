"""The check of a call's arguments against the tool's schema, and the list of faults.

Both sides may be hostile: a schema whose references multiply or whose patterns are endless, and arguments with a
million faults or endless nesting. Each could make the validator use unlimited time or memory. So the cost of a schema
is found out before it is compiled (`cost.py`). A linear one is checked in this process, within a microsecond; any
other, and a check that takes longer than a moment, is left to a worker process that can be killed (`worker.py`). A
schema that takes too long even there is refused from then on: its tool cannot be called.

The worker process belongs to an event loop in a thread of its own, so blocking and async callers use it alike. Checks
wait for each other; the time of a check counts from when it is its turn. A forked child has a worker process of its
own: the pipes belong to its parent.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import threading
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from jsonschema_rs import FancyRegexOptions, ReferencingError, RegexOptions, Validator

from a2c_smcp.errors import TooLarge
from a2c_smcp.loops import BackgroundLoop
from a2c_smcp.mcp_host.processes.worker import Worker, WorkerDied, WorkerNotStarted, WorkerTooSlow, worker_command
from a2c_smcp.registry.schemas.cost import schema_cost
from a2c_smcp.registry.schemas.worker import Misfit, compiled, first_line, fits, misfits

MAX_WORK = 100_000_000
"""Cost times values. Above it, arguments are not checked here: the server will check them."""
MAX_WORK_HERE = 1_000_000
"""Above it, the worker process does the check: some 20 ms."""
MAX_EXPLAINED = 50_000
"""Above it, faults are not listed: that takes far more time and memory than a yes or no."""
MAX_DEPTH = 200
CHECKED_WITHIN, EXPLAINED_WITHIN, CLOSED_WITHIN = 1.0, 0.25, 5.0  # seconds, of the worker process
COMPILED_EARLY = 0.05
"""Of each second, the part that may be spent on schemas of tools that were not called yet."""

Fault: TypeAlias = dict[str, str]
"""A JSON pointer as `path`, and a `message` that quotes no value."""

_CONTAINERS = (dict, list)
_HEADER_MARK = "x-mcp-header"
_PATTERN_SIZE = 64 * 1024  # bytes of a compiled pattern: a fraction of a millisecond
_LINEAR = RegexOptions(size_limit=_PATTERN_SIZE)
_BACKTRACKING = FancyRegexOptions(size_limit=_PATTERN_SIZE)
_NOT_JSON: list[Fault] = [{"path": "", "message": "not JSON"}]
_UNEXPLAINED: list[Fault] = [{"path": "", "message": "does not fit, and is too large to say where"}]


class SchemaTooHeavy(TooLarge):
    title = "This tool cannot be called, its schema is too heavy to check"


class _Ready(NamedTuple):
    """A compiled schema. Without a validator the worker process does the checks, unless the schema is unusable."""

    cost: int
    patterns: int
    validator: Validator | None = None
    unusable: str | None = None


class _EarlyTime:
    """The time of each second for schemas of tools that were not called yet."""

    def __init__(self) -> None:
        self._second = 0
        self._spent = 0.0

    def is_left(self) -> bool:
        now = int(time.monotonic())
        if now != self._second:
            self._second, self._spent = now, 0.0
        return self._spent < COMPILED_EARLY

    def spend(self, seconds: float) -> None:
        self._spent += seconds


_early_time = _EarlyTime()


class Schema:
    """A tool's schema as it was sent. It is compiled when that is first needed."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.refused: str | None = None
        """The reason why no call is possible, once a check has shown it."""
        self.is_reported = False
        """True once the log has a line on it as too heavy."""

    @cached_property
    def ready(self) -> _Ready:
        try:
            cost = schema_cost(self.raw)
        except RecursionError:
            return _Ready(0, 0, unusable="nested too deeply")
        known = _Ready(cost.total, cost.patterns)
        if not cost.is_linear:
            return known
        try:
            return known._replace(validator=compiled(self.raw, pattern_options=_LINEAR))
        except (ValueError, ReferencingError) as error:
            needs_worker = cost.patterns and (cost.has_large_patterns or _backtracks(self.raw))
            return known if needs_worker else known._replace(unusable=first_line(error))

    @cached_property
    def text(self) -> bytes:
        return json.dumps(self.raw).encode()

    @property
    def unusable(self) -> str | None:
        """The reason why arguments cannot be checked against it; `None` if they can."""
        return self.ready.unusable

    def unusable_if_known(self) -> str | None:
        """`unusable`, if it is known or there is time to find out: a list of tools may have a thousand schemas."""
        if "ready" not in vars(self):
            if not _early_time.is_left():
                return None
            began = time.thread_time()
            assert self.ready
            _early_time.spend(time.thread_time() - began)
        return self.unusable


def find_faults(schema: Schema, arguments: dict[str, Any]) -> list[Fault]:
    """Return the faults of the arguments; none if they fit, or if the schema is unusable.

    Blocks for up to a second if the worker process does the check. Raises `SchemaTooHeavy`.
    """
    faults = find_faults_here(schema, arguments)
    if faults is not None:
        return faults
    return _checks.background.submit(_checks.find_faults(schema, arguments)).result()


async def find_faults_async(schema: Schema, arguments: dict[str, Any]) -> list[Fault]:
    """As `find_faults`, without blocking the event loop.

    A cancel ends a check that waits for its turn. It does not end one that has begun: a schema that is too heavy would
    never be found out, and each cancelled call would cost a new worker process.
    """
    faults = find_faults_here(schema, arguments)
    if faults is not None:
        return faults
    is_cancelled = threading.Event()
    check = asyncio.wrap_future(_checks.background.submit(_checks.find_faults(schema, arguments, is_cancelled)))
    check.add_done_callback(_take_error)
    try:
        return await asyncio.shield(check)
    except asyncio.CancelledError:
        is_cancelled.set()
        raise


def find_faults_here(schema: Schema, arguments: dict[str, Any]) -> list[Fault] | None:
    """As `find_faults`, in this process; `None` if the worker process has to do it."""
    ready = schema.ready
    if ready.unusable is not None:
        return []
    values, depth = _measure(arguments)
    if depth > MAX_DEPTH:
        return [{"path": "", "message": f"nested more than {MAX_DEPTH} deep"}]
    work = ready.cost * values
    if ready.validator is None:
        return None
    if work > MAX_WORK:
        return []
    if work > MAX_WORK_HERE or (ready.patterns and _is_long(arguments, MAX_WORK_HERE // ready.patterns)):
        return None
    try:
        if fits(ready.validator, arguments):
            return []
        if work > MAX_EXPLAINED:
            return _UNEXPLAINED
        return _as_faults(schema, arguments, misfits(ready.validator, arguments))
    except ValueError:
        return _NOT_JSON


async def fits_exactly(schema: Schema, arguments: dict[str, Any]) -> bool:
    """True if the arguments fit, for decisions that must not rest on a guess.

    `find_faults` finds none where it cannot check; this raises `SchemaTooHeavy`.
    """
    ready = schema.ready
    values, depth = _measure(arguments)
    work = ready.cost * values
    if ready.unusable is not None or ready.validator is None or depth > MAX_DEPTH or work > MAX_WORK:
        raise SchemaTooHeavy("the arguments are too large to be checked")
    if work <= MAX_WORK_HERE and not (ready.patterns and _is_long(arguments, MAX_WORK_HERE // ready.patterns)):
        try:
            return ready.validator.is_valid(arguments)
        except ValueError:
            raise SchemaTooHeavy("the arguments are not JSON in Unicode") from None
    return await asyncio.wrap_future(_checks.background.submit(_checks.fits_exactly(schema, arguments)))


def _take_error(check: asyncio.Future[list[Fault]]) -> None:
    """Read the error of a check whose caller was cancelled. asyncio would log it as never retrieved."""
    if not check.cancelled():
        check.exception()


class _WorkerChecks:
    """The worker process, and the loop that it belongs to. Coroutines run in `background`."""

    def __init__(self) -> None:
        self.background = BackgroundLoop("a2c-schema-checks")
        self._worker = Worker(worker_command(Path(__file__).with_name("worker.py")))
        self._turn = asyncio.Lock()

    async def find_faults(
        self, schema: Schema, arguments: dict[str, Any], is_cancelled: threading.Event | None = None
    ) -> list[Fault]:
        try:
            text = json.dumps(arguments, allow_nan=False).encode()
            assert schema.text
        except (TypeError, ValueError, RecursionError):
            return _NOT_JSON
        async with self._turn:
            if is_cancelled and is_cancelled.is_set():
                return []
            if schema.refused:
                raise SchemaTooHeavy(schema.refused)
            try:
                fits = await self._ask(b"v", schema, text, CHECKED_WITHIN)
            except (WorkerDied, WorkerTooSlow) as failure:
                if schema.ready.validator is not None:  # too many arguments: the server will check them
                    return []
                schema.refused = None if isinstance(failure, WorkerNotStarted) else f"a check {failure}"
                raise SchemaTooHeavy(f"a check {failure}") from None
            if fits is not False:  # they fit, or the schema is unusable
                return []
            if schema.ready.cost * _measure(arguments)[0] > MAX_EXPLAINED:
                return _UNEXPLAINED
            try:
                return _as_faults(schema, arguments, await self._ask(b"e", schema, text, EXPLAINED_WITHIN))
            except (WorkerDied, WorkerTooSlow):
                return _UNEXPLAINED

    async def fits_exactly(self, schema: Schema, arguments: dict[str, Any]) -> bool:
        try:
            text = json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
            async with self._turn:
                fits = await self._ask(b"v", schema, text, CHECKED_WITHIN)
        except (TypeError, ValueError, RecursionError):
            raise SchemaTooHeavy("the arguments are not JSON in Unicode") from None
        except (WorkerDied, WorkerTooSlow) as failure:
            raise SchemaTooHeavy(f"a check {failure}") from None
        if not isinstance(fits, bool):
            raise SchemaTooHeavy("the schema cannot be used")
        return fits

    def close(self) -> None:
        self.background.close(self._worker.close(), CLOSED_WITHIN)

    async def _ask(self, letter: bytes, schema: Schema, arguments: bytes, limit: float) -> Any:
        request = b"".join((letter, len(schema.text).to_bytes(4, "big"), schema.text, arguments))
        return json.loads(await self._worker.ask(request, limit=limit))


_checks = _WorkerChecks()


def _renew() -> None:
    global _checks
    _checks = _WorkerChecks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
atexit.register(lambda: _checks.close())


def pointer(path: Iterable[str | int]) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def _as_faults(schema: Schema, arguments: dict[str, Any], found: list[Misfit]) -> list[Fault]:
    return [
        {"path": pointer(path), "message": message}
        for path, message in found
        if not _is_allowed_null(schema.raw, arguments, path)
    ]


def _is_allowed_null(schema: Any, arguments: Any, path: Sequence[str | int]) -> bool:
    """True for `null` as the value of a parameter that is sent as an HTTP header, too, and is not required.

    MCP 2026-07-28 allows that against the schema: it means the same as leaving the parameter out.
    """
    is_required = True
    for step in path:
        if not (isinstance(schema, dict) and isinstance(arguments, dict) and step in arguments):
            return False
        is_required = step in (schema.get("required") or ())
        schema, arguments = (schema.get("properties") or {}).get(step), arguments[step]
    return arguments is None and isinstance(schema, dict) and _HEADER_MARK in schema and not is_required


def _backtracks(schema: dict[str, Any]) -> bool:
    """True if its patterns need a regular expression engine that backtracks."""
    try:
        compiled(schema, pattern_options=_BACKTRACKING)
    except (ValueError, ReferencingError):
        return False
    return True


def _is_long(arguments: dict[str, Any], limit: int) -> bool:
    try:
        return len(json.dumps(arguments)) > limit
    except (TypeError, ValueError):
        return False  # the validator says so


def _measure(arguments: dict[str, Any]) -> tuple[int, int]:
    """The number of values and the depth. Counting stops below `MAX_DEPTH`."""
    count, depth = 1 + len(arguments), 1
    level = [child for child in arguments.values() if isinstance(child, _CONTAINERS)]
    while level and depth <= MAX_DEPTH:
        inner = [node.values() if isinstance(node, dict) else node for node in level]
        count += sum(map(len, inner))
        level = [child for node in inner for child in node if isinstance(child, _CONTAINERS)]
        depth += 1
    return count, depth
