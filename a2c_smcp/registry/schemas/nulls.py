"""Arguments that may be `null` although their schema does not say so.

MCP 2026-07-28 lets a tool mark parameters that are sent as HTTP headers too (`x-mcp-header`). The value of such a
parameter may be `null`, which means the same as leaving it out: there is no header. So `null` is no fault there, unless
the parameter is required.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["is_allowed_null"]

_MARK = "x-mcp-header"


def is_allowed_null(schema: Any, arguments: Any, path: Sequence[str | int]) -> bool:
    """Whether the value at this path is `null` for a parameter that is sent as a header and is not required."""
    is_required = True
    for step in path:
        if not (isinstance(schema, dict) and isinstance(arguments, dict) and step in arguments):
            return False
        is_required = step in (schema.get("required") or ())
        schema, arguments = (schema.get("properties") or {}).get(step), arguments[step]
    return arguments is None and isinstance(schema, dict) and _MARK in schema and not is_required
