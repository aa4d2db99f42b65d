"""MCP Apps (`io.modelcontextprotocol/ui`) of many computers behind one connection: each app reaches its own computer.

A tool names its page (`_meta.ui.resourceUri`), a host shows it in a frame, and the app in it calls tools through the
host. It knows them by the names that its MCP server gave, and neither the host nor the app says in a call which page it
comes from. So a name that two computers have would reach the wrong one. The bridge knows where a page is from when it
is read: it puts a script before the page, which changes the names and URIs in the app's requests to those of its own
computer, as they leave the frame. Names that the computer does not have get a form that no other computer's tool has.
The rest of the page stays as it is. Hosts allow the script: pages of apps are made of inline scripts.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, TypeAlias

from a2c_smcp.agent.reading.answers import APP_SCHEME, qualified
from a2c_smcp.bridge.names import computer_prefix
from a2c_smcp.registry.tool_info import ui_of

EXTENSION = "io.modelcontextprotocol/ui"
_MIME_TYPE, _FLAT_KEY = "text/html;profile=mcp-app", "ui/resourceUri"
"""The type of pages, and the older form of `_meta.ui.resourceUri`, which hosts still read."""

OwnTools: TypeAlias = Callable[[str, str], Mapping[str, tuple[str, str | None]]]
"""The tools of an MCP server of a computer: by own name, the name in the bridge, and the argument for the computer."""

_BEFORE_PAGE = re.compile(r"\ufeff?(?:\s|<!--.*?-->)*(?:<!doctype[^>]*>)?", re.IGNORECASE | re.DOTALL)
_SCRIPT = resources.files("a2c_smcp.bridge").joinpath("app_page.js").read_text("utf-8").strip()
"""A function that changes the requests of an app. It is given what `with_own_calls` knows."""


def has_page(listing: Mapping[str, Any]) -> bool:
    """True for a tool, as MCP lists it, whose results a host shows in a page."""
    return bool(ui_of(listing).get("resourceUri") or (listing.get("_meta") or {}).get(_FLAT_KEY))


def with_own_page(fields: dict[str, Any], computer: str, mcp_server: str) -> dict[str, Any]:
    """A tool or a result of an MCP server, whose page is read from there."""
    meta = fields.get("_meta")
    if not isinstance(meta, dict):
        return fields
    found: dict[str, Any] = {}
    if uri := _page(ui_of(fields).get("resourceUri"), computer, mcp_server):
        found["ui"] = {**ui_of(fields), "resourceUri": uri}
    if uri := _page(meta.get(_FLAT_KEY), computer, mcp_server):
        found[_FLAT_KEY] = uri
    return {**fields, "_meta": {**meta, **found}} if found else fields


def with_own_calls(result: dict[str, Any], computer: str, mcp_server: str, tools: OwnTools) -> dict[str, Any]:
    """MCP's result of reading a resource, with the script before each page of an app."""
    contents = result.get("contents")
    if not isinstance(contents, list) or not any(map(_is_page, contents)):
        return result
    own = tools(computer, mcp_server)
    about = {
        "tools": [*{name: (name, argument) for name, argument in own.values()}.items(), *own.items()],
        "computer": computer,
        "prefix": computer_prefix(computer),
        "places": [qualified(uri, computer, mcp_server).removesuffix(uri) for uri in (APP_SCHEME, "")],
    }
    known = json.dumps(about).replace("<", "\\u003c")
    script = f"<script>({_SCRIPT})({known})</script>"
    return {**result, "contents": [_with_script(each, script) if _is_page(each) else each for each in contents]}


def _with_script(content: dict[str, Any], script: str) -> dict[str, Any]:
    if isinstance(text := content.get("text"), str):
        return {**content, "text": _put_before(text, script)}
    try:
        page = b64decode(content["blob"]).decode(errors="surrogateescape")
    except (KeyError, TypeError, ValueError):
        return content
    return {**content, "blob": b64encode(_put_before(page, script).encode(errors="surrogateescape")).decode()}


def _put_before(page: str, script: str) -> str:
    """The document type stays first: it decides how the page is laid out."""
    return _BEFORE_PAGE.sub(lambda found: found[0] + script, page, count=1)


def _is_page(content: Any) -> bool:
    kind = content.get("mimeType") if isinstance(content, dict) else None
    return isinstance(kind, str) and "".join(kind.split()).lower() == _MIME_TYPE


def _page(uri: object, computer: str, mcp_server: str) -> str | None:
    return qualified(uri, computer, mcp_server) if isinstance(uri, str) and uri.startswith(APP_SCHEME) else None
