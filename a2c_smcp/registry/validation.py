"""A caller's arguments made ready for a tool: defaults first, then the check against its schema."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from a2c_smcp.registry.defaults import compile_defaults
from a2c_smcp.registry.entrances import Arguments, AsyncCall, SyncCall
from a2c_smcp.registry.parameters import InvalidArguments
from a2c_smcp.registry.schemas import compile_schema, find_faults
from a2c_smcp.registry.traits import Traits

__all__ = ["Prepare", "preparation", "prepared", "prepared_async"]

logger = logging.getLogger(__name__)

Prepare: TypeAlias = Callable[[Any], Arguments]


def preparation(tool: Traits) -> Prepare | None:
    """Raises `InvalidArguments` for what does not fit. `None` for a tool without a schema, or with an unusable one."""
    schema = compile_schema(tool.input_schema)
    if schema.unusable:
        logger.warning("Arguments of tool %r are not checked, its schema is unusable: %s", tool.name, schema.unusable)
    if schema.unusable or not tool.input_schema:
        return None
    fill = compile_defaults(tool.input_schema)

    def prepare(arguments: Any) -> Arguments:
        if not isinstance(arguments, dict):
            raise InvalidArguments.at([{"path": "", "message": "not an object"}])
        filled = arguments if fill is None else _filled(fill, arguments)
        if faults := find_faults(schema, filled):
            raise InvalidArguments.at(faults)
        return filled

    return prepare


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
