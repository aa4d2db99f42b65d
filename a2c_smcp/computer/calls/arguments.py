"""Whether the arguments of a call fit the tool's schema. A schema that cannot be used never stands in the way."""

from __future__ import annotations

import logging
from typing import Any

from a2c_smcp.errors import BadRequest
from a2c_smcp.registry.schemas.check import (
    Fault,
    Schema,
    SchemaTooHeavy,
    compile_schema,
    find_faults_async,
    find_faults_here,
)

__all__ = ["Schema", "SchemaTooHeavy", "check_arguments", "compile_schema", "fits_at_once", "misfit"]

logger = logging.getLogger(__name__)


def fits_at_once(schema: Schema, params: dict[str, Any]) -> bool:
    """Whether it is known without waiting that they fit."""
    return find_faults_here(schema, params) == []


async def check_arguments(schema: Schema, params: dict[str, Any], called: str = "a tool") -> None:
    """Raises `BadRequest` whose `details["errors"]` has a JSON pointer and a message per fault, and quotes no value.

    Raises `SchemaTooHeavy` if that could not be found out within a second, by a process made for it. The owner is
    told, once: `called` is what the tool is called in the log.
    """
    try:
        faults = await find_faults_async(schema, params)
    except SchemaTooHeavy as error:
        if not schema.is_reported:
            schema.is_reported = True
            logger.warning("%s: %s", called, error.message)
        raise
    if faults:
        raise misfit(faults)


def misfit(faults: list[Fault]) -> BadRequest:
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return BadRequest(f"params{first['path']}: {first['message']}{more}", field="params", errors=faults)
