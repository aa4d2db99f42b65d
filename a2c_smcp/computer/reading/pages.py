"""Pages of the lists of MCP servers, as agents get them: entries checked one by one, and no page too large to be sent.

A cursor is the MCP server's own. If a page of a server is too large for one answer, it is given out in parts: the
cursor then says at which entry of which page to go on. An entry that cannot be used is left out, and no other with it.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from a2c_smcp.errors import BadRequest
from a2c_smcp.mcp_host.message_limits import LARGE, is_within
from a2c_smcp.mcp_host.own_keys import without_own_keys
from a2c_smcp.protocol.codec import dumps, loads
from a2c_smcp.protocol.names import MAX_WINDOW_URI, fault_in

__all__ = [
    "LARGEST_PAGE",
    "PROMPTS",
    "RESOURCES",
    "TEMPLATES",
    "TITLED_RESOURCES",
    "ListedPage",
    "PageKind",
    "Place",
    "all_places",
    "cursor_of_all",
    "page_of",
]

MOST_ENTRIES = 1000
LARGEST_ENTRY = 64 * 1024
LARGEST_PAGE = LARGE
"""Bytes of a page. Answers with pages of several servers have at most twice as many."""
LONGEST_CURSOR = 4096

_PART = re.compile(r"a2c-part:([0-9]{1,6}):(.*)", re.DOTALL)
_ALL = "a2c-all:"

Entry: TypeAlias = dict[str, Any]


class PageKind(NamedTuple):
    """A list of MCP: its method, its field in MCP's answer and in ours, and what makes an entry of ours of one."""

    method: str
    mcp_field: str
    field: str
    entry: Callable[[Mapping[str, Any]], Entry | None]


class Place(NamedTuple):
    """Where a page begins: at this cursor of the MCP server, behind so many entries."""

    cursor: str | None = None
    skip: int = 0

    @classmethod
    def of(cls, cursor: str | None) -> Place:
        """The place in an agent's cursor."""
        found = _PART.fullmatch(cursor or "")
        return cls(found[2] or None, int(found[1])) if found else cls(cursor)

    def to_cursor(self) -> str:
        is_plain = self.cursor and not self.skip and not _PART.fullmatch(self.cursor)
        return str(self.cursor) if is_plain else f"a2c-part:{self.skip}:{self.cursor or ''}"


@dataclass(slots=True)
class ListedPage:
    """Entries as agents get them, not masked yet. `more` has what MCP says beside them."""

    entries: list[Entry] = field(default_factory=list)
    following: Place | None = None
    more: dict[str, Any] = field(default_factory=dict)
    size: int = 0
    left_out: int = 0

    def add(self, entry: Entry | None) -> bool:
        """Add an entry, unless it cannot be used. Return whether there was room for it."""
        size = 0 if entry is None else _size(entry)
        if entry is None or size > LARGEST_ENTRY:
            self.left_out += 1
            return True
        if len(self.entries) == MOST_ENTRIES or self.size + size > LARGEST_PAGE:
            return False
        self.entries.append(entry)
        self.size += size
        return True


def page_of(kind: PageKind, raw: Mapping[str, Any], place: Place) -> ListedPage:
    """The page in MCP's answer, from this place on."""
    listed = raw.get(kind.mcp_field)
    page = ListedPage(more=_more(raw))
    for index, each in enumerate(listed if isinstance(listed, list) else ()):
        if index < place.skip:
            continue
        if not page.add(kind.entry(each) if isinstance(each, dict) else None):
            page.following = place._replace(skip=index)
            return page
    cursor = raw.get("nextCursor")
    if isinstance(cursor, str) and 0 < len(cursor) <= LONGEST_CURSOR and cursor != place.cursor:
        page.following = Place(cursor)
    return page


def _more(raw: Mapping[str, Any]) -> Entry:
    """What MCP says beside the entries."""
    ttl, scope, meta = raw.get("ttlMs"), raw.get("cacheScope"), raw.get("_meta")
    more: Entry = {"ttlMs": ttl} if type(ttl) is int and ttl >= 0 else {}
    if scope in ("public", "private"):
        more["cacheScope"] = scope
    if isinstance(meta, dict) and is_within(meta, LARGEST_ENTRY):
        more["_meta"] = meta
    return without_own_keys(more)


def cursor_of_all(places: Mapping[str, Place]) -> str | None:
    """A cursor for the lists of several MCP servers; `None` if nothing is left."""
    left = [[server, *place] for server, place in places.items()]
    return _ALL + urlsafe_b64encode(dumps(left).encode()).decode() if left else None


def all_places(cursor: str) -> dict[str, Place]:
    """The servers that are left, and where their lists go on. Raises `BadRequest`."""
    try:
        if not cursor.startswith(_ALL):
            raise ValueError
        left = loads(urlsafe_b64decode(cursor.removeprefix(_ALL)).decode())
        return {str(server): Place(cursor and str(cursor), max(int(skip), 0)) for server, cursor, skip in left}
    except (ValueError, TypeError, BadRequest):
        raise BadRequest("cursor: is not one of this list", field="cursor") from None


# Entries


def _titled_resource(raw: Mapping[str, Any]) -> Entry | None:
    """A resource with its title and icons."""
    found = _resource(raw)
    if found is None:
        return None
    said = {"title": _typed(raw, "title", str), "icons": _typed(raw, "icons", list)}
    return found | {name: value for name, value in said.items() if value is not None}


def _resource(raw: Mapping[str, Any]) -> Entry | None:
    """A resource as the published 0.4 generation spells it: without title and icons (PROTOCOL-0.4 §2)."""
    uri = raw.get("uri")
    if fault_in(uri, MAX_WINDOW_URI):
        return None
    names = (each for each in (raw.get("name"), raw.get("title"), uri) if isinstance(each, str) and each)
    found = {
        "uri": uri,
        "name": next(names),
        "description": _typed(raw, "description", str),
        "mime_type": _typed(raw, "mimeType", str),
        "size": _typed(raw, "size", int),
        "annotations": _annotations(raw.get("annotations")),
        "_meta": _typed(raw, "_meta", dict),
    }
    return without_own_keys({name: value for name, value in found.items() if value is not None})


def _annotations(raw: object) -> Entry | None:
    if not isinstance(raw, dict):
        return None
    audience, priority = raw.get("audience"), raw.get("priority")
    found: Entry = {}
    if isinstance(audience, list):
        found["audience"] = [each for each in audience if each in ("user", "assistant")]
    if isinstance(priority, int | float) and 0 <= priority <= 1:
        found["priority"] = priority
    if isinstance(changed := raw.get("lastModified"), str):
        found["last_modified"] = changed
    return found


def _template(raw: Mapping[str, Any]) -> Entry | None:
    uri = raw.get("uriTemplate")
    if fault_in(uri, MAX_WINDOW_URI):
        return None
    return {"name": uri, **_described(raw)}


def _prompt(raw: Mapping[str, Any]) -> Entry | None:
    """A prompt that agents can ask for: its name is one that a request may have."""
    if fault_in(raw.get("name")):
        return None
    arguments = raw.get("arguments")
    named = [
        _described(each)
        for each in (arguments if isinstance(arguments, list) else ())
        if isinstance(each, dict) and isinstance(each.get("name"), str)
    ]
    return _described(raw) | ({"arguments": named} if named else {})


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("name", "title", "description", "mimeType"), str),
    **dict.fromkeys(("annotations", "_meta"), dict),
    "icons": list,
    "arguments": (),
    "required": bool,
}


def _described(raw: Mapping[str, Any]) -> Entry:
    """What MCP says, without fields of the wrong type."""
    return without_own_keys({key: value for key, value in raw.items() if isinstance(value, _TYPES.get(key, object))})


def _typed(raw: Mapping[str, Any], name: str, kind: type) -> Any:
    value = raw.get(name)
    return value if type(value) is kind else None


def _size(entry: Entry) -> int:
    """Bytes of its JSON; more than an entry may have, if it cannot be written."""
    if not is_within(entry, LARGEST_ENTRY):
        return LARGEST_ENTRY + 1
    return len(dumps(entry).encode(errors="surrogatepass"))


RESOURCES = PageKind("resources/list", "resources", "resources", _resource)
TITLED_RESOURCES = RESOURCES._replace(entry=_titled_resource)
TEMPLATES = PageKind("resources/templates/list", "resourceTemplates", "resource_templates", _template)
PROMPTS = PageKind("prompts/list", "prompts", "prompts", _prompt)
