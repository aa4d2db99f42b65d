"""Lists of tools and resources that an MCP server sends in pages: read, repaired and bounded.

A server may never end its pages, list more than we can use, or list items with faults. Items are repaired where
possible and left out otherwise.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

import anyio

from a2c_smcp.errors import BadRequest
from a2c_smcp.mcp_host.limits import HostLimits
from a2c_smcp.mcp_host.sessions.sdk_client import SDKClient
from a2c_smcp.protocol.codec import dumps

logger = logging.getLogger(__name__)

MAX_TOOLS, MAX_TOOL_BYTES, MAX_LISTED_BYTES = 1000, 64 * 1024, 4 * 1024 * 1024
"""WIRE §6, for each server; more bytes could not be sent to an agent."""
MAX_WINDOWS = 1000
WINDOW_SCHEME = "window://"
_NAMED = 5
_NEVER = MAX_TOOL_BYTES + 1  # the size of an item that is not JSON
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


async def read_pages(
    client: SDKClient, field: str, into: ToolList | WindowList, policy: HostLimits, name: str
) -> float | None:
    """Read all pages of `tools` or `resources`, or those that come in time. Raises `TimeoutError` if none comes.

    Return for how many seconds the list may be kept (`ttlMs` of 2026-07-28); `None` if the server does not say.
    """
    cursor: str | None = None
    seen: set[str] = set()
    ttl: float | None = None
    with anyio.move_on_after(_limit(field, policy)):
        for _ in range(policy.listing_pages):
            with anyio.move_on_after(policy.request_limit) as waiting:
                page = await client.page(field, cursor)
            if waiting.cancelled_caught:
                break
            page_ttl = page.get("ttlMs")
            if type(page_ttl) is int and page_ttl > 0:  # 0: no item may be kept, which says nothing about the list
                page_ttl = max(page_ttl / 1000, policy.shortest_ttl)
                ttl = page_ttl if ttl is None else min(ttl, page_ttl)
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


def _limit(field: str, policy: HostLimits) -> float:
    """Return the seconds for a list. A `timeout` may extend that of tools: a server is used without late windows."""
    extends = field == "tools" and policy.request_limit != math.inf
    return max(policy.listing_limit, policy.request_limit) if extends else policy.listing_limit


def wrong_headers(listed: list[dict[str, Any]], kept: list[dict[str, Any]]) -> list[str]:
    """Return warnings about tools that are not kept because of the headers that they ask for."""
    names = sorted({tool["name"] for tool in listed} - {tool["name"] for tool in kept})
    warnings = [f"tool {name!r} is left out: its schema has a wrong x-mcp-header" for name in names]
    return _shortened(warnings, "a wrong x-mcp-header")


def _shortened(warnings: list[str], reason: str) -> list[str]:
    """Return the first warnings, and how many more there are for this reason."""
    rest = len(warnings) - _NAMED
    return [*warnings[:_NAMED], *([f"{rest} more tools are left out for {reason}"] if rest > 0 else [])]


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
        warnings = _shortened(self._too_large, "their size")
        if self._unusable:
            warnings.append(f"{self._unusable} of the tools it lists cannot be used")
        if self._beyond:
            limits = f"{MAX_TOOLS} tools and {MAX_LISTED_BYTES} bytes"
            warnings.append(f"{self._beyond} or more of its tools are left out: at most {limits} are taken of a server")
        return warnings

    def take(self, listed: list[object]) -> bool:
        """Add a page. Return True if there is room for more."""
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
            self._too_large.append(
                f"tool {tool['name']!r} is left out: it has {size} bytes, at most {MAX_TOOL_BYTES} are taken"
            )
            return
        self._room -= size
        self._tools[tool["name"]] = tool


class WindowList:
    """The resources that are windows, in the server's own order, each URI once, with what decides the desktop."""

    def __init__(self) -> None:
        self._windows: dict[str, dict[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._windows)

    @property
    def windows(self) -> list[dict[str, Any]]:
        return list(self._windows.values())

    def take(self, listed: list[object]) -> bool:
        """Add a page. Return True if there is room for more."""
        for raw in listed:
            uri = raw.get("uri") if isinstance(raw, dict) else None
            if not isinstance(raw, dict) or not isinstance(uri, str) or len(self) >= MAX_WINDOWS:
                continue
            if uri.startswith(WINDOW_SCHEME) and len(uri) <= _LONGEST_URI and (_size(raw) or _NEVER) <= MAX_TOOL_BYTES:
                self._windows.setdefault(uri, _window(uri, raw))
        return len(self) < MAX_WINDOWS


def _window(uri: str, resource: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a window that decide the desktop: a change of any other is none (WIRE §8)."""
    window: dict[str, Any] = {"uri": uri}
    for field, key in (("annotations", "priority"), ("_meta", "fullscreen")):
        about = resource.get(field)
        if isinstance(about, dict) and key in about:
            window[field] = {key: about[key]}
    return window


def _size(listed: dict[str, Any]) -> int | None:
    """Return the bytes of its JSON; `None` if it cannot be written as JSON."""
    try:
        text = dumps(listed)
    except (BadRequest, RecursionError):
        return None
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def uris_of(windows: Iterable[dict[str, Any]]) -> set[str]:
    return {window["uri"] for window in windows}
