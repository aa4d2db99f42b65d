"""A caller's arguments made ready for a tool: defaults first, then the check against its schema."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeAlias

from a2c_smcp.registry.defaults import MAX_FILLED, TooManyDefaults, compile_defaults
from a2c_smcp.registry.entrances import Arguments, AsyncCall, SyncCall
from a2c_smcp.registry.functions import FunctionTool
from a2c_smcp.registry.parameters import InvalidArguments
from a2c_smcp.registry.schemas import Fault, Schema, compile_schema, find_faults, find_faults_async
from a2c_smcp.registry.traits import Traits
from a2c_smcp.registry.weighing import MAX_WEIGHT

__all__ = ["Prepare", "preparation", "prepared", "prepared_async"]

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
