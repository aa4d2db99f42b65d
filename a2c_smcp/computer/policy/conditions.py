"""Mistakes in the `arguments` of a rule that JSON Schema silently accepts.

A validator ignores keywords that it does not know, and says that everything fits: a misspelt `propertes` would let all
arguments through. So unknown keywords are errors here (`unknown_keywords`). Others are warnings (`traps`): JSON Schema
means what it says there, but often not what was meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["traps", "unknown_keywords"]

_BY_NAME = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_ONE = frozenset(
    {"additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then", "unevaluatedItems"}
)
_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_CHECKED = frozenset(
    {
        "$ref", "const", "dependentRequired", "enum", "exclusiveMaximum", "exclusiveMinimum", "maxContains",
        "maximum", "maxItems", "maxLength", "maxProperties", "minContains", "minimum", "minItems", "minLength",
        "minProperties", "multipleOf", "pattern", "required", "type", "uniqueItems",
    }
)  # fmt: skip
_NOTES = frozenset({"$comment", "$id", "$schema", "default", "description", "examples", "title"})
_NARROWS = frozenset({"$ref", "allOf", "anyOf", "const", "enum", "oneOf", "type"})


def unknown_keywords(schema: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each keyword that nothing would check."""
    for place, node in _nodes(schema, ""):
        for keyword in node.keys() - _BY_NAME - _ONE - _SEVERAL - _CHECKED - _NOTES:
            if keyword == "format":
                yield f"{place}format is not checked: write a pattern"
            else:
                yield f"{place}{keyword} is no keyword that is checked; names of arguments go into properties"


def traps(schema: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each condition that arguments can go round, in a rule that allows."""
    required = schema.get("required") or ()
    for name, node in (schema.get("properties") or {}).items():
        if name not in required:
            yield f"{name} is not in required: the rule matches calls without it, too"
        if isinstance(node, Mapping) and node and _NARROWS.isdisjoint(node):
            yield f"{name} has no type: its conditions hold for values of every other type"
    for place, node in _nodes(schema, ""):
        pattern = node.get("pattern")
        if isinstance(pattern, str) and not (pattern.startswith("^") and pattern.endswith("$")):
            yield f"{place}pattern does not begin with ^ and end with $: it also matches inside a longer text"


def _nodes(schema: Any, place: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All subschemas, each with where it is."""
    if not isinstance(schema, Mapping):
        return
    yield place, schema
    for keyword, inner in schema.items():
        if keyword in _BY_NAME and isinstance(inner, Mapping):
            for name, node in inner.items():
                yield from _nodes(node, f"{place}{keyword}.{name}.")
        elif keyword in _ONE:
            yield from _nodes(inner, f"{place}{keyword}.")
        elif keyword in _SEVERAL and isinstance(inner, list):
            for index, node in enumerate(inner):
                yield from _nodes(node, f"{place}{keyword}.{index}.")
