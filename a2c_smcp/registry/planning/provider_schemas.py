"""JSON Schema as far as Gemini's function declarations go: a subset of OpenAPI 3.0, without references."""

from __future__ import annotations

from typing import Any

from a2c_smcp.registry.schemas.check import local_target

__all__ = ["one_object", "reduced_schema", "written_out"]

MAX_DEPTH, MAX_SCHEMAS = 20, 1000
"""What is deeper or more, and where a schema comes to itself again, only the type is said."""

_KEPT = (
    *("title", "description", "default", "nullable", "pattern", "minimum", "maximum"),
    *("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"),
)
_SHARED = ("title", "description", "nullable")
_TYPES = ("string", "number", "integer", "boolean", "array", "object")
_FORMATS = {
    "number": ("float", "double"),
    "integer": ("int32", "int64"),
    "string": ("enum", "date-time"),
}


def reduced_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The same values fit as before, and perhaps more: what cannot be said is left out."""
    try:
        return _Reduction(schema).reduce(schema, ())
    except RecursionError:
        return {"type": "object"}


class _Reduction:
    """`trail` is what was referred to on the way down, a word for each step."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._left = MAX_SCHEMAS

    def reduce(self, schema: Any, trail: tuple[str, ...]) -> dict[str, Any]:
        self._left -= 1
        seen: set[str] = set()
        full = written_out(schema if isinstance(schema, dict) else {}, self._root, seen)
        types, nullable = _types_in(full)
        if self._left < 0 or len(trail) > MAX_DEPTH or not seen.isdisjoint(trail):
            return _only_type(types[0])
        trail = (*trail, *(seen or ("",)))
        alternatives = _listed(full.get("anyOf")) or _listed(full.get("oneOf"))
        choices = [choice for choice in alternatives if choice != {"type": "null"}]
        reduced = {key: full[key] for key in _KEPT if key in full}
        if nullable or len(choices) < len(alternatives):
            reduced["nullable"] = True
        if not choices and len(types) > 1:
            choices = [{**_bare(full), "type": one} for one in types]
        if len(choices) == 1:
            return self.reduce(choices[0], trail) | reduced
        if choices:
            # Vertex refuses whatever stands beside it.
            shared = {key: reduced[key] for key in _SHARED if key in reduced}
            return {"anyOf": [shared | self.reduce(choice, trail) for choice in choices]}
        return reduced | self._of_type(types[0], full, trail)

    def _of_type(self, kind: str, full: dict[str, Any], trail: tuple[str, ...]) -> dict[str, Any]:
        if words := _words(full):
            return {"type": "string", "enum": words}
        if kind == "array":
            return _only_type(kind) | ({"items": self.reduce(full["items"], trail)} if full.get("items") else {})
        if kind == "object":
            return {"type": kind} | self._properties(full, trail)
        return {"type": kind} | ({"format": full["format"]} if full.get("format") in _FORMATS.get(kind, ()) else {})

    def _properties(self, full: dict[str, Any], trail: tuple[str, ...]) -> dict[str, Any]:
        properties = full.get("properties")
        if not isinstance(properties, dict) or not properties:
            return {}
        reduced: dict[str, Any] = {
            "properties": {name: self.reduce(below, trail) for name, below in properties.items()}
        }
        required = [name for name in properties if name in _listed(full.get("required"))]
        return reduced | {"required": required} if required else reduced


def _only_type(kind: str) -> dict[str, Any]:
    """A list must say of what."""
    return {"type": kind, "items": {"type": "string"}} if kind == "array" else {"type": kind}


def _types_in(schema: dict[str, Any]) -> tuple[list[str], bool]:
    """The types, told by what else is there if none is given, and whether null is one of them."""
    given = schema.get("type")
    listed = given if isinstance(given, list) else [given]
    types = [one for one in listed if one in _TYPES]
    return types or [_implied_type(schema)], "null" in listed


def _implied_type(schema: dict[str, Any]) -> str:
    signs = {"properties": "object", "additionalProperties": "object", "items": "array", "minimum": "number"}
    return next((kind for sign, kind in signs.items() if sign in schema), "string")


def _words(schema: dict[str, Any]) -> list[str]:
    """An enumeration of words. Others cannot be said."""
    listed = [schema["const"]] if "const" in schema else _listed(schema.get("enum"))
    words = [value for value in listed if value is not None]
    return words if all(isinstance(word, str) and word for word in words) else []


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _bare(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in ("title", "description", "default", "nullable")}


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
