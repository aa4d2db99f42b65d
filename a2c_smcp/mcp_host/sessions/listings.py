"""Lists of tools and resources that an MCP server sends in pages: read, repaired and bounded.

A server may never end its pages, list more than we can use, or list items with faults. Items are repaired where
possible and left out otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias, TypeGuard

import anyio

from a2c_smcp.errors import BadRequest
from a2c_smcp.mcp_host.policy import HostPolicy
from a2c_smcp.protocol.codec import dumps

__all__ = [
    "MAX_TOOLS",
    "MAX_TOOL_BYTES",
    "WINDOW_SCHEME",
    "AskForPage",
    "ToolList",
    "WindowList",
    "read_pages",
    "repaired_tool",
    "uris_of",
    "wrong_headers",
]

logger = logging.getLogger(__name__)

MAX_TOOLS, MAX_TOOL_BYTES, MAX_LISTED_BYTES = 1000, 64 * 1024, 4 * 1024 * 1024
"""WIRE §6, for each server; more bytes could not be sent to an agent."""
MAX_WINDOWS = 1000
WINDOW_SCHEME = "window://"
_NAMED = 5
_LONGEST_NAME = 256
_LONGEST_URI = 2048
_OPTIONAL: dict[str, type] = {
    "title": str,
    "description": str,
    "outputSchema": dict,
    "annotations": dict,
    "icons": list,
    "execution": dict,
    "_meta": dict,
}


AskForPage: TypeAlias = Callable[[str | None], Awaitable[dict[str, Any]]]
"""Asks for the page at this cursor."""


async def read_pages(
    ask: AskForPage,
    field: str,
    into: ToolList | WindowList,
    policy: HostPolicy,
    name: str,
) -> float | None:
    """Read all pages, or those that come in time. Raises `TimeoutError` if none comes.

    Return for how many seconds the list may be kept (`ttlMs` of 2026-07-28); `None` if the server does not say.
    """
    cursor: str | None = None
    seen: set[str] = set()
    ttl: float | None = None
    with anyio.move_on_after(policy.listing_limit):
        for _ in range(policy.listing_pages):
            page = await ask(cursor)
            ttl = min(filter(None, (ttl, _ttl_of(page, policy))), default=None)
            listed = page.get(field)
            if not into.take(listed if isinstance(listed, list) else []):
                return ttl
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str):
                return ttl
            if cursor in seen:
                break
            seen.add(cursor)
    if cursor is None:
        raise TimeoutError(field)
    logger.warning("%s: its list of %s does not end; using the first %d", name, field, len(into))
    return ttl


def _ttl_of(page: dict[str, Any], policy: HostPolicy) -> float | None:
    """Of a page that is out of date at once nothing can be kept, so it says nothing about how long a list is."""
    ttl = page.get("ttlMs")
    return max(ttl / 1000, policy.shortest_ttl) if type(ttl) is int and ttl > 0 else None


def wrong_headers(listed: list[dict[str, Any]], kept: list[dict[str, Any]]) -> list[str]:
    """Warnings about tools that are not kept because of the headers that they ask for."""
    names = sorted({tool["name"] for tool in listed} - {tool["name"] for tool in kept})
    warnings = [f"tool {name!r} is left out: its schema has a wrong x-mcp-header" for name in names[:_NAMED]]
    if (more := len(names) - _NAMED) > 0:
        warnings.append(f"{more} more tools are left out for a wrong x-mcp-header")
    return warnings


def repaired_tool(raw: object) -> dict[str, Any] | None:
    """Return the tool without the fields of the wrong type; `None` if it has no usable name."""
    if not isinstance(raw, dict):
        return None
    name = raw.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        return None
    tool = {key: value for key, value in raw.items() if isinstance(value, _OPTIONAL.get(key, object))}
    schema = tool.get("inputSchema")
    tool["inputSchema"] = {"type": "object"} | schema if isinstance(schema, dict) else {"type": "object"}
    return tool


class ToolList:
    """The usable tools, the first of each name, and warnings about the others."""

    def __init__(self) -> None:
        self._tools: dict[str, dict[str, Any]] = {}
        self._room = MAX_LISTED_BYTES
        self._unusable = self._beyond = 0
        self._too_large: list[str] = []

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def tools(self) -> list[dict[str, Any]]:
        return list(self._tools.values())

    @property
    def warnings(self) -> list[str]:
        warnings = self._too_large[:_NAMED]
        if (more := len(self._too_large) - _NAMED) > 0:
            warnings.append(f"{more} more tools are left out for their size")
        if self._unusable:
            warnings.append(f"{self._unusable} of the tools it lists cannot be used")
        if self._beyond:
            limits = f"{MAX_TOOLS} tools and {MAX_LISTED_BYTES} bytes"
            warnings.append(f"{self._beyond} or more of its tools are left out: at most {limits} are taken of a server")
        return warnings

    def take(self, listed: list[object]) -> bool:
        """Add a page. Return whether more are wanted."""
        for place, raw in enumerate(listed):
            if len(self) == MAX_TOOLS or self._room <= 0:
                self._beyond += len(listed) - place
                break
            self._add(raw)
        return not self._beyond

    def _add(self, raw: object) -> None:
        tool = repaired_tool(raw)
        size = None if tool is None or tool["name"] in self._tools else _size(tool)
        if tool is None or size is None:
            self._unusable += 1
            return
        if size > MAX_TOOL_BYTES:
            name = tool["name"]
            self._too_large.append(
                f"tool {name!r} is left out: it has {size} bytes, at most {MAX_TOOL_BYTES} are taken"
            )
            return
        self._room -= size
        self._tools[tool["name"]] = tool


class WindowList:
    """The resources that are windows, in the server's own order, each URI once."""

    def __init__(self) -> None:
        self._windows: dict[str, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def windows(self) -> list[dict[str, Any]]:
        return list(self._windows.values())

    def take(self, listed: list[object]) -> bool:
        """Add a page. Return whether more are wanted."""
        for raw in listed:
            if len(self) < MAX_WINDOWS and _is_window(raw):
                self._windows.setdefault(raw["uri"], raw)
        return len(self) < MAX_WINDOWS


def _is_window(raw: object) -> TypeGuard[dict[str, Any]]:
    uri = raw.get("uri") if isinstance(raw, dict) else None
    is_one = isinstance(uri, str) and uri.startswith(WINDOW_SCHEME) and len(uri) <= _LONGEST_URI
    return is_one and isinstance(raw, dict) and (_size(raw) or MAX_TOOL_BYTES + 1) <= MAX_TOOL_BYTES


def _size(listed: dict[str, Any]) -> int | None:
    """Return the bytes of its JSON; `None` if it cannot be written as JSON."""
    try:
        text = dumps(listed)
    except (BadRequest, RecursionError):
        return None
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def uris_of(windows: Iterable[dict[str, Any]]) -> set[str]:
    return {window["uri"] for window in windows}
