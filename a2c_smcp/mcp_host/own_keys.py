"""Keys of `_meta` that only we set: an MCP server that sends one is not believed (WIRE §2)."""

from __future__ import annotations

from typing import Any

__all__ = ["is_own_key", "without_own_keys"]

_KEYS = ("error_code", "auth_hint")
_METAS = ("_meta", "meta")  # readers accept the second spelling, too
_LISTS = ("content", "contents", "messages")
_INNER = frozenset((*_METAS, "resource", "content"))
_DEPTH = 3  # a result, a message, its content, a resource in it


def is_own_key(key: object) -> bool:
    """Whether it is `a2c_…`, `error_code` or `auth_hint`."""
    return isinstance(key, str) and (key.startswith("a2c_") or key in _KEYS)


def without_own_keys(result: dict[str, Any]) -> dict[str, Any]:
    """A result, or an item of a list, without such keys, in its contents too; the same object if there is no `_meta`.

    The contents are those of a tool's result, of a resource or of the messages of a prompt.
    """
    for name in _LISTS:
        items = result.get(name)
        if isinstance(items, list) and any(isinstance(item, dict) and not _INNER.isdisjoint(item) for item in items):
            result = {**result, name: [_cleaned(item) for item in items]}
    return _cleaned(result) if "_meta" in result or "meta" in result else result


def _cleaned(item: Any, depth: int = _DEPTH) -> Any:
    if isinstance(item, list):
        return [_cleaned(each, depth) for each in item]
    if not isinstance(item, dict):
        return item
    return {key: _inner(key, value, depth) if key in _INNER else value for key, value in item.items()}


def _inner(key: str, value: Any, depth: int) -> Any:
    if key not in _METAS:
        return _cleaned(value, depth - 1) if depth else value
    return {name: each for name, each in value.items() if not is_own_key(name)} if isinstance(value, dict) else value
