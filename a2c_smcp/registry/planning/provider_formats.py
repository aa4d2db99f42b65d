"""The list of tools in the format of each reader: 001's planner, OpenAI, Anthropic, Gemini, MCP."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal, TypeAlias

from a2c_smcp.registry.schemas.cost import local_target
from a2c_smcp.registry.tool_info import ToolInfo

# JSON schemas reduced to what model providers accept.
#
# OpenAI and Anthropic refuse a whole request if one tool's schema has a keyword such as `anyOf` at its top level:
# `plain_object` writes such a schema as one object. Gemini takes a subset of OpenAPI 3.0 without references:
# `gemini_schema` leaves out what that cannot say. Both accept all arguments that the original accepts, and perhaps
# more: the tool itself still checks them.

MAX_DEPTH, MAX_SCHEMAS = 20, 1000
"""Below this depth, after this number, and where a schema contains itself, only the type is said."""

_REFUSED_AT_TOP = frozenset({"$ref", "allOf", "anyOf", "oneOf", "not", "enum", "const"})
_GEMINI_KEYWORDS = (
    *("title", "description", "default", "nullable", "pattern", "minimum", "maximum"),
    *("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"),
)
_GEMINI_SHARED = ("title", "description", "nullable")
_GEMINI_TYPES = ("string", "number", "integer", "boolean", "array", "object")
_GEMINI_FORMATS = {
    "number": ("float", "double"),
    "integer": ("int32", "int64"),
    "string": ("enum", "date-time"),
}
_TYPE_BY_KEYWORD = {"properties": "object", "additionalProperties": "object", "items": "array", "minimum": "number"}


def plain_object(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema as one object, with the properties of all its alternatives."""
    if _REFUSED_AT_TOP.isdisjoint(schema):
        full = schema
    else:
        try:
            full = _with_alternatives(schema, schema, set())
        except RecursionError:
            full = {}
    properties = full.get("properties", {})
    return {**full, "type": "object"} | ({} if isinstance(properties, dict) else {"properties": {}})


def gemini_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema as far as a function declaration of Gemini can say it."""
    try:
        return _GeminiReduction(schema).reduce(schema, ())
    except RecursionError:
        return {"type": "object"}


def _inlined(schema: dict[str, Any], root: dict[str, Any], seen: set[str]) -> dict[str, Any]:
    """The schema with its reference and its `allOf` written into it. A reference in `seen` is not followed again."""
    reference = schema.get("$ref")
    parts = _objects_in(schema, "allOf")
    if isinstance(reference, str) and reference not in seen:
        seen.add(reference)
        target = local_target(reference, root)
        parts.insert(0, target if isinstance(target, dict) else {})
    merged: dict[str, Any] = {}
    for part in parts:
        merged = _joined(merged, _inlined(part, root, seen))
    return _joined(merged, {key: value for key, value in schema.items() if key not in ("$ref", "allOf")})


def _with_alternatives(schema: dict[str, Any], root: dict[str, Any], seen: set[str]) -> dict[str, Any]:
    full = _inlined(schema, root, seen)
    properties = dict(_properties(full))
    for alternative in (*_objects_in(full, "anyOf"), *_objects_in(full, "oneOf")):
        properties |= {**_properties(_with_alternatives(alternative, root, seen)), **properties}
    return {key: value for key, value in full.items() if key not in _REFUSED_AT_TOP} | {"properties": properties}


def _joined(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    joined = one | other
    if isinstance(one.get("properties"), dict) and isinstance(other.get("properties"), dict):
        joined["properties"] = one["properties"] | other["properties"]
    if "required" in joined:
        joined["required"] = [*dict.fromkeys(_required(one) + _required(other))]
    return joined


class _GeminiReduction:
    """`trail` has the references that were followed on the way down, and an empty word for a step without one."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._schemas_left = MAX_SCHEMAS

    def reduce(self, schema: Any, trail: tuple[str, ...]) -> dict[str, Any]:
        self._schemas_left -= 1
        seen: set[str] = set()
        full = _inlined(schema if isinstance(schema, dict) else {}, self._root, seen)
        types, is_nullable = _types_in(full)
        if self._schemas_left < 0 or len(trail) > MAX_DEPTH or not seen.isdisjoint(trail):
            return _only_type(types[0])
        trail = (*trail, *(seen or ("",)))
        choices, has_null_choice = _choices_in(full, types)
        reduced = {key: full[key] for key in _GEMINI_KEYWORDS if key in full}
        if is_nullable or has_null_choice:
            reduced["nullable"] = True
        if choices:
            return self._any_of(choices, reduced, trail)
        return reduced | self._of_type(types[0], full, trail)

    def _any_of(self, choices: list[dict[str, Any]], reduced: dict[str, Any], trail: tuple[str, ...]) -> dict[str, Any]:
        if len(choices) == 1:
            return self.reduce(choices[0], trail) | reduced
        # Vertex refuses other keywords beside `anyOf`, so each choice repeats them.
        shared = {key: reduced[key] for key in _GEMINI_SHARED if key in reduced}
        return {"anyOf": [shared | self.reduce(choice, trail) for choice in choices]}

    def _of_type(self, kind: str, full: dict[str, Any], trail: tuple[str, ...]) -> dict[str, Any]:
        if words := _enumerated_words(full):
            return {"type": "string", "enum": words}
        if kind == "array":
            return _only_type(kind) | ({"items": self.reduce(full["items"], trail)} if full.get("items") else {})
        if kind == "object":
            return {"type": kind} | self._object(full, trail)
        has_format = full.get("format") in _GEMINI_FORMATS.get(kind, ())
        return {"type": kind} | ({"format": full["format"]} if has_format else {})

    def _object(self, full: dict[str, Any], trail: tuple[str, ...]) -> dict[str, Any]:
        properties = full.get("properties")
        if not isinstance(properties, dict) or not properties:
            return {}
        reduced: dict[str, Any] = {
            "properties": {name: self.reduce(below, trail) for name, below in properties.items()}
        }
        required = [name for name in properties if name in _as_list(full.get("required"))]
        return reduced | {"required": required} if required else reduced


def _only_type(kind: str) -> dict[str, Any]:
    """An array must say what its items are."""
    return {"type": kind, "items": {"type": "string"}} if kind == "array" else {"type": kind}


def _types_in(schema: dict[str, Any]) -> tuple[list[str], bool]:
    """The types, guessed from other keywords if there are none, and True if null is one of them."""
    declared = schema.get("type")
    listed = declared if isinstance(declared, list) else [declared]
    types = [one for one in listed if one in _GEMINI_TYPES]
    guessed = next((kind for keyword, kind in _TYPE_BY_KEYWORD.items() if keyword in schema), "string")
    return types or [guessed], "null" in listed


def _choices_in(schema: dict[str, Any], types: list[str]) -> tuple[list[dict[str, Any]], bool]:
    """The alternatives of a schema without null, one for each type if it has several, and True if null was one."""
    alternatives = _as_list(schema.get("anyOf")) or _as_list(schema.get("oneOf"))
    choices = [choice for choice in alternatives if choice != {"type": "null"}]
    if not choices and len(types) > 1:
        bare = {key: schema[key] for key in schema if key not in ("title", "description", "default", "nullable")}
        return [{**bare, "type": one} for one in types], bool(alternatives)
    return choices, len(choices) < len(alternatives)


def _enumerated_words(schema: dict[str, Any]) -> list[str]:
    """The values of an enumeration of words; empty for other enumerations, which Gemini does not take."""
    listed = [schema["const"]] if "const" in schema else _as_list(schema.get("enum"))
    words = [value for value in listed if value is not None]
    return words if all(isinstance(word, str) and word for word in words) else []


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _required(schema: dict[str, Any]) -> list[str]:
    return [name for name in _as_list(schema.get("required")) if isinstance(name, str)]


def _objects_in(schema: dict[str, Any], keyword: str) -> list[dict[str, Any]]:
    return [part for part in _as_list(schema.get(keyword)) if isinstance(part, dict)]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


Format: TypeAlias = Literal["openai", "anthropic", "gemini", "mcp"]

MAX_NAME = 64

_PORTABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")


def in_format(format: str | None, tools: Sequence[ToolInfo]) -> Any:  # noqa: A002
    """Plain JSON. Raises `ValueError` for an unknown format."""
    if format not in FORMATS:
        raise ValueError(f"there is no format {format!r}, only {', '.join(filter(None, FORMATS))}")
    return FORMATS[format](tools)


def portable_name(name: str) -> str:
    """The name itself if every provider accepts it, else a similar name with a hash of the original.

    Providers accept up to 64 of `A-Z a-z 0-9 _ -`, with a letter or `_` first. The result depends on the name only: a
    model's call finds the same tool whatever else is registered.
    """
    if _PORTABLE.fullmatch(name):
        return name
    mark = sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    plain = _FOREIGN.sub("_", name)
    plain = plain if plain[0].isalpha() or plain[0] == "_" else f"_{plain}"
    return f"{plain[: MAX_NAME - len(mark) - 1]}_{mark}"


def _openai(tools: Sequence[ToolInfo]) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": portable_name(tool.name),
                "description": tool.description,
                "parameters": {"properties": {}} | plain_object(tool.input_schema),
            },
        }
        for tool in tools
    ]


def _anthropic(tools: Sequence[ToolInfo]) -> list[dict[str, Any]]:
    return [
        {
            "name": portable_name(tool.name),
            "description": tool.description,
            "input_schema": plain_object(tool.input_schema),
        }
        for tool in tools
    ]


def _declaration(tool: ToolInfo) -> dict[str, Any]:
    """A function without parameters has no `parameters`: Gemini refuses an object without properties."""
    declaration: dict[str, Any] = {"name": portable_name(tool.name), "description": tool.description}
    parameters = gemini_schema(plain_object(tool.input_schema))
    return declaration | {"parameters": parameters} if parameters.get("properties") else declaration


def _mcp(tools: Sequence[ToolInfo]) -> list[dict[str, Any]]:
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "inputSchema": {"type": "object", **tool.input_schema},
            **tool.mcp_fields,
        }
        for tool in tools
    ]


FORMATS: Mapping[str | None, Callable[[Sequence[ToolInfo]], Any]] = {
    None: lambda tools: {
        tool.name: {"description": tool.description, "input_schema": tool.input_schema} for tool in tools
    },
    "openai": _openai,
    "anthropic": _anthropic,
    "gemini": lambda tools: [{"function_declarations": [_declaration(tool) for tool in tools]}],
    "mcp": _mcp,
}
