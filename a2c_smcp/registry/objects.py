"""A schema of arguments written as one plain object, for readers that take nothing else at its top."""

from __future__ import annotations

from typing import Any

from a2c_smcp.registry.schemas import local_target

__all__ = ["one_object", "written_out"]

_REFUSED = frozenset({"$ref", "allOf", "anyOf", "oneOf", "not", "enum", "const"})


def one_object(schema: dict[str, Any]) -> dict[str, Any]:
    """The same arguments fit as before, and perhaps more: of alternatives, all properties may be there.

    OpenAI and Anthropic refuse a whole request for one tool that says at its top what its arguments are by such words.
    """
    if _REFUSED.isdisjoint(schema):
        full = schema
    else:
        try:
            full = _merged(schema, schema, set())
        except RecursionError:
            full = {}
    properties = full.get("properties", {})
    return {**full, "type": "object"} | ({} if isinstance(properties, dict) else {"properties": {}})


def written_out(schema: dict[str, Any], root: dict[str, Any], seen: set[str]) -> dict[str, Any]:
    """With what it refers to and the parts of its `allOf` written into it. A reference is followed once."""
    reference = schema.get("$ref")
    parts = _objects_in(schema, "allOf")
    if isinstance(reference, str) and reference not in seen:
        seen.add(reference)
        target = local_target(reference, root)
        parts.insert(0, target if isinstance(target, dict) else {})
    merged: dict[str, Any] = {}
    for part in parts:
        merged = _joined(merged, written_out(part, root, seen))
    return _joined(merged, {key: value for key, value in schema.items() if key not in ("$ref", "allOf")})


def _merged(schema: dict[str, Any], root: dict[str, Any], seen: set[str]) -> dict[str, Any]:
    full = written_out(schema, root, seen)
    properties = dict(_properties(full))
    for alternative in (*_objects_in(full, "anyOf"), *_objects_in(full, "oneOf")):
        properties |= {**_properties(_merged(alternative, root, seen)), **properties}
    return {key: value for key, value in full.items() if key not in _REFUSED} | {"properties": properties}


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    joined = one | other
    if isinstance(one.get("properties"), dict) and isinstance(other.get("properties"), dict):
        joined["properties"] = one["properties"] | other["properties"]
    if "required" in joined:
        joined["required"] = [*dict.fromkeys(_required(one) + _required(other))]
    return joined


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _required(schema: dict[str, Any]) -> list[str]:
    required = schema.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def _objects_in(schema: dict[str, Any], word: str) -> list[dict[str, Any]]:
    parts = schema.get(word)
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
