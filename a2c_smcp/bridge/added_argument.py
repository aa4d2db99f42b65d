"""Adds an argument to a tool's schema: valid with it is what was valid without it.

A schema consists of parts that judge the same object: itself, what it refers to at its top, and the branches of
`allOf`, `anyOf`, `oneOf`, `if` and so on. Any of them may refuse properties that it does not know, so the argument is
made known to all of them. References at the top are replaced by what they refer to; the rest stays as it is.

Some schemas cannot be changed safely: those that judge properties by patterns of their names, and those whose parts are
used for other objects, too. They are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, TypeAlias

__all__ = ["CannotAdd", "add_argument"]

Schema: TypeAlias = Mapping[str, Any]

_LISTS = ("allOf", "anyOf", "oneOf")
_BRANCHES = ("if", "then", "else", "not")
_BY_PROPERTY = ("dependentSchemas", "dependencies")
_UNSAFE = {"patternProperties", "const", "enum"}
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_KINDS: dict[str, type] = {
    **dict.fromkeys(("properties", "dependentRequired", *_BY_PROPERTY), dict),
    **dict.fromkeys(("required", *_LISTS), list),
    **dict.fromkeys(("minProperties", "maxProperties"), int),
    "$ref": str,
}
_SAYS_NOTHING = {"type", "title", "description", "$schema", "$id", "$comment", "$defs", "definitions", "examples"}
_MOST_PARTS = 100


class CannotAdd(Exception):
    """The schema cannot be changed safely."""


def add_argument(schema: Schema, names: Iterable[str], describe: Callable[[str], Schema]) -> tuple[str, dict[str, Any]]:
    """The first of the names that the tool itself does not use, and the schema with a required argument of that name.

    `describe` is given the name and returns the argument's own schema. If all names are used, the last is numbered.
    Raises `CannotAdd`.
    """
    if not all(_is_elsewhere(reference) for reference in _references(schema)):
        raise CannotAdd
    argument = _unused(names, {name for part in _parts(schema) for name in _mentioned(part)})
    changed = _knowing(argument, schema, schema)
    added = {argument: dict(describe(argument))}
    properties = {**added, **changed.get("properties", {}), **added}  # first, and not replaced
    required = [argument, *changed.get("required", ())]
    return argument, {"type": "object", **changed, "properties": properties, "required": required}


def _unused(names: Iterable[str], used: set[str]) -> str:
    last = ""
    for last in names:
        if last not in used:
            return last
    return next(name for number in count(2) if (name := f"{last}_{number}") not in used)


def _references(schema: Schema) -> Iterator[str]:
    """All references anywhere in a schema, and whatever looks like one."""
    rest: list[Any] = [schema]
    while rest:
        value = rest.pop()
        if isinstance(value, Mapping):
            yield from (value[key] for key in _REFERENCES if isinstance(value.get(key), str))
            rest += value.values()
        elif isinstance(value, list):
            rest += value


def _is_elsewhere(reference: str) -> bool:
    """Whether it points into the schema, but to no part that is changed."""
    start, _, path = reference.partition("/")
    return start == "#" and path.partition("/")[0] not in {"", *_LISTS, *_BRANCHES, *_BY_PROPERTY}


def _parts(root: Schema) -> Iterator[Schema]:
    """All parts that judge the same object. Raises `CannotAdd` if one is unsafe or malformed, or if they never end."""
    rest: list[Any] = [root]
    for _ in range(_MOST_PARTS):
        part = rest.pop()
        if not isinstance(part, bool):
            _check(part)
            yield part
            rest += _branches(part)
            if "$ref" in part:
                rest.append(_referred(part["$ref"], root))
        if not rest:
            return
    raise CannotAdd


def _check(part: Any) -> None:
    if not isinstance(part, Mapping) or not _UNSAFE.isdisjoint(part):
        raise CannotAdd
    if not all(isinstance(part[key], kind) for key, kind in _KINDS.items() if key in part):
        raise CannotAdd


def _mentioned(part: Schema) -> Iterator[str]:
    for key in ("properties", "required", "dependentRequired", *_BY_PROPERTY):
        yield from part.get(key, ())


def _branches(part: Schema) -> Iterator[Any]:
    for key in _LISTS:
        yield from part.get(key, ())
    for key in _BRANCHES:
        yield from (part[key],) if key in part else ()
    for key in _BY_PROPERTY:
        yield from (each for each in part.get(key, {}).values() if not isinstance(each, list))


def _knowing(argument: str, part: Any, root: Schema) -> Any:
    """The part with the argument made known to it and its branches. It must have been checked."""
    if isinstance(part, bool):
        return part

    def knowing(branch: Any) -> Any:
        return _knowing(argument, branch, root)

    result = {key: value for key, value in part.items() if key != "$ref"}
    result |= {key: [*map(knowing, part[key])] for key in _LISTS if key in part}
    result |= {key: knowing(part[key]) for key in _BRANCHES if key in part}
    for key in filter(part.__contains__, _BY_PROPERTY):
        result[key] = {name: each if isinstance(each, list) else knowing(each) for name, each in part[key].items()}
    result |= _bounds(argument, part)
    return _joined(result, knowing(_referred(part["$ref"], root))) if "$ref" in part else result


def _bounds(argument: str, part: Schema) -> dict[str, Any]:
    """What a part says of properties in general, but for the argument. It is required, and counts as one more."""
    changed: dict[str, Any] = {key: part[key] + 1 for key in ("minProperties", "maxProperties") if key in part}
    if not all(part.get(key, True) is True for key in ("additionalProperties", "unevaluatedProperties")):
        changed["properties"] = {**part.get("properties", {}), argument: {}}
    if "propertyNames" in part:
        changed["propertyNames"] = {"anyOf": [{"const": argument}, part["propertyNames"]]}
    return changed


def _referred(reference: str, root: Schema) -> Any:
    """What a reference into the schema points to."""
    found: Any = root
    for step in reference.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or key not in found:
            raise CannotAdd
        found = found[key]
    return found


def _joined(one: dict[str, Any], other: Any) -> dict[str, Any]:
    """Both must hold. They become one object if the first says nothing of its own: many readers know no `allOf`."""
    if isinstance(other, Mapping) and one.keys() <= _SAYS_NOTHING and one.get("type", "object") == "object":
        return {**other, **one}
    return {**one, "allOf": [*one.get("allOf", ()), other]}
