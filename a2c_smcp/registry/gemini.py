"""JSON Schema as far as Gemini's function declarations go: a subset of OpenAPI 3.0, without references."""

from __future__ import annotations

from typing import Any

from a2c_smcp.registry.objects import written_out

__all__ = ["reduced_schema"]

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
