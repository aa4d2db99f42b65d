"""Keys of `_meta` that only we set: an MCP server that sends one is not believed (WIRE §2)."""

from __future__ import annotations

from typing import Any

__all__ = ["is_own_key", "without_own_keys"]

_KEYS = ("error_code", "auth_hint")
_PLACES = ("_meta", "meta")  # readers accept the second spelling, too
_INNER = (*_PLACES, "resource")


def is_own_key(key: object) -> bool:
    """Whether it is `a2c_…`, `error_code` or `auth_hint`."""
    return isinstance(key, str) and (key.startswith("a2c_") or key in _KEYS)


def without_own_keys(result: dict[str, Any]) -> dict[str, Any]:
    """The result of a tool without such keys, in its content items too; the same object if it has none."""
    content: Any = result.get("content")
    for item in content if isinstance(content, list) else ():
        if isinstance(item, dict) and ("_meta" in item or "meta" in item or "resource" in item):
            cleaned = [_cleaned(each) if isinstance(each, dict) else each for each in content]
            result = {**result, "content": cleaned}
            break
    return _cleaned(result) if "_meta" in result or "meta" in result else result


def _cleaned(item: dict[str, Any]) -> dict[str, Any]:
    return {key: _inner(key, value) if key in _INNER else value for key, value in item.items()}


def _inner(key: str, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return (
        _cleaned(value) if key == "resource" else {name: each for name, each in value.items() if not is_own_key(name)}
    )
