"""JSON schema types in words, for files and payloads."""

from __future__ import annotations

from typing import Any

__all__ = ["words"]

_PLAIN = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "null": "null"}
_FORMATS = {"duration": "duration, such as `PT30S`", "path": "path"}
Schema = dict[str, Any]


def words(schema: Schema) -> str:
    """A JSON schema in words; `null` among choices is left to the default to say."""
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(words(choice) for choice in choices if choice.get("type") != "null"))
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    return _GATHERED.get(schema.get("type", ""), _plain)(schema)


def _plain(schema: Schema) -> str:
    return _PLAIN.get(schema.get("type", ""), "anything")


def _array(schema: Schema) -> str:
    return f"list of {words(schema.get('items') or {})}"


def _object(schema: Schema) -> str:
    inner = schema.get("additionalProperties")
    return f"object of {words(inner)}" if isinstance(inner, dict) and inner else "object"


_GATHERED = {"array": _array, "object": _object}
