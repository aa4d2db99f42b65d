"""Lists that agents ask for, page by page: the resources, templates and prompts of one MCP server, the prompts of all.

A page is asked of the MCP server each time: nothing is kept here, so nothing can be out of date. A URI that holds a
secret is shown masked; the agent uses the masked one in its requests, and `original` finds what it stands for.
"""

from __future__ import annotations

import asyncio
import logging
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from a2c_smcp.computer.calls.incoming import CallOptions, IncomingCall
from a2c_smcp.computer.calls.live import LiveCalls
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.hosting import HostedServers
from a2c_smcp.computer.questions.answering import Answering
from a2c_smcp.computer.secrets.mask import READ, Mask
from a2c_smcp.errors import BadRequest, CallTimeout, CapabilityNotSupported, ResourceNotFound, SMCPError
from a2c_smcp.mcp_host.failures import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    AuthRequired,
    RequestRefused,
    ServerNotReady,
)
from a2c_smcp.mcp_host.limits import LARGE, is_within
from a2c_smcp.mcp_host.sessions.tool_request import ReadRequest
from a2c_smcp.protocol.codec import dumps, loads
from a2c_smcp.protocol.names import MAX_WINDOW_URI, fault_in
from a2c_smcp.protocol.operations import MCP_OPERATIONS, PROMPTS, RESOURCES, TEMPLATES, MCPList, MCPOperation
from a2c_smcp.protocol.results import without_own_keys
from a2c_smcp.protocol.structure import ANSWER

logger = logging.getLogger(__name__)

# Requests that read from MCP servers: how they are sent, and what becomes of a server's refusal.
#
# A refusal becomes an error with a code that agents know, where MCP says enough: a resource that is unknown, arguments
# that are wrong, a method that the server does not have. Any other keeps MCP's code and data in its details.

_UNKNOWN = re.compile(r"\b(unknown|not found|no such)\b", re.IGNORECASE)
_AT_FAULT = {each.method: each.at_fault for each in MCP_OPERATIONS}
"""The field that is wrong if an MCP server refuses the parameters; of a list it is the cursor."""

Result: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReadCall:
    """An agent's request. `server` is the configured name of the MCP server, `called` what the agent calls it."""

    caller: Caller
    data: Mapping[str, Any]
    server: str
    called: str
    deadline: float

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return max(self.deadline - asyncio.get_running_loop().time(), 0.001)


class ServerReads:
    """`host` is called for each request: a Computer gets a new one whenever it is started."""

    def __init__(self, host: Callable[[], HostedServers], live: LiveCalls, answering: Answering) -> None:
        self._host = host
        self._live = live
        self._answering = answering

    async def read(self, server: str, request: ReadRequest) -> Result:
        """MCP's result. Raises `SMCPError`."""
        try:
            return await self._host().manager[server].requests.read(request)
        except RequestRefused as refusal:
            has_answers = request.input_responses is not None or request.request_state is not None
            uri = None if has_answers else request.params.get("uri")
            raise refused_read(refusal, request.method, server, uri) from None

    async def ask(self, operation: MCPOperation, asked: ReadCall, params: Result) -> Result:
        """MCP's result, or, if the server may have questions about it first, its `InputRequiredResult`."""
        request = ReadRequest(operation.method, params, asked.left)
        if operation.options is None:
            return await self.read(asked.server, request)
        options, what = CallOptions.of_request(asked.data), f"{operation.noun} {asked.data[operation.key]}"
        call = IncomingCall(asked.caller, asked.data["req_id"], what, params, asked.left, options)
        on_input = self._answering.of_call(call, asked.server, asked.deadline)
        request = replace(request, on_input=on_input, on_unnamed=self._answering.of_owner(asked.server))
        if options is None:
            return await self.read(asked.server, request)
        try:
            return await self._live.read(call, asked.server, asked.deadline, request, partial(self.read, asked.server))
        except TimeoutError:
            raise CallTimeout(f"{asked.called!r} did not answer in time") from None


def refused_read(refusal: RequestRefused, method: str, server: str, uri: str | None = None) -> SMCPError:
    """The error for a refused request. `uri` is given if nothing else in the request can be wrong."""
    details, said = refusal.details, str(refusal.details.get("mcp_message", refusal.reason))
    code = details.get("mcp_code")
    if code == METHOD_NOT_FOUND:
        return CapabilityNotSupported(repr(server), mcp_server=server, capability=method)
    if uri is not None and (
        code in (RESOURCE_NOT_FOUND, INVALID_PARAMS) or (code == 0 and _UNKNOWN.search(said) is not None)
    ):
        return ResourceNotFound(repr(uri), **details, mcp_server=server, uri=uri)
    if code == INVALID_PARAMS:
        return BadRequest(said, **details, mcp_server=server, field=_AT_FAULT.get(method, "cursor"))
    return refusal


def masked_error(error: SMCPError, mask: Mask, server: str | None) -> SMCPError:
    """The same error without the secrets of the server that it is about."""
    error.message = mask.text(error.message, server)
    error.reason = mask.text(error.reason, server)
    error.details = mask.data({"details": error.details}, ANSWER, server)["details"]
    error.args = (error.message,)
    return error


# Pages of the lists of MCP servers, as agents get them: entries checked one by one, and no page too large to be sent.
#
# A cursor is the MCP server's own. If a page of a server is too large for one answer, it is given out in parts: the
# cursor then says at which entry of which page to go on. An entry that cannot be used is left out, and no other with
# it.

MOST_ENTRIES = 1000
LARGEST_ENTRY = 64 * 1024
LARGEST_PAGE = LARGE
"""Bytes of a page. Answers with pages of several servers have at most twice as many."""
LONGEST_CURSOR = 4096

_PART = re.compile(r"a2c-part:([0-9]{1,6}):(.*)", re.DOTALL)
_ALL = "a2c-all:"

Entry: TypeAlias = dict[str, Any]


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


def page_of(kind: MCPList, raw: Mapping[str, Any], place: Place, request: Mapping[str, Any]) -> ListedPage:
    """The page in MCP's answer, from this place on."""
    listed = raw.get(kind.mcp_field)
    page = ListedPage(more=_more(raw))
    for index, each in enumerate(listed if isinstance(listed, list) else ()):
        if index < place.skip:
            continue
        if not page.add(_ENTRIES[kind](each, request) if isinstance(each, dict) else None):
            page.following = place._replace(skip=index)
            return page
    cursor = raw.get("nextCursor")
    if isinstance(cursor, str) and 0 < len(cursor) <= LONGEST_CURSOR and cursor != place.cursor:
        page.following = Place(cursor)
    return page


def _more(raw: Mapping[str, Any]) -> Entry:
    """The fields beside the entries of MCP's answer."""
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


def _resource(raw: Mapping[str, Any], request: Mapping[str, Any]) -> Entry | None:
    """A resource as the published 0.4 generation spells it: title and icons only with `titles` (PROTOCOL-0.4 §2)."""
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
    found = without_own_keys({name: value for name, value in found.items() if value is not None})
    titles = {"title": str, "icons": list} if request.get("titles") is True else {}
    return found | {name: raw[name] for name, kind in titles.items() if type(raw.get(name)) is kind}


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


def _template(raw: Mapping[str, Any], _: Mapping[str, Any]) -> Entry | None:
    uri = raw.get("uriTemplate")
    if fault_in(uri, MAX_WINDOW_URI):
        return None
    return {"name": uri, **_described(raw)}


def _prompt(raw: Mapping[str, Any], _: Mapping[str, Any]) -> Entry | None:
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
    """MCP's entry without fields of the wrong type."""
    return without_own_keys({key: value for key, value in raw.items() if isinstance(value, _TYPES.get(key, object))})


def _typed(raw: Mapping[str, Any], name: str, kind: type) -> Any:
    value = raw.get(name)
    return value if type(value) is kind else None


def _size(entry: Entry) -> int:
    """Bytes of its JSON; more than an entry may have, if it cannot be written."""
    if not is_within(entry, LARGEST_ENTRY):
        return LARGEST_ENTRY + 1
    return len(dumps(entry).encode(errors="surrogatepass"))


_ENTRIES: Mapping[MCPList, Callable[[Mapping[str, Any], Mapping[str, Any]], Entry | None]] = {
    RESOURCES: _resource,
    TEMPLATES: _template,
    PROMPTS: _prompt,
}
"""Makes an entry of ours of MCP's, for a request; `None` if it cannot be used."""

_AT_ONCE = 8
_MOST_PAGES = 20  # that are looked at to tell an unknown prompt from wrong arguments
_MOST_SHOWN = 1000


class ReadLists:
    """`answer` has one page. `host` is called for each request."""

    def __init__(self, host: Callable[[], HostedServers], reads: ServerReads, mask: Mask) -> None:
        self._host = host
        self._reads = reads
        self._mask = mask
        self._originals: dict[str, OrderedDict[str, str]] = defaultdict(OrderedDict)

    async def answer(self, kind: MCPList, asked: ReadCall) -> Result:
        """A page of the list of one server; of the prompts of all if the request names none."""
        if not asked.server:
            return await self._prompts_of_all(asked)
        page = await self._shown_page(kind, asked, asked.server, Place.of(asked.data.get("cursor")))
        return _answer(kind, page.entries, page.more, page.following.to_cursor() if page.following else None)

    async def _prompts_of_all(self, asked: ReadCall) -> Result:
        """A page of each server, one after the other, as long as there is room. The cursor has all the rest."""
        cursor = asked.data.get("cursor")
        places = all_places(cursor) if cursor else dict.fromkeys(self._with_prompts(), Place())
        places = {name: place for name, place in places.items() if name in self._host().manager}
        pages = await self._pages(asked, places)
        entries: list[Result] = []
        left: dict[str, Place] = {}
        size = 0
        for server, page in pages.items():
            if size + page.size > 2 * LARGEST_PAGE:
                left[server] = places[server]
                continue
            size += page.size
            entries += page.entries
            if page.following:
                left[server] = page.following
        ttl = min((page.more.get("ttlMs", 0) for page in pages.values()), default=0)
        return _answer(PROMPTS, entries, {"ttlMs": ttl} if ttl else {}, cursor_of_all(left))

    async def prompt(self, asked: ReadCall, name: str) -> Mapping[str, Any] | None:
        """The listing of this prompt: empty if the server cannot be asked, `None` if it lists no such prompt."""
        place = Place()
        try:
            for _ in range(_MOST_PAGES):
                page = await self._page(PROMPTS, asked, asked.server, place)
                for entry in page.entries:
                    if entry["name"] == name:
                        return entry
                if page.following is None:
                    return None
                place = page.following
        except SMCPError:
            return {}
        return {}

    def original(self, server: str, uri: str) -> str:
        """The URI that an agent was shown as this one."""
        return self._originals[server].get(uri, uri) if server in self._originals else uri

    # Inside

    def _with_prompts(self) -> list[str]:
        """The servers that offer prompts, or may do so: those that are starting are waited for."""
        manager = self._host().manager
        is_starting = {name for name in manager if manager[name].state == "starting"}
        return [name for name in manager if name in is_starting or manager[name].about.declares("prompts")]

    async def _pages(self, asked: ReadCall, places: Mapping[str, Place]) -> dict[str, ListedPage]:
        """The pages of those servers that answer in time."""
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def page_or_none(server: str, place: Place) -> ListedPage | None:
            try:
                async with asyncio.timeout_at(asked.deadline), at_once:
                    return await self._shown_page(PROMPTS, asked, server, place)
            except (ServerNotReady, AuthRequired):
                return None
            except (SMCPError, TimeoutError) as error:  # it must not hide the prompts of others
                logger.warning("server %r: its prompts are not listed: %s", server, error)
                return None

        pages = await asyncio.gather(*(page_or_none(server, place) for server, place in places.items()))
        return {server: page for server, page in zip(places, pages, strict=True) if page}

    async def _page(self, kind: MCPList, asked: ReadCall, server: str, place: Place) -> ListedPage:
        params = {} if place.cursor is None else {"cursor": place.cursor}
        raw = await self._reads.read(server, ReadRequest(kind.method, params, asked.left))
        return page_of(kind, raw, place, asked.data)

    async def _shown_page(self, kind: MCPList, asked: ReadCall, server: str, place: Place) -> ListedPage:
        """A page without secrets. A prompt says which server it is of."""
        page = await self._page(kind, asked, server, place)
        if page.left_out:
            logger.warning("server %r: %d of its %s cannot be used", server, page.left_out, kind.listed)
        page.more = self._mask.data(page.more, READ, server)
        masked: list[Result] = self._mask.data({kind.listed: page.entries}, READ, server)[kind.listed]
        self._remember(server, page.entries, masked)
        page.entries = [{"mcp_server": server, **each} for each in masked] if kind is PROMPTS else masked
        return page

    def _remember(self, server: str, originals: Iterable[Mapping[str, Any]], shown: Iterable[Result]) -> None:
        for original, masked in zip(originals, shown, strict=True):
            for key in ("uri", "uriTemplate"):
                if original.get(key) != masked.get(key):
                    known = self._originals[server]
                    known[masked[key]] = original[key]
                    known.move_to_end(masked[key])
                    if len(known) > _MOST_SHOWN:
                        known.popitem(last=False)


def _answer(kind: MCPList, entries: list[Result], more: Mapping[str, Any], cursor: str | None) -> Result:
    return {kind.listed: entries, **more, **({"next_cursor": cursor} if cursor else {})}
