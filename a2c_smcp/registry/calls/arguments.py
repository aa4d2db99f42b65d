"""A caller's arguments made ready for a tool: defaults first, then the check against its schema."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cached_property
from typing import Any, TypeAlias

from a2c_smcp.registry.calls.methods import Arguments, AsyncCall, SyncCall
from a2c_smcp.registry.functions import FunctionTool
from a2c_smcp.registry.parameters import InvalidArguments
from a2c_smcp.registry.schemas.check import Fault, Schema, compile_schema, find_faults, find_faults_async, local_target
from a2c_smcp.registry.schemas.weight import MAX_WEIGHT
from a2c_smcp.registry.tool_info import Traits

__all__ = ["MAX_FILLED", "Prepare", "TooManyDefaults", "compile_defaults", "preparation", "prepared", "prepared_async"]

logger = logging.getLogger(__name__)

Fill: TypeAlias = Callable[[Any], Any]
Finished: TypeAlias = Callable[[Any], Arguments | None]
"""What arguments become that need no check; `None` if they do."""


class Prepare:
    """Arguments made ready. Raises `InvalidArguments` for what does not fit, and `SchemaTooHeavy`."""

    def __init__(self, schema: Schema, finished: Finished, *, has_defaults: bool) -> None:
        self._schema = schema
        self._finished = finished
        self._has_defaults = has_defaults

    @cached_property
    def _fill(self) -> Fill | None:
        """Built when it is first needed: a list may hold a thousand schemas."""
        is_bearable = self._has_defaults and self._schema.ready.weight <= MAX_WEIGHT
        return compile_defaults(self._schema.raw) if is_bearable else None

    def now(self, arguments: Any) -> Arguments:
        """May block the thread for a while, if the schema is not a plain one."""
        if (finished := self._finished(arguments)) is not None:
            return finished
        filled = self._filled(arguments)
        return _sound(filled, find_faults(self._schema, filled))

    async def without_blocking(self, arguments: Any) -> Arguments:
        if (finished := self._finished(arguments)) is not None:
            return finished
        filled = self._filled(arguments)
        return _sound(filled, await find_faults_async(self._schema, filled))

    def _filled(self, arguments: Any) -> Arguments:
        if not isinstance(arguments, dict):
            raise InvalidArguments.at([{"path": "", "message": "not an object"}])
        return arguments if self._fill is None else _filled(self._fill, arguments)


def preparation(tool: Any, traits: Traits) -> Prepare | None:
    """`None` for a tool without a schema, or with an unusable one."""
    schema = compile_schema(traits.input_schema)
    if unusable := schema.look_ahead():
        logger.warning("Arguments of tool %r are not checked, its schema is unusable: %s", traits.name, unusable)
    if unusable or not traits.input_schema:
        return None
    is_function = isinstance(tool, FunctionTool)
    # most arguments of a function fit, which pydantic says in a fraction of the time, and converts them on the way
    finished = tool.fit if is_function and tool.fit else _never
    return Prepare(schema, finished, has_defaults=not (is_function and tool.fills_defaults))


def prepared(call: SyncCall, prepare: Prepare) -> SyncCall:
    return lambda arguments: call(prepare.now(arguments))


def prepared_async(acall: AsyncCall, prepare: Prepare) -> AsyncCall:
    async def call(arguments: Arguments) -> Any:
        return await acall(await prepare.without_blocking(arguments))

    return call


def _never(arguments: Any) -> None:
    return None


def _sound(arguments: Arguments, faults: list[Fault]) -> Arguments:
    if faults:
        raise InvalidArguments.at(faults)
    return arguments


def _filled(fill: Fill, arguments: Arguments) -> Arguments:
    try:
        filled: Arguments = fill(arguments)
    except RecursionError:
        raise InvalidArguments.at([{"path": "", "message": "nested too deeply"}]) from None
    except TooManyDefaults:
        message = f"the schema would fill in more than {MAX_FILLED} values; give what has a default"
        raise InvalidArguments.at([{"path": "", "message": message}]) from None
    return filled


MAX_FILLED = 100_000
"""Values that are filled into the arguments of one call: some 50 ms."""

_NESTS = (dict, list)
_BELOW = frozenset({"properties", "items", "allOf", "$ref"})


class TooManyDefaults(Exception):
    """More than `MAX_FILLED` values would have to be filled in."""


def compile_defaults(schema: dict[str, Any]) -> Callable[[Any], Any] | None:
    """A function from arguments to filled arguments; `None` for a schema without defaults.

    Followed are properties, items, `allOf` and references into the schema, not alternatives: which of them is meant
    is not known before the arguments are complete. The function raises `TooManyDefaults`.
    """
    if '"default"' not in json.dumps(schema):
        return None
    filling = _Filling(schema, schema, {})
    return lambda arguments: filling.fill(arguments, _Budget())


class _Budget:
    """Of one call."""

    def __init__(self) -> None:
        self._left = MAX_FILLED

    def spend(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise TooManyDefaults


class _Filling:
    """Where defaults belong in a value. A schema that refers to itself has one that contains itself."""

    def __init__(self, schema: dict[str, Any], root: dict[str, Any], known: dict[int, _Filling]) -> None:
        known[id(schema)] = self
        self._defaults: dict[str, Any] = {}
        self._costs: dict[str, int] = {}
        self._inner: dict[str, _Filling] = {}
        self._items: _Filling | None = None
        for part in _parts(schema, root, set()):
            for name, below in _objects(part.get("properties")):
                if "default" in below:
                    self._defaults[name] = below["default"]
                    self._costs[name] = _count(below["default"])
                if not _BELOW.isdisjoint(below):
                    self._inner[name] = known.get(id(below)) or _Filling(below, root, known)
            if isinstance(items := part.get("items"), dict):
                self._items = known.get(id(items)) or _Filling(items, root, known)

    def fill(self, value: Any, budget: _Budget) -> Any:
        """The same value, or a copy of as much of it as had to be filled."""
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
            filled = {**value, **{name: _own(self._defaults[name]) for name in missing}}
        for name, inner in self._inner.items():
            if isinstance(old := filled.get(name), _NESTS) and (new := inner.fill(old, budget)) is not old:
                filled = {**filled, name: new}
        return filled


def _parts(schema: dict[str, Any], root: dict[str, Any], seen: set[int]) -> Iterator[dict[str, Any]]:
    """All schemas that a value must fit at once: what it refers to, its `allOf`, and last itself."""
    if id(schema) in seen:
        return
    seen.add(id(schema))
    every = schema.get("allOf")
    for part in (local_target(schema.get("$ref"), root), *(every if isinstance(every, list) else ())):
        if isinstance(part, dict):
            yield from _parts(part, root, seen)
    yield schema


def _count(value: Any) -> int:
    """How many values there are in one, itself included."""
    count, rest = 0, [value]
    while rest:
        each = rest.pop()
        count += 1
        rest += each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
    return count


def _own(default: Any) -> Any:
    return deepcopy(default) if isinstance(default, _NESTS) else default


def _objects(value: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(key, item) for key, item in value.items() if isinstance(item, dict)] if isinstance(value, dict) else []
