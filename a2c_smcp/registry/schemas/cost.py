"""The cost of a check against a JSON schema, measured before anything compiles the schema.

A schema is *linear* if the time of a check is at most its cost times the number of values in the arguments. Not linear
are schemas whose references form a cycle (each level of the arguments may multiply the work), schemas with keywords
that look at their own schema again, and schemas with references that only a resolver of URIs understands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

MAX_COST = 20_000
MAX_PATTERNS = 32

_CONTAINERS = (dict, list)
_DATA = frozenset({"const", "default", "enum", "example", "examples"})
_DEFINITIONS = frozenset({"$defs", "definitions"})
_BY_NAME = _DEFINITIONS | {"dependencies", "dependentSchemas", "patternProperties", "properties"}
"""Keywords with schemas by names that the author chose: a property called `default` is a schema, not data."""
_NOT_LINEAR = frozenset(
    {
        "$anchor",
        "$dynamicAnchor",
        "$dynamicRef",
        "$recursiveAnchor",
        "$recursiveRef",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_LONG_PATTERN = 1000
_METASCHEMAS = "json-schema.org/"
_NAMES_A_FILE = re.compile(r"(?:[^?#]*/)?\w[\w.-]*(?:#.*)?", re.ASCII | re.DOTALL)
"""A reference whose path ends in a name. Others, such as `.` and `a/..`, may lead back to the schema itself."""


class SchemaCost(NamedTuple):
    """`total` is the number of subschemas and listed values with every local reference written out, a cycle once."""

    total: int
    patterns: int
    has_large_patterns: bool
    is_linear: bool


def schema_cost(schema: dict[str, Any]) -> SchemaCost:
    """Raises `RecursionError` for a schema that is nested too deeply."""
    return _Counting(schema).result()


def local_target(reference: object, root: dict[str, Any]) -> Any:
    """The target of a `$ref` into the same document; `None` if there is none."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    target: Any = root
    for step in reference.split("/")[1:]:
        target = _child(target, unquote(step).replace("~1", "/").replace("~0", "~"))
    return target


def _child(node: Any, step: str) -> Any:
    if isinstance(node, Mapping):
        return node.get(step)
    is_index = isinstance(node, list) and step.isdecimal() and int(step) < len(node)
    return node[int(step)] if is_index else None


class _Counting:
    """One walk through a schema. `_open` has the nodes on the way down: meeting one of them again is a cycle."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[int, int] = {}
        self._open: set[int] = set()
        self._patterns = 0
        self._has_large_patterns = False
        self._is_linear = True

    def result(self) -> SchemaCost:
        total = self._cost(self._root)
        is_linear = self._is_linear and total <= MAX_COST and self._patterns <= MAX_PATTERNS
        return SchemaCost(total, self._patterns, self._has_large_patterns, is_linear)

    def _cost(self, node: object) -> int:
        if not isinstance(node, _CONTAINERS):
            return 0
        key = id(node)
        if key in self._open:
            self._is_linear = False
            return 0
        if key not in self._known:
            self._open.add(key)
            below = self._cost_inside(node) if isinstance(node, dict) else sum(map(self._cost, node)) + len(node)
            self._open.discard(key)
            self._known[key] = 1 + below
        return self._known[key]

    def _cost_inside(self, node: dict[str, Any]) -> int:
        self._look_at_keywords(node)
        cost = 0
        for name, child in node.items():
            if name == "$ref":
                cost += self._cost(self._target(child))
            elif name in _DATA:
                cost += len(child) if isinstance(child, _CONTAINERS) else 0
            elif name in _DEFINITIONS and node is self._root:
                continue
            elif name in _BY_NAME and isinstance(child, dict):
                cost += 1 + sum(map(self._cost, child.values()))
            else:
                cost += self._cost(child)
        return cost

    def _look_at_keywords(self, node: dict[str, Any]) -> None:
        own, of_names = node.get("pattern"), node.get("patternProperties")
        patterns = [own, *(of_names if isinstance(of_names, dict) else ())]
        for pattern in (text for text in patterns if isinstance(text, str)):
            self._patterns += 1
            # A repetition such as {1000} makes a short pattern large.
            self._has_large_patterns |= "{" in pattern or len(pattern) > _LONG_PATTERN
        has_own_base = node is not self._root and any(isinstance(node.get(name), str) for name in ("$id", "id"))
        if has_own_base or not _NOT_LINEAR.isdisjoint(node):
            self._is_linear = False

    def _target(self, reference: object) -> Any:
        if isinstance(reference, str) and (not reference.startswith("#") or reference[1:2] not in ("", "/")):
            has_base = "$id" in self._root or "id" in self._root
            if has_base or _METASCHEMAS in reference or not _NAMES_A_FILE.fullmatch(reference):
                self._is_linear = False
        return local_target(reference, self._root)
