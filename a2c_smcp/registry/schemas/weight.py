"""How heavy a JSON schema is, found out before anything compiles it.

A schema is *plain* if the time of a check is at most its weight times the values in the arguments. A schema whose
references form a cycle is not: each level of the arguments may multiply the work. Nor is one with keywords that look
at their own schema again, or with references that only a resolver of URIs understands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

__all__ = ["MAX_PATTERNS", "MAX_WEIGHT", "Weight", "local_target", "weigh"]

MAX_WEIGHT = 20_000
MAX_PATTERNS = 32

_NESTS = (dict, list)
_DATA = frozenset({"const", "default", "enum", "example", "examples"})
_SHELVES = frozenset({"$defs", "definitions"})
_BY_NAME = _SHELVES | {"dependencies", "dependentSchemas", "patternProperties", "properties"}
"""Keywords with schemas by names that the author chose: a property called `default` is a schema, not data."""
_INVOLVED = frozenset(
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


class Weight(NamedTuple):
    """`total` is the number of subschemas and listed values when every local reference is written out, a cycle once."""

    total: int
    patterns: int
    has_large_patterns: bool
    is_plain: bool


def weigh(schema: dict[str, Any]) -> Weight:
    """Raises `RecursionError` for one that is nested too deeply."""
    return _Scales(schema).weigh()


def local_target(reference: object, root: dict[str, Any]) -> Any:
    """What a `$ref` into the same document leads to; `None` if nowhere."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for step in reference.split("/")[1:]:
        found = _below(found, unquote(step).replace("~1", "/").replace("~0", "~"))
    return found


def _below(node: Any, step: str) -> Any:
    if isinstance(node, Mapping):
        return node.get(step)
    is_index = isinstance(node, list) and step.isdecimal() and int(step) < len(node)
    return node[int(step)] if is_index else None


class _Scales:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._known: dict[int, int] = {}
        self._open: set[int] = set()
        self._patterns = 0
        self._has_large_patterns = False
        self._is_plain = True

    def weigh(self) -> Weight:
        total = self._weight(self._root)
        is_plain = self._is_plain and total <= MAX_WEIGHT and self._patterns <= MAX_PATTERNS
        return Weight(total, self._patterns, self._has_large_patterns, is_plain)

    def _weight(self, node: object) -> int:
        if not isinstance(node, _NESTS):
            return 0
        key = id(node)
        if key in self._open:
            self._is_plain = False
            return 0
        if key not in self._known:
            self._open.add(key)
            below = self._inside(node) if isinstance(node, dict) else sum(map(self._weight, node)) + len(node)
            self._open.discard(key)
            self._known[key] = 1 + below
        return self._known[key]

    def _inside(self, node: dict[str, Any]) -> int:
        self._look(node)
        weight = 0
        for name, child in node.items():
            if name == "$ref":
                weight += self._weight(self._target(child))
            elif name in _DATA:
                weight += len(child) if isinstance(child, _NESTS) else 0
            elif name in _SHELVES and node is self._root:
                continue
            elif name in _BY_NAME and isinstance(child, dict):
                weight += 1 + sum(map(self._weight, child.values()))
            else:
                weight += self._weight(child)
        return weight

    def _look(self, node: dict[str, Any]) -> None:
        own, of_names = node.get("pattern"), node.get("patternProperties")
        patterns = [own, *(of_names if isinstance(of_names, dict) else ())]
        for pattern in (each for each in patterns if isinstance(each, str)):
            self._patterns += 1
            self._has_large_patterns |= "{" in pattern or len(pattern) > _LONG_PATTERN  # which may repeat a part
        has_own_base = node is not self._root and any(isinstance(node.get(name), str) for name in ("$id", "id"))
        if has_own_base or not _INVOLVED.isdisjoint(node):
            self._is_plain = False

    def _target(self, reference: object) -> Any:
        if isinstance(reference, str) and (not reference.startswith("#") or reference[1:2] not in ("", "/")):
            has_base = "$id" in self._root or "id" in self._root
            if has_base or _METASCHEMAS in reference or not _NAMES_A_FILE.fullmatch(reference):
                self._is_plain = False
        return local_target(reference, self._root)
