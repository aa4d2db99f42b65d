"""What MCP servers list, taken one by one: repaired where possible, left out where not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["WINDOW_SCHEME", "repaired_tool", "sound_tools", "uris_of", "windows_among"]

WINDOW_SCHEME = "window://"
_LONGEST_NAME = 256
_LONGEST_URI = 2048
_OPTIONAL: dict[str, type] = {
    "title": str,
    "description": str,
    "outputSchema": dict,
    "annotations": dict,
    "icons": list,
    "_meta": dict,
}


def repaired_tool(raw: object) -> dict[str, Any] | None:
    """The tool as listed, without the fields that have the wrong shape. `None` without a usable name."""
    if not isinstance(raw, dict):
        return None
    name = raw.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        return None
    tool = {key: value for key, value in raw.items() if isinstance(value, _OPTIONAL.get(key, object))}
    schema = tool.get("inputSchema")
    tool["inputSchema"] = {"type": "object"} | schema if isinstance(schema, dict) else {"type": "object"}
    return tool


def sound_tools(listed: Iterable[object]) -> tuple[list[dict[str, Any]], int]:
    """The usable tools, the first of each name, and how many were left out."""
    tools: dict[str, dict[str, Any]] = {}
    left_out = 0
    for raw in listed:
        tool = repaired_tool(raw)
        if tool is None or tool["name"] in tools:
            left_out += 1
        else:
            tools[tool["name"]] = tool
    return list(tools.values()), left_out


def windows_among(listed: Iterable[object]) -> list[dict[str, Any]]:
    """The resources that are windows, in the server's own order, each URI once."""
    windows: dict[str, dict[str, Any]] = {}
    for raw in listed:
        uri = raw.get("uri") if isinstance(raw, dict) else None
        if (
            isinstance(raw, dict)
            and isinstance(uri, str)
            and uri.startswith(WINDOW_SCHEME)
            and len(uri) <= _LONGEST_URI
        ):
            windows.setdefault(uri, raw)
    return list(windows.values())


def uris_of(windows: Iterable[dict[str, Any]]) -> set[str]:
    return {window["uri"] for window in windows}
