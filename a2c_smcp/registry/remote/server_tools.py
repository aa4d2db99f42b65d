"""An MCP server in a registry: its tools, kept equal to its list, its resources and its prompts.

A tool keeps the name that it got first: its own (or its alias), or `<server>__<tool>` if that was taken. If the program
registers another tool under one of these names, that tool stays; with the next change of the server's list, ours is
registered again under the longer name. Changes are applied in the background loop, one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, TypedDict, Unpack

from a2c_smcp.errors import ServerNotFound, SMCPError
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.mcp_host.failures import METHOD_NOT_FOUND, ServerExists
from a2c_smcp.mcp_host.sessions.subscriptions import uris_above
from a2c_smcp.protocol.operations import MCPList, MCPOperation
from a2c_smcp.registry.calls.context import tool_caller
from a2c_smcp.registry.content import RawResult
from a2c_smcp.registry.remote.servers import (
    CALL_TIMEOUT,
    RemoteMCPAdapter,
    ServerAddress,
    ServerConfig,
    ServerHandle,
    ServerNews,
    SharedServers,
    numbered,
    servers,
)
from a2c_smcp.registry.sources import (
    ENTRIES,
    IN_A_LOOP,
    MAX_LISTED,
    BothWays,
    Entry,
    Following,
    PromptEntry,
    is_usable,
    remote_entry,
)
from a2c_smcp.registry.tool_info import MCP_FIELDS
from a2c_smcp.registry.tool_registry import ReadableRegistry

logger = logging.getLogger(__name__)

# The resources and prompts of an MCP server in a registry, kept equal to what the server lists.
#
# The URI of a resource cannot be changed, so of two resources with one URI the first stays, and the other is left out.
# A prompt keeps the name that it got first: its own, or `<server>__<prompt>` if that was taken. All methods run in the
# background loop. A change is announced at any time, also while the list is read: it is marked in `_stale`, and one
# task lists until nothing is marked.

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


START_TIMEOUT = 30.0  # seconds

_IN_A_LOOP = "use `async with registry.mcp_server(config)`, or run it in a thread"


class ServerOptions(TypedDict, total=False):
    """Seconds for the start and for a call; `raw` for MCP's own results; whether the server's hints allow retries."""

    start_timeout: float
    timeout: float
    raw: bool
    trust_hints: bool


class MCPServerTools:
    """A context manager, sync and async, for one use: inside it, the server's tools are registered. It gives names."""

    def __init__(
        self,
        registry: ReadableRegistry,
        config: ServerConfig,
        known_servers: Iterable[str] = (),
        *,
        start_timeout: float = START_TIMEOUT,
        timeout: float = CALL_TIMEOUT,
        raw: bool = False,
        trust_hints: bool = False,
    ) -> None:
        """`timeout` and `raw` are those of every `RemoteMCPAdapter` of the server. Raises `ConfigError`.

        No tool gets a name that begins with another one of the `known_servers` and `__`.
        """
        self._registry = registry
        self._known_servers = known_servers
        self._handle = ServerHandle(ServerAddress(config))
        self._config = self._handle.address.config
        self._start_timeout, self._timeout, self._raw = start_timeout, timeout, raw
        self._trust_hints = trust_hints
        self._tools: dict[str, RemoteMCPAdapter] = {}
        self._listed: dict[str, dict[str, Any]] = {}
        self._readables = MCPServerReadables(registry, self._handle, timeout)
        self.name = self._config.name

    @property
    def names(self) -> list[str]:
        """The names of the tools that can be called, in the server's order. The registry's policy may forbid some."""
        return [name for name in self._tools if name in self._registry]

    def open(self) -> list[str]:
        """Starts the server, registers its tools and returns their names.

        Raises what `SharedServers.open` raises, and `LoopIsRunning`.
        """
        return servers().background.wait(self._open(), _IN_A_LOOP)

    def close(self) -> None:
        """Removes the tools; the server ends with its last user. Raises `LoopIsRunning`."""
        servers().background.wait(self._close(), _IN_A_LOOP)

    def __enter__(self) -> list[str]:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> list[str]:
        return await servers().background.done(self._open())

    async def __aexit__(self, *_: object) -> None:
        await servers().background.done(self._close())

    async def _open(self) -> list[str]:
        here = servers()
        try:
            await here.open(self._handle, self._start_timeout)
        except BaseException:
            await here.release(self._handle)
            raise
        here.watch(self._handle, self._on_news)
        self._on_tools()
        await self._readables.open()
        return self.names

    async def _close(self) -> None:
        self._register([])
        await self._readables.close()
        await servers().release(self._handle)

    def _on_news(self, news: ServerNews, about: str | None) -> None:
        if news == "tools_changed":
            self._on_tools()
        else:
            self._readables.hear(news, about)

    def _on_tools(self) -> None:
        try:
            self._register(servers().tools(self._handle))
        except Exception:
            logger.exception("%s: its tools could not be registered", self.name)

    def _register(self, listed: list[dict[str, Any]]) -> None:
        """Registers exactly these tools. A tool whose listing has not changed stays registered as it is."""
        names = {
            tool.tool: name
            for name, tool in self._tools.items()
            if name not in self._registry or self._registry[name] is tool
        }
        tools = self._adapters(listed, names)
        added = [tool for name, tool in tools.items() if self._tools.get(name) is not tool]
        gone = [name for name in names.values() if name not in tools]
        self._tools, self._listed = tools, {listing["name"]: listing for listing in listed}
        if added or gone:
            self._registry.update(add=added, remove=gone)

    def _adapters(self, listed: list[dict[str, Any]], names: Mapping[str, str]) -> dict[str, RemoteMCPAdapter]:
        """Adapters by the names that they get; `names` are those that tools of the server have here."""
        tools: dict[str, RemoteMCPAdapter] = {}
        for listing in listed:
            tool = listing["name"]
            if not {tool, self._configured(tool, "alias")}.isdisjoint(self._config.forbidden_tools):
                continue
            name = names.get(tool) or self._free_name(tool, tools)
            is_unchanged = tool in names and self._listed.get(tool) == listing
            tools[name] = self._tools[name] if is_unchanged else self._adapter(listing, name)
        return tools

    def _free_name(self, tool: str, taken: Mapping[str, object]) -> str:
        own = self._configured(tool, "alias") or tool
        names = numbered(own, f"{self.name}__{tool}")
        if any(own.startswith(f"{other}__") for other in self._known_servers if other != self.name):
            next(names)  # it would look like a tool of that server
        return next(name for name in names if name not in self._registry and name not in taken)

    def _configured(self, tool: str, key: str) -> Any:
        """The configured meta of a tool, else of all tools of the server (WIRE §7)."""
        metas = (self._config.tool_meta.get(tool), self._config.default_tool_meta)
        values = (getattr(meta, key) for meta in metas if meta)
        return next((value for value in values if value is not None), None)

    def _adapter(self, listing: dict[str, Any], name: str) -> RemoteMCPAdapter:
        tool = RemoteMCPAdapter(
            name,
            listing.get("description") or "",
            listing["inputSchema"],
            config=self._handle,
            tool=listing["name"],
            timeout=self._timeout,
            raw=self._raw,
        )
        tool.output_schema = None if self._raw else listing.get("outputSchema")
        tool.tags = tuple(self._configured(listing["name"], "tags") or ())
        tool.meta = {key: listing[key] for key in MCP_FIELDS if listing.get(key)}
        tool.trusts_hints = self._trust_hints
        return tool


class MCPServers:
    """The MCP servers that were added to one registry, by name."""

    def __init__(self, registry: ReadableRegistry) -> None:
        self._registry = registry
        self._servers: dict[str, MCPServerTools] = {}

    def __iter__(self) -> Iterator[str]:
        return iter([*self._servers])

    def add(self, config: ServerConfig, **options: Unpack[ServerOptions]) -> list[str]:
        """Returns the names of its tools. Raises `ServerExists`, and what `MCPServerTools` and its `open` raise."""
        server = MCPServerTools(self._registry, config, self, **options)
        if self._servers.setdefault(server.name, server) is not server:
            raise ServerExists(repr(server.name))
        try:
            return server.open()
        except BaseException:
            del self._servers[server.name]
            raise

    def remove(self, name: str) -> None:
        """Raises `ServerNotFound`."""
        if name not in self._servers:
            raise ServerNotFound(repr(name), server=name)
        self._servers[name].close()
        self._servers.pop(name, None)
