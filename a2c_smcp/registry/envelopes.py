"""001 §7's uniform result: `{"output": …, "meta": {…}}`."""

from __future__ import annotations

from typing import Any

__all__ = ["envelope"]

_KEYS = frozenset({"output", "meta"})


def envelope(result: Any, *, tool: str, duration: float) -> dict[str, Any]:
    """A result that has the shape already is completed, not wrapped again; what its tool says under `meta` stands."""
    measured = {"tool": tool, "duration": duration}
    if not _has_the_shape(result):
        return {"output": result, "meta": measured}
    return {"output": result["output"], "meta": measured | result.get("meta", {})}


def _has_the_shape(result: Any) -> bool:
    return (
        isinstance(result, dict)
        and "output" in result
        and result.keys() <= _KEYS
        and isinstance(result.get("meta", {}), dict)
    )
