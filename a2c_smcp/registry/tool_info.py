"""What a tool says of itself, read once: its four elements (001 §3), and what else a registry can make use of."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Traits", "as_words", "kind_of", "read_traits"]

_SHOWN = ("title", "annotations", "_meta")
_HINTS = {"idempotent": "idempotentHint", "read_only": "readOnlyHint"}


@dataclass(frozen=True, slots=True)
class Traits:
    """`wire` is what only MCP has words for. All of it is plain JSON.

    `granted_tags` and `repeatable` are what rules go by. A tool whose source is not trusted has no granted tags and is
    not repeatable, whatever it says of itself.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    tags: frozenset[str]
    granted_tags: frozenset[str]
    repeatable: bool
    origin: str | None
    wire: dict[str, Any]


def read_traits(tool: Any) -> Traits:
    """Tags, hints and origin are attributes of the tool, or entries of its `meta`. Raises `TypeError` for no tool."""
    name = _name_of(tool)
    meta = getattr(tool, "meta", None)
    said = meta if isinstance(meta, Mapping) else {}
    annotations = _annotations(tool, said)
    origin = _said(tool, said, "origin")
    tags = _tags(name, _said(tool, said, "tags"))
    return Traits(
        name=name,
        description=str(getattr(tool, "description", None) or ""),
        input_schema=_plain(name, "input_schema", getattr(tool, "input_schema", None) or {}),
        tags=tags,
        granted_tags=tags if _is_trusted(tool, "tags") else frozenset(),
        repeatable=_is_trusted(tool, "hints") and any(annotations.get(hint) is True for hint in _HINTS.values()),
        origin=None if origin is None else str(origin),
        wire=_wire(tool, {**said, "annotations": annotations}, origin),
    )


def as_words(words: Iterable[str] | None) -> frozenset[str] | None:
    """One word is one word, not as many as it has letters."""
    if words is None:
        return None
    return frozenset((words,) if isinstance(words, str) else map(str, words))


def kind_of(value: Any) -> str:
    return f"{type(value).__name__} object" if not isinstance(value, type) else f"class {value.__name__}"


def _name_of(tool: Any) -> str:
    name = getattr(tool, "name", None)
    if not isinstance(name, str) or not name:
        hint = "; a function is registered with registry.tool(function)" if inspect.isroutine(tool) else ""
        raise TypeError(f"{kind_of(tool)} has no name, so it is not a tool{hint}")
    if not callable(getattr(tool, "call", None)):
        raise TypeError(f"{kind_of(tool)} {name!r} has no call(arguments), so it is not a tool")
    return name


def _said(tool: Any, meta: Mapping[str, Any], key: str) -> Any:
    value = getattr(tool, key, None)
    return meta.get(key) if value is None else value


def _tags(name: str, tags: Any) -> frozenset[str]:
    try:
        return as_words(tags) or frozenset()
    except TypeError:
        raise TypeError(f"the tags of tool {name!r} are not a list of words") from None


def _is_trusted(tool: Any, what: str) -> bool:
    """Tools that come from elsewhere have `trusts_tags` and `trusts_hints`; others are the program's own."""
    return getattr(tool, f"trusts_{what}", True) is True


def _annotations(tool: Any, meta: Mapping[str, Any]) -> dict[str, Any]:
    """MCP's annotations; `idempotent` and `read_only` are our own words for two of them."""
    annotations = meta.get("annotations")
    known = dict(annotations) if isinstance(annotations, Mapping) else {}
    ours = {hint: _said(tool, meta, word) for word, hint in _HINTS.items()}
    return known | {hint: said for hint, said in ours.items() if isinstance(said, bool)}


def _wire(tool: Any, meta: Mapping[str, Any], origin: Any) -> dict[str, Any]:
    shown = {key: meta[key] for key in _SHOWN if meta.get(key)}
    if output := getattr(tool, "output_schema", None):
        shown["outputSchema"] = output
    if origin is not None:
        shown["_meta"] = {**shown.get("_meta", {}), "origin": str(origin)}
    return _plain(tool.name, "meta", shown)


def _plain(name: str, what: str, value: Any) -> dict[str, Any]:
    """A copy made of dicts and lists, which `json.dumps` takes whoever calls it. What is no number in JSON is null."""
    try:
        copy = json.loads(json.dumps(value, default=_as_dict), parse_constant=lambda _: None)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"the {what} of tool {name!r} is not JSON: {error}") from None
    if not isinstance(copy, dict):
        raise TypeError(f"the {what} of tool {name!r} is not an object")
    return copy


def _as_dict(value: Any) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"it contains {kind_of(value)}")
