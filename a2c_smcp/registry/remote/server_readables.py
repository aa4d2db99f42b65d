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
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.mcp_host.failures import METHOD_NOT_FOUND
from a2c_smcp.mcp_host.sessions.subscriptions import uris_above
from a2c_smcp.protocol.operations import (
    MCPList,
    MCPOperation,
)
from a2c_smcp.registry.calls.context import tool_caller
from a2c_smcp.registry.content import RawResult
from a2c_smcp.registry.entries import (
    ENTRIES,
    MAX_LISTED,
    BothWays,
    Entry,
    Following,
    PromptEntry,
)
from a2c_smcp.registry.readable_registry import ReadableRegistry
from a2c_smcp.registry.remote.servers import ServerHandle, ServerNews, SharedServers, numbered, servers
from a2c_smcp.registry.sources import IN_A_LOOP, is_usable, remote_entry

logger = logging.getLogger(__name__)

MAX_PAGES = 100

Listing: TypeAlias = dict[str, Any]

_CHANGED: Mapping[str, tuple[MCPList, ...]] = {
    "ready": tuple(ENTRIES),
    "resource_list_changed": tuple(kind for kind in ENTRIES if kind.capability == "resources"),
    "prompts_changed": tuple(kind for kind in ENTRIES if kind.capability == "prompts"),
}


class MCPServerReadables:
    """The resources and prompts of one MCP server, in one registry."""

    def __init__(self, registry: ReadableRegistry, handle: ServerHandle, timeout: float) -> None:
        self._registry = registry
        self._handle = handle
        self._name = handle.address.config.name
        self._timeout = timeout
        self._entries: dict[MCPList, dict[str, Entry]] = {kind: {} for kind in ENTRIES}
        self._stale: dict[MCPList, None] = {}
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
        """Apply a change at the server."""
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
                    self._register(kind, [listing async for listing in self._pages(kind)])
                except SMCPError as error:
                    is_missing = error.details.get("mcp_code") == METHOD_NOT_FOUND  # not every server has templates
                    level = logging.INFO if is_missing else logging.WARNING
                    logger.log(level, "%s: its %s are not listed: %s", self._name, kind.listed, error.message)
                except Exception:
                    logger.exception("%s: its %s could not be registered", self._name, kind.listed)
        finally:
            self._is_listing = False

    async def _pages(self, kind: MCPList) -> AsyncIterator[Any]:
        here = servers()
        if not here.declares(self._handle, kind.capability):
            return
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            params = {} if cursor is None else {"cursor": cursor}
            answer = await here.read(self._handle, kind.method, params, self._timeout)
            for listing in answer.get(kind.mcp_field) or ():
                yield listing
            cursor = answer.get("nextCursor")
            if not isinstance(cursor, str):
                return

    def _register(self, kind: MCPList, listed: list[Any]) -> None:
        """Registers exactly these. An entry whose listing has not changed stays as it is."""
        key, cls = kind.key, ENTRIES[kind]
        before = self._entries[kind]
        entries: dict[str, Entry] = {}
        for listing in islice(filter(partial(is_usable, key), listed), MAX_LISTED):
            name = listing[key]
            mine = before.get(name)
            if mine is not None and self._registry.entry(cls, mine.key) is not mine:
                mine = None  # another one replaced it
            if mine is not None and mine.listing == {**listing, key: mine.key}:
                entries[name] = mine
            elif entry := self._entry(kind, listing, mine.key if mine else None, entries):
                entries[name] = entry
        self._entries[kind] = entries
        self._replace(before, entries)

    def _replace(self, before: Mapping[str, Entry], after: Mapping[str, Entry]) -> None:
        keys = {entry.key for entry in after.values()}
        self._registry.update_readable(
            add=[entry for name, entry in after.items() if before.get(name) is not entry],
            remove=[entry for entry in before.values() if entry.key not in keys],
        )

    def _entry(self, kind: MCPList, listing: Listing, name: str | None, others: Mapping[str, Entry]) -> Entry | None:
        """The entry of a listing, under the name that it has already or a free one; `None` if there is none."""
        own, cls = listing[kind.key], ENTRIES[kind]
        if cls is PromptEntry:
            name = name or self._free_name(own, others)
        elif name is None and (other := self._registry.entry(cls, own)) is not None:
            logger.warning("%s: %r is left out, %s offers it", self._name, own, other.origin or "the program")
            return None
        can_complete = servers().declares(self._handle, "completions")
        shown = {**listing, kind.key: name or own}
        return remote_entry(kind, shown, own, self._request, self._follow, self._name, can_complete=can_complete)

    def _request(self, operation: MCPOperation, params: Callable[[Listing], Listing]) -> BothWays:
        """The request as two functions. Their result is MCP's own."""

        def request(here: SharedServers, arguments: Listing) -> Coroutine[Any, Any, Listing]:
            return here.read(self._handle, operation.method, params(arguments), self._timeout, tool_caller())

        def call(arguments: Listing) -> RawResult:
            here = servers()
            return RawResult(here.background.wait(request(here, arguments), IN_A_LOOP))

        async def acall(arguments: Listing) -> RawResult:
            here = servers()
            return RawResult(await here.background.done(request(here, arguments)))

        return BothWays(call, acall)

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
        self._entries = {kind: {} for kind in ENTRIES}
        self._registry.update_readable(remove=gone)

    def _free_name(self, own: str, others: Mapping[str, Entry]) -> str:
        taken = {entry.key for entry in others.values()}
        names = numbered(own, f"{self._name}__{own}")
        return next(name for name in names if name not in taken and self._registry.entry(PromptEntry, name) is None)
