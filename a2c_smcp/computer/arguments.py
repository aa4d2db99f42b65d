"""Whether the arguments of a call fit the tool's schema. A schema that cannot be used never stands in the way."""

from __future__ import annotations

from typing import Any

from a2c_smcp.errors import BadRequest
from a2c_smcp.registry.schemas import Fault, Schema, compile_schema, find_faults

__all__ = ["Schema", "check_arguments", "compile_schema", "misfit"]


def check_arguments(schema: Schema, params: dict[str, Any]) -> None:
    """Raises `BadRequest` whose `details["errors"]` has a JSON pointer and a message per fault, and quotes no value."""
    if faults := find_faults(schema, params):
        raise misfit(faults)


def misfit(faults: list[Fault]) -> BadRequest:
    first = faults[0]
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return BadRequest(f"params{first['path']}: {first['message']}{more}", field="params", errors=faults)
