"""Arguments of a call made ready for a tool: defaults of its JSON schema filled in, then checked against the schema.

The caller's own objects are never changed. A default may need defaults itself, two of which may each need two more, so
the number of values that are filled into one call is limited.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Iterator
from copy import deepcopy
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from a2c_smcp.loops import LoopIsRunning, is_in_loop, start_in_thread_async
from a2c_smcp.registry.functions import FunctionTool, InvalidArguments
from a2c_smcp.registry.schemas.check import Fault, Schema, find_faults, find_faults_async
from a2c_smcp.registry.schemas.cost import MAX_COST, local_target
from a2c_smcp.registry.tool_info import ToolInfo

logger = logging.getLogger(__name__)

# The sync and the async way to call a tool, of which its author may have written either or both.

Arguments: TypeAlias = dict[str, Any]
SyncCall: TypeAlias = Callable[[Arguments], Any]
AsyncCall: TypeAlias = Callable[[Arguments], Awaitable[Any]]


class ToolMethods(NamedTuple):
    """The methods of a tool, by its author: `call`, `acall`, or both."""

    call: SyncCall | None
    acall: AsyncCall | None


def tool_methods(tool: Any) -> ToolMethods:
    """An async `call` counts as `acall`, unless the tool has an `acall` too."""
    call, acall = tool.call, getattr(tool, "acall", None)
    if _is_async(acall):
        return ToolMethods(None if _is_async(call) else call, acall)
    return ToolMethods(None, call) if _is_async(call) else ToolMethods(call, None)


async def call_in_thread(call: SyncCall, arguments: Arguments) -> Any:
    return await result_of(start_in_thread_async(call, arguments))


async def result_of(outcome: Awaitable[Any]) -> Any:
    """Return the result of a sync call. An awaitable one is awaited in the caller's loop."""
    result = await outcome
    return await result if inspect.isawaitable(result) else result


def run_blocking(name: str, acall: AsyncCall) -> SyncCall:
    """A sync call that runs an async one in an event loop of its own."""

    async def awaited(arguments: Arguments) -> Any:
        return await acall(arguments)

    def call(arguments: Arguments) -> Any:
        if is_in_loop():
            raise LoopIsRunning(f"tool {name!r} is async, and an event loop runs in this thread: await acall instead")
        return asyncio.run(awaited(arguments))

    return call


def _is_async(call: Any) -> bool:
    return inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(type(call), "__call__", None))  # noqa: B004


MAX_FILLED = 100_000
"""Values that are filled into the arguments of one call: some 50 ms."""

FillDefaults: TypeAlias = Callable[[Any], Any]
QuickCheck: TypeAlias = Callable[[Any], Arguments | None]
"""Returns converted arguments if they certainly fit; `None` if the schema has to decide."""

_CONTAINERS = (dict, list)
_NESTING_KEYWORDS = frozenset({"properties", "items", "allOf", "$ref"})


class ArgumentCheck:
    """Makes arguments ready for one tool. Raises `InvalidArguments` if they do not fit, and `SchemaTooHeavy`."""

    def __init__(self, schema: Schema, quick: QuickCheck, *, has_defaults: bool) -> None:
        self._schema = schema
        self._quick = quick
        self._has_defaults = has_defaults

    @cached_property
    def _fill_defaults(self) -> FillDefaults | None:
        """Compiled when it is first needed: a list of tools may have a thousand schemas."""
        is_affordable = self._has_defaults and self._schema.ready.cost <= MAX_COST
        return compile_defaults(self._schema.raw) if is_affordable else None

    def now(self, arguments: Any) -> Arguments:
        """Blocks the thread for up to a second if a worker process has to check them."""
        if (fitting := self._quick(arguments)) is not None:
            return fitting
        filled = self._filled(arguments)
        return _without_faults(filled, find_faults(self._schema, filled))

    async def without_blocking(self, arguments: Any) -> Arguments:
        if (fitting := self._quick(arguments)) is not None:
            return fitting
        filled = self._filled(arguments)
        return _without_faults(filled, await find_faults_async(self._schema, filled))

    def _filled(self, arguments: Any) -> Arguments:
        if not isinstance(arguments, dict):
            raise _invalid("not an object")
        if self._fill_defaults is None:
            return arguments
        try:
            filled: Arguments = self._fill_defaults(arguments)
        except RecursionError:
            raise _invalid("nested too deeply") from None
        except _TooManyDefaults:
            raise _invalid(f"the schema would fill in more than {MAX_FILLED} values; give what has a default") from None
        return filled


def argument_check(tool: Any, info: ToolInfo) -> ArgumentCheck | None:
    """`None` for a tool without a schema, or with an unusable one."""
    schema = Schema(info.input_schema)
    if unusable := schema.unusable_if_known():
        logger.warning("Arguments of tool %r are not checked, its schema is unusable: %s", info.name, unusable)
    if unusable or not info.input_schema:
        return None
    is_function = isinstance(tool, FunctionTool)
    # Most arguments of a function fit. Pydantic says so in a fraction of the time, and converts them on the way.
    quick: QuickCheck = tool.fit if is_function and tool.fit else lambda arguments: None
    return ArgumentCheck(schema, quick, has_defaults=not (is_function and tool.fills_defaults))


def _without_faults(arguments: Arguments, faults: list[Fault]) -> Arguments:
    if faults:
        raise InvalidArguments.at(faults)
    return arguments


def _invalid(message: str) -> InvalidArguments:
    return InvalidArguments.at([{"path": "", "message": message}])


class _TooManyDefaults(Exception):
    """More than `MAX_FILLED` values would have to be filled in."""


def compile_defaults(schema: dict[str, Any]) -> FillDefaults | None:
    """A function from arguments to filled arguments; `None` for a schema without defaults.

    It looks into properties, items, `allOf` and local references, not into alternatives: which of these is meant is
    not known before the arguments are complete. The function raises `_TooManyDefaults`.
    """
    if '"default"' not in json.dumps(schema):
        return None
    defaults = _Defaults(schema, schema, {})
    return lambda arguments: defaults.fill(arguments, _Budget())


class _Budget:
    """The number of values that may still be filled into one call."""

    def __init__(self) -> None:
        self._left = MAX_FILLED

    def spend(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise _TooManyDefaults


class _Defaults:
    """The defaults of a schema and of the schemas inside it. A recursive schema has one that contains itself."""

    def __init__(self, schema: dict[str, Any], root: dict[str, Any], known: dict[int, _Defaults]) -> None:
        known[id(schema)] = self
        self._defaults: dict[str, Any] = {}
        self._costs: dict[str, int] = {}
        self._inner: dict[str, _Defaults] = {}
        self._items: _Defaults | None = None
        for part in _parts(schema, root, set()):
            properties = part.get("properties")
            for name, below in properties.items() if isinstance(properties, dict) else ():
                if not isinstance(below, dict):
                    continue
                if "default" in below:
                    self._defaults[name] = below["default"]
                    self._costs[name] = _count(below["default"])
                if not _NESTING_KEYWORDS.isdisjoint(below):
                    self._inner[name] = known.get(id(below)) or _Defaults(below, root, known)
            if isinstance(items := part.get("items"), dict):
                self._items = known.get(id(items)) or _Defaults(items, root, known)

    def fill(self, value: Any, budget: _Budget) -> Any:
        """Returns the same value, or a copy of the parts that were filled."""
        if isinstance(value, dict):
            return self._fill_object(value, budget)
        if isinstance(value, list) and self._items is not None:
            filled = [self._items.fill(item, budget) for item in value]
            return filled if any(new is not old for new, old in zip(filled, value, strict=True)) else value
        return value

    def _fill_object(self, value: dict[str, Any], budget: _Budget) -> dict[str, Any]:
        filled = value
        if missing := [name for name in self._defaults if name not in value]:
            budget.spend(sum(self._costs[name] for name in missing))
            filled = {**value, **{name: deepcopy(self._defaults[name]) for name in missing}}
        for name, inner in self._inner.items():
            if isinstance(old := filled.get(name), _CONTAINERS) and (new := inner.fill(old, budget)) is not old:
                filled = {**filled, name: new}
        return filled


def _parts(schema: dict[str, Any], root: dict[str, Any], seen: set[int]) -> Iterator[dict[str, Any]]:
    """All schemas that a value must fit at the same time: its reference, its `allOf`, and last itself."""
    if id(schema) in seen:
        return
    seen.add(id(schema))
    every = schema.get("allOf")
    for part in (local_target(schema.get("$ref"), root), *(every if isinstance(every, list) else ())):
        if isinstance(part, dict):
            yield from _parts(part, root, seen)
    yield schema


def _count(value: Any) -> int:
    """The number of values inside a value, itself included."""
    count, rest = 0, [value]
    while rest:
        item = rest.pop()
        count += 1
        rest += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
    return count
