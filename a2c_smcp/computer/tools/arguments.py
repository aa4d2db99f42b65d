"""Checks the arguments of a call against the schema of its tool. An unusable schema accepts all arguments."""

from __future__ import annotations

import logging
from typing import Any

from a2c_smcp.errors import BadRequest
from a2c_smcp.registry.schemas.check import Fault, Schema, SchemaTooHeavy, find_faults_async, find_faults_here

__all__ = ["bad_arguments", "check_arguments", "fits_at_once"]

logger = logging.getLogger(__name__)


def fits_at_once(schema: Schema, params: dict[str, Any]) -> bool:
    """Whether the arguments fit, as far as that is known without waiting for another process."""
    return find_faults_here(schema, params) == []


async def check_arguments(schema: Schema, params: dict[str, Any], called: str = "a tool") -> None:
    """Raise `BadRequest` if the arguments do not fit: `details["errors"]` has a JSON pointer and a message per fault.

    Messages quote no value. Raises `SchemaTooHeavy` if a process made for such checks needs more than a second; that is
    logged once per schema, with the tool as `called`.
    """
    try:
        faults = await find_faults_async(schema, params)
    except SchemaTooHeavy as error:
        if not schema.is_reported:
            schema.is_reported = True
            logger.warning("%s: %s", called, error.message)
        raise
    if faults:
        raise bad_arguments(faults)


def bad_arguments(faults: list[Fault]) -> BadRequest:
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return BadRequest(f"params{first['path']}: {first['message']}{more}", field="params", errors=faults)
