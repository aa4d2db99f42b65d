"""The properties of a tool object, read once when it is registered: name, description, schema, tags, hints."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MCP_FIELDS = ("title", "icons", "annotations", "_meta")
"""Fields of MCP's list of tools that a tool may have in its `meta`."""

_HINTS = {"idempotent": "idempotentHint", "read_only": "readOnlyHint"}


@dataclass(frozen=True, slots=True)
class ToolInfo:
    """The four elements of a tool (001 §3) and what the registry's rules use. All of it is plain JSON.

    `mcp_fields` has the fields that only MCP's list of tools shows. Rules use `granted_tags` and `repeatable`: a tool
    from a source that is not trusted has no granted tags and is not repeatable, whatever it says about itself.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    tags: frozenset[str]
    granted_tags: frozenset[str]
    repeatable: bool
    origin: str | None
    mcp_fields: dict[str, Any]


def read_tool_info(tool: Any) -> ToolInfo:
    """Read a tool. Tags, hints and origin are attributes of the tool, or entries of its `meta`.

    Raises `TypeError` if the object is not a tool, or has properties that are not JSON.
    """
    name = _name_of(tool)
    meta = getattr(tool, "meta", None)
    meta = meta if isinstance(meta, Mapping) else {}
    annotations = _annotations(tool, meta)
    origin = _attribute(tool, meta, "origin")
    tags = _tags(name, _attribute(tool, meta, "tags"))
    return ToolInfo(
        name=name,
        description=str(getattr(tool, "description", None) or ""),
        input_schema=_plain_json(name, "input_schema", getattr(tool, "input_schema", None) or {}),
        tags=tags,
        granted_tags=tags if _is_trusted(tool, "tags") else frozenset(),
        repeatable=_is_trusted(tool, "hints") and any(annotations.get(hint) is True for hint in _HINTS.values()),
        origin=None if origin is None else str(origin),
        mcp_fields=_mcp_fields(tool, {**meta, "annotations": annotations}, origin),
    )


def ui_of(listing: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metadata of MCP Apps in a listing of a tool: its page, and who may call it."""
    meta = listing.get("_meta")
    ui = meta.get("ui") if isinstance(meta, Mapping) else None
    return ui if isinstance(ui, Mapping) else {}


def is_for_models(listing: Mapping[str, Any]) -> bool:
    """False for a tool that only apps may call."""
    visibility = ui_of(listing).get("visibility")
    return not isinstance(visibility, list) or "model" in visibility


def as_words(words: Iterable[str] | None) -> frozenset[str] | None:
    """A set of words. A single string is one word."""
    if words is None:
        return None
    return frozenset((words,) if isinstance(words, str) else map(str, words))


def kind_of(value: Any) -> str:
    """A value's type, for error messages."""
    return f"{type(value).__name__} object" if not isinstance(value, type) else f"class {value.__name__}"


def _name_of(tool: Any) -> str:
    name = getattr(tool, "name", None)
    if not isinstance(name, str) or not name:
        hint = "; a function is registered with registry.tool(function)" if inspect.isroutine(tool) else ""
        raise TypeError(f"{kind_of(tool)} has no name, so it is not a tool{hint}")
    if not callable(getattr(tool, "call", None)):
        raise TypeError(f"{kind_of(tool)} {name!r} has no call(arguments), so it is not a tool")
    return name


def _attribute(tool: Any, meta: Mapping[str, Any], key: str) -> Any:
    value = getattr(tool, key, None)
    return meta.get(key) if value is None else value


def _tags(name: str, tags: Any) -> frozenset[str]:
    try:
        return as_words(tags) or frozenset()
    except TypeError:
        raise TypeError(f"the tags of tool {name!r} are not a list of words") from None


def _is_trusted(tool: Any, what: str) -> bool:
    """Tools of computers and MCP servers have `trusts_tags` and `trusts_hints`; other tools are the program's own."""
    return getattr(tool, f"trusts_{what}", True) is True


def _annotations(tool: Any, meta: Mapping[str, Any]) -> dict[str, Any]:
    """MCP's annotations; `idempotent` and `read_only` are our names for two of them."""
    annotations = meta.get("annotations")
    known = dict(annotations) if isinstance(annotations, Mapping) else {}
    ours = {hint: _attribute(tool, meta, word) for word, hint in _HINTS.items()}
    return known | {hint: value for hint, value in ours.items() if isinstance(value, bool)}


def _mcp_fields(tool: Any, meta: Mapping[str, Any], origin: Any) -> dict[str, Any]:
    fields = {key: meta[key] for key in MCP_FIELDS if meta.get(key)}
    if output := getattr(tool, "output_schema", None):
        fields["outputSchema"] = output
    if origin is not None:
        fields["_meta"] = {**fields.get("_meta", {}), "origin": str(origin)}
    return _plain_json(tool.name, "meta", fields)


def _plain_json(name: str, what: str, value: Any) -> dict[str, Any]:
    """A copy made of dicts and lists. NaN and infinities become null."""
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
