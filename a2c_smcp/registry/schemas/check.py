"""Whether the arguments of a call fit the tool's schema, and where they do not.

Both sides may be hostile: a schema whose references multiply or whose patterns are endless, and arguments with a
million faults or endless nesting, would each cost the library unbounded time or memory. So a schema is weighed before
it is compiled (`weighing`). A plain one is checked here, within a microsecond; any other, and a check that is more work
than a moment, is left to a process that can be killed (`schema_checks`). A schema that proves too heavy even there is
refused from then on: its tool cannot be called.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from jsonschema_rs import FancyRegexOptions, ReferencingError, RegexOptions, Validator

from a2c_smcp.errors import TooLarge
from a2c_smcp.registry.schemas.weight import local_target, weigh
from a2c_smcp.registry.schemas.worker import Misfit, compiled, first_line, fits, misfits
from a2c_smcp.registry.schemas.worker_process import CheckFailed, CheckImpossible, checks

__all__ = [
    "Fault",
    "Schema",
    "SchemaTooHeavy",
    "compile_schema",
    "find_faults",
    "find_faults_async",
    "find_faults_here",
    "local_target",
    "pointer",
]

MAX_WORK = 100_000_000
"""Weight times values. What costs more is not checked here: the server will do it."""
MAX_WORK_HERE = 1_000_000
"""What costs more is left to the other process: some 20 ms."""
MAX_EXPLAINED = 50_000
"""What costs more is not told fault by fault, which takes far more time and memory than a yes or no."""
MAX_DEPTH = 200
CHECKED_WITHIN, EXPLAINED_WITHIN = 1.0, 0.25  # seconds, in the other process
LOOKED_AHEAD = 0.05
"""Of each second, so much may be spent on schemas that nobody has used yet."""

Fault: TypeAlias = dict[str, str]
"""A JSON pointer as `path`, and a `message` that quotes no value."""

_NESTS = (dict, list)
_PATTERN_SIZE = 64 * 1024  # bytes of a compiled pattern: a fraction of a millisecond
_LINEAR = RegexOptions(size_limit=_PATTERN_SIZE)
_BACKTRACKING = FancyRegexOptions(size_limit=_PATTERN_SIZE)
_NOT_JSON: list[Fault] = [{"path": "", "message": "not JSON"}]
_UNEXPLAINED: list[Fault] = [{"path": "", "message": "does not fit, and is too large to say where"}]


class SchemaTooHeavy(TooLarge):
    title = "This tool cannot be called, its schema is too heavy to check"


class _Ready(NamedTuple):
    """Without a validator the other process has to do it, unless the schema is unusable."""

    weight: int
    patterns: int
    validator: Validator | None = None
    unusable: str | None = None


class _LookingAhead:
    """The time for schemas that nobody has used yet: a little of each second."""

    def __init__(self) -> None:
        self._second = 0
        self._spent = 0.0

    def has_time(self) -> bool:
        now = int(time.monotonic())
        if now != self._second:
            self._second, self._spent = now, 0.0
        return self._spent < LOOKED_AHEAD

    def spend(self, seconds: float) -> None:
        self._spent += seconds


_ahead = _LookingAhead()


class Schema:
    """A tool's schema as it was sent. It is weighed and compiled when that is first needed."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        self.refused: str | None = None
        """Why no call is possible, once that is known."""
        self.is_reported = False
        """Whether the owner has been told that it is too heavy."""

    @cached_property
    def ready(self) -> _Ready:
        try:
            weight = weigh(self.raw)
        except RecursionError:
            return _Ready(0, 0, unusable="nested too deeply")
        known = _Ready(weight.total, weight.patterns)
        if not weight.is_plain:
            return known
        try:
            return known._replace(validator=compiled(self.raw, pattern_options=_LINEAR))
        except (ValueError, ReferencingError) as error:
            is_too_much_for_us = weight.patterns and (weight.has_large_patterns or _backtracks(self.raw))
            return known if is_too_much_for_us else known._replace(unusable=first_line(error))

    @cached_property
    def text(self) -> bytes:
        return json.dumps(self.raw).encode()

    @property
    def unusable(self) -> str | None:
        """Why arguments are not checked against it."""
        return self.ready.unusable

    def look_ahead(self) -> str | None:
        """`unusable`, as far as it is known or there is time to find out: a list may hold a thousand schemas."""
        if "ready" not in vars(self):
            if not _ahead.has_time():
                return None
            began = time.thread_time()
            assert self.ready
            _ahead.spend(time.thread_time() - began)
        return self.unusable


def compile_schema(schema: dict[str, Any]) -> Schema:
    return Schema(schema)


def find_faults(schema: Schema, arguments: dict[str, Any]) -> list[Fault]:
    """What in the arguments does not fit. A schema that cannot be used never stands in the way.

    Blocks for up to a second where another process has to do it. Raises `SchemaTooHeavy`.
    """
    found = find_faults_here(schema, arguments)
    return _faults_apart(schema, arguments) if found is None else found


async def find_faults_async(schema: Schema, arguments: dict[str, Any]) -> list[Fault]:
    """The same, without blocking the event loop."""
    found = find_faults_here(schema, arguments)
    if found is not None:
        return found
    return await asyncio.get_running_loop().run_in_executor(checks().thread, _faults_apart, schema, arguments)


def find_faults_here(schema: Schema, arguments: dict[str, Any]) -> list[Fault] | None:
    """`None` if it has to be done in another process."""
    ready = schema.ready
    if ready.unusable is not None:
        return []
    values, depth = _measure(arguments)
    if depth > MAX_DEPTH:
        return [{"path": "", "message": f"nested more than {MAX_DEPTH} deep"}]
    work = ready.weight * values
    if ready.validator is None:
        return None
    if work > MAX_WORK:
        return []
    if work > MAX_WORK_HERE or (ready.patterns and _is_long(arguments, MAX_WORK_HERE // ready.patterns)):
        return None
    try:
        if fits(ready.validator, arguments):
            return []
        return _told(misfits(ready.validator, arguments)) if work <= MAX_EXPLAINED else _UNEXPLAINED
    except ValueError:
        return _NOT_JSON


def _faults_apart(schema: Schema, arguments: dict[str, Any]) -> list[Fault]:
    try:
        question = schema.text, json.dumps(arguments, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return _NOT_JSON
    there = checks()
    with there.turn:
        if schema.refused:
            raise SchemaTooHeavy(schema.refused)
        try:
            answer = there.ask(b"v", *question, limit=CHECKED_WITHIN)
        except CheckFailed as failure:
            if schema.ready.validator is not None:  # there were too many arguments: the server will check them
                return []
            schema.refused = None if isinstance(failure, CheckImpossible) else f"a check {failure}"
            raise SchemaTooHeavy(f"a check {failure}") from None
        if answer is not False:  # it fits, or the schema proved unusable
            return []
        if schema.ready.weight * _measure(arguments)[0] > MAX_EXPLAINED:
            return _UNEXPLAINED
        try:
            return _told(there.ask(b"e", *question, limit=EXPLAINED_WITHIN))
        except CheckFailed:
            return _UNEXPLAINED


def pointer(path: Iterable[str | int]) -> str:
    """As JSON points at something (RFC 6901)."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


def _told(found: list[Misfit]) -> list[Fault]:
    return [{"path": pointer(path), "message": message} for path, message in found]


def _backtracks(schema: dict[str, Any]) -> bool:
    """Whether its patterns need an engine whose time is not linear."""
    try:
        compiled(schema, pattern_options=_BACKTRACKING)
    except (ValueError, ReferencingError):
        return False
    return True


def _is_long(arguments: dict[str, Any], limit: int) -> bool:
    try:
        return len(json.dumps(arguments)) > limit
    except (TypeError, ValueError):
        return False  # which the validator tells in its own words


def _measure(arguments: dict[str, Any]) -> tuple[int, int]:
    """How many values there are in it, and how deep it is; it stops counting where it is too deep anyway."""
    count, depth = 1 + len(arguments), 1
    level = [child for child in arguments.values() if isinstance(child, _NESTS)]
    while level and depth <= MAX_DEPTH:
        inner = [node.values() if isinstance(node, dict) else node for node in level]
        count += sum(map(len, inner))
        level = [child for node in inner for child in node if isinstance(child, _NESTS)]
        depth += 1
    return count, depth
