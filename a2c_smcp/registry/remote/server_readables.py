"""The resources and prompts of an MCP server in a registry, kept equal to what the server lists.

The URI of a resource cannot be changed, so of two resources with one URI the first stays, and the other is left out. A
prompt keeps the name that it got first: its own, or `<server>__<prompt>` if that was taken. All methods run in the
background loop. A change is announced at any time, also while the list is read: it is marked in `_stale`, and one task
lists until nothing is marked.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import suppress
from itertools import chain, count
from typing import Any, Literal, TypeAlias

from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.mcp_host.failures import METHOD_NOT_FOUND
from a2c_smcp.mcp_host.sessions.subscriptions import uris_above
from a2c_smcp.registry.calls.caller import tool_caller
from a2c_smcp.registry.readable.entries import (
    MAX_LISTED,
    BothWays,
    Entry,
    Following,
    PromptEntry,
    ResourceEntry,
    TemplateEntry,
    as_texts,
)
from a2c_smcp.registry.readable.sources import IN_A_LOOP, both_ways
from a2c_smcp.registry.readable.uri_templates import MAX_URI, loose_matcher, variables_in
from a2c_smcp.registry.readable_registry import ReadableRegistry
from a2c_smcp.registry.remote.servers import ServerHandle, ServerNews, SharedServers, servers
from a2c_smcp.registry.results import RawResult

__all__ = ["MCPServerReadables"]

logger = logging.getLogger(__name__)

MAX_PAGES = 100

Kind: TypeAlias = Literal["resources", "templates", "prompts"]
Listing: TypeAlias = dict[str, Any]

_LISTS: Mapping[Kind, tuple[str, str, str, type[Entry]]] = {
    "resources": ("resources/list", "resources", "uri", ResourceEntry),
    "templates": ("resources/templates/list", "resourceTemplates", "uriTemplate", TemplateEntry),
    "prompts": ("prompts/list", "prompts", "name", PromptEntry),
}
"""For each list MCP's method, its field in the answer, the field that names an item, and the class of its entries."""
_CAPABILITIES: Mapping[Kind, str] = {"resources": "resources", "templates": "resources", "prompts": "prompts"}
_CHANGED: Mapping[str, tuple[Kind, ...]] = {
    "ready": ("resources", "templates", "prompts"),
    "resource_list_changed": ("resources", "templates"),
    "prompts_changed": ("prompts",),
}


class _ServerRequest:
    """A request to an MCP server, with the two methods of a tool. Its result is MCP's own."""

    def __init__(self, handle: ServerHandle, method: str, timeout: float, params: Callable[[Listing], Listing]) -> None:
        self.name = method
        self._handle, self._timeout, self._params = handle, timeout, params

    def call(self, arguments: Listing) -> RawResult:
        here = servers()
        return RawResult(here.background.wait(self._request(here, arguments), IN_A_LOOP))

    async def acall(self, arguments: Listing) -> RawResult:
        here = servers()
        return RawResult(await here.background.done(self._request(here, arguments)))

    def _request(self, here: SharedServers, arguments: Listing) -> Coroutine[Any, Any, Listing]:
        return here.read(self._handle, self.name, self._params(arguments), self._timeout, tool_caller())


class MCPServerReadables:
    """What one MCP server offers to read, in one registry."""

    def __init__(self, registry: ReadableRegistry, handle: ServerHandle, timeout: float) -> None:
        self._registry = registry
        self._handle = handle
        self._name = handle.address.config.name
        self._timeout = timeout
        self._entries: dict[Kind, dict[str, Entry]] = {"resources": {}, "templates": {}, "prompts": {}}
        self._stale: dict[Kind, None] = {}
        self._tasks = OwnedTasks()
        self._is_listing = False
        self._followed: set[str] = set()

    async def open(self) -> None:
        """Registers what the server lists now. A list that cannot be read is left out, and logged."""
        self._stale |= dict.fromkeys(_CHANGED["ready"])
        await self._list_stale()

    async def close(self) -> None:
        await self._tasks.close()
        self._remove_all()

    def hear(self, news: ServerNews, about: str | None) -> None:
        """Something has changed at the server."""
        if news == "down":
            self._remove_all()
        elif news == "resource_updated" and about is not None:
            for uri in self._followed & uris_above(about):
                self._registry.resource_updated(uri)
        elif changed := _CHANGED.get(news):
            self._stale |= dict.fromkeys(changed)
            if not self._is_listing:
                self._tasks.spawn(self._list_stale())

    async def _list_stale(self) -> None:
        self._is_listing = True
        try:
            while self._stale:
                kind = next(iter(self._stale))
                del self._stale[kind]
                try:
                    self._register(kind, [each async for each in self._pages(kind)])
                except SMCPError as error:
                    is_missing = error.details.get("mcp_code") == METHOD_NOT_FOUND  # not every server has templates
                    level = logging.INFO if is_missing else logging.WARNING
                    logger.log(level, "%s: its %s are not listed: %s", self._name, kind, error.message)
                except Exception:
                    logger.exception("%s: its %s could not be registered", self._name, kind)
        finally:
            self._is_listing = False

    async def _pages(self, kind: Kind) -> AsyncIterator[Any]:
        here, (method, field, _, _) = servers(), _LISTS[kind]
        if not here.declares(self._handle, _CAPABILITIES[kind]):
            return
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            params = {} if cursor is None else {"cursor": cursor}
            answer = await here.read(self._handle, method, params, self._timeout)
            for listing in answer.get(field) or ():
                yield listing
            cursor = answer.get("nextCursor")
            if not isinstance(cursor, str):
                return

    def _register(self, kind: Kind, listed: list[Any]) -> None:
        """Registers exactly these. An entry whose listing has not changed stays as it is."""
        key, cls = _LISTS[kind][2:]
        before = self._entries[kind]
        entries: dict[str, Entry] = {}
        for listing in [each for each in listed if _is_usable(each, key)][:MAX_LISTED]:
            name = listing[key]
            mine = before.get(name)
            is_mine = mine is not None and self._registry.entry(cls, mine.key) is mine
            if mine is not None and is_mine and mine.listing == {**listing, key: mine.key}:
                entries[name] = mine
            elif entry := self._entry(kind, listing, mine.key if mine and is_mine else None, entries):
                entries[name] = entry
        self._entries[kind] = entries
        new = [each for name, each in entries.items() if before.get(name) is not each]
        keys = {each.key for each in entries.values()}
        gone = [each for each in before.values() if each.key not in keys]
        self._registry.update_readable(add=new, remove=gone)

    def _entry(self, kind: Kind, listing: Listing, name: str | None, others: Mapping[str, Entry]) -> Entry | None:
        """The entry of a listing, under the name that it has already or a free one; `None` if there is none."""
        if kind == "prompts":
            return self._prompt(listing, name or self._free_name(listing["name"], others))
        uri, cls = listing[_LISTS[kind][2]], _LISTS[kind][3]
        if name is None and (other := self._registry.entry(cls, uri)) is not None:
            logger.warning("%s: %r is left out, %s offers it", self._name, uri, other.origin or "the program")
            return None
        return self._template(uri, listing) if kind == "templates" else self._resource(uri, listing)

    def _resource(self, uri: str, listing: Listing) -> ResourceEntry:
        read = self._request("resources/read", lambda _: {"uri": uri})
        return ResourceEntry(uri, listing, read, self._name, self._follow)

    def _template(self, uri: str, listing: Listing) -> TemplateEntry:
        ref = {"type": "ref/resource", "uri": uri}
        return TemplateEntry(
            uri,
            listing,
            self._request("resources/read", lambda arguments: arguments),
            loose_matcher(uri),
            self._completions(ref, variables_in(uri)),
            self._name,
            self._follow,
        )

    def _prompt(self, listing: Listing, name: str) -> PromptEntry:
        own = listing["name"]
        arguments = [each["name"] for each in listing.get("arguments") or () if _is_usable(each, "name")]
        return PromptEntry(
            name,
            {**listing, "name": name},
            self._request("prompts/get", lambda given: {"name": own, "arguments": as_texts(given)}),
            self._completions({"type": "ref/prompt", "name": own}, arguments),
            self._name,
        )

    def _completions(self, ref: Listing, arguments: list[str]) -> dict[str, BothWays]:
        if not servers().declares(self._handle, "completions"):
            return {}
        return {name: self._request("completion/complete", _completing(ref, name)) for name in arguments}

    def _request(self, method: str, params: Callable[[Listing], Listing]) -> BothWays:
        return both_ways(_ServerRequest(self._handle, method, self._timeout, params))

    def _follow(self, uri: str) -> Following:
        """Called in any thread."""
        here = servers()

        def stop() -> None:
            with suppress(RuntimeError):  # the program ends
                here.background.submit(self._unsubscribe(here, uri))

        return Following(stop, here.background.submit(self._subscribe(here, uri)))

    async def _subscribe(self, here: SharedServers, uri: str) -> None:
        self._followed.add(uri)
        try:
            await here.subscribe(self._handle, uri, self._timeout)
        except SMCPError as error:
            logger.warning("%s: changes of %r are not announced: %s", self._name, uri, error.message)

    async def _unsubscribe(self, here: SharedServers, uri: str) -> None:
        self._followed.discard(uri)
        await here.unsubscribe(self._handle, uri)

    def _remove_all(self) -> None:
        gone = [entry for entries in self._entries.values() for entry in entries.values()]
        self._entries = {"resources": {}, "templates": {}, "prompts": {}}
        self._registry.update_readable(remove=gone)

    def _free_name(self, own: str, others: Mapping[str, Entry]) -> str:
        longer = f"{self._name}__{own}"
        taken = {each.key for each in others.values()}
        names = chain((own, longer), (f"{longer}_{number}" for number in count(2)))
        return next(name for name in names if name not in taken and self._registry.entry(PromptEntry, name) is None)


def _is_usable(listing: Any, key: str) -> bool:
    """Whether an item of a list has a name that can be used. The rest of it is passed on as it came."""
    return isinstance(listing, dict) and isinstance(listing.get(key), str) and 0 < len(listing[key]) <= MAX_URI


def _completing(ref: Listing, name: str) -> Callable[[Listing], Listing]:
    def params(typed: Listing) -> Listing:
        known = {"context": {"arguments": typed["arguments"]}} if typed["arguments"] else {}
        return {"ref": ref, "argument": {"name": name, "value": typed["value"]}, **known}

    return params
