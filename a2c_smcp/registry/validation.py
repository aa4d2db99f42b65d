"""A caller's arguments made ready for a tool: defaults first, then the check against its schema."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from a2c_smcp.registry.defaults import compile_defaults
from a2c_smcp.registry.entrances import Arguments, AsyncCall, SyncCall
from a2c_smcp.registry.functions import FunctionTool
from a2c_smcp.registry.parameters import Fit, InvalidArguments
from a2c_smcp.registry.schemas import compile_schema, find_faults
from a2c_smcp.registry.traits import Traits

__all__ = ["Prepare", "preparation", "prepared", "prepared_async"]

logger = logging.getLogger(__name__)

Prepare: TypeAlias = Callable[[Any], Arguments]


def preparation(tool: Any, traits: Traits) -> Prepare | None:
    """Raises `InvalidArguments` for what does not fit. `None` for a tool without a schema, or with an unusable one."""
    schema = compile_schema(traits.input_schema)
    if schema.unusable:
        logger.warning("Arguments of tool %r are not checked, its schema is unusable: %s", traits.name, schema.unusable)
    if schema.unusable or not traits.input_schema:
        return None
    is_function = isinstance(tool, FunctionTool)
    fill = None if is_function and tool.fills_defaults else compile_defaults(traits.input_schema)

    def prepare(arguments: Any) -> Arguments:
        if not isinstance(arguments, dict):
            raise InvalidArguments.at([{"path": "", "message": "not an object"}])
        filled = arguments if fill is None else _filled(fill, arguments)
        if faults := find_faults(schema, filled):
            raise InvalidArguments.at(faults)
        return filled

    return _quicker(prepare, tool.fit) if is_function and tool.fit else prepare


def _quicker(prepare: Prepare, fit: Fit) -> Prepare:
    """Most arguments fit, which pydantic says in a fraction of the time, and converts them on the way."""

    def quick(arguments: Any) -> Arguments:
        fitting = fit(arguments)
        return prepare(arguments) if fitting is None else fitting

    return quick


def prepared(call: SyncCall, prepare: Prepare) -> SyncCall:
    return lambda arguments: call(prepare(arguments))


def prepared_async(acall: AsyncCall, prepare: Prepare) -> AsyncCall:
    async def call(arguments: Arguments) -> Any:
        return await acall(prepare(arguments))

    return call


def _filled(fill: Callable[[Any], Any], arguments: Arguments) -> Arguments:
    try:
        filled: Arguments = fill(arguments)
    except RecursionError:
        raise InvalidArguments.at([{"path": "", "message": "nested too deeply"}]) from None
    return filled
