"""An MCP server in a registry: its tools, kept equal to its list, its resources and its prompts.

A tool keeps the name that it got first: its own (or its alias), or `<server>__<tool>` if that was taken. If the program
registers another tool under one of these names, that tool stays; with the next change of the server's list, ours is
registered again under the longer name. Changes are applied in the background loop, one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypedDict, Unpack

from a2c_smcp.errors import ServerNotFound
from a2c_smcp.mcp_host.failures import ServerExists
from a2c_smcp.registry.readable_registry import ReadableRegistry
from a2c_smcp.registry.remote.server_readables import MCPServerReadables
from a2c_smcp.registry.remote.servers import (
    CALL_TIMEOUT,
    RemoteMCPAdapter,
    ServerAddress,
    ServerConfig,
    ServerHandle,
    ServerNews,
    numbered,
    servers,
)
from a2c_smcp.registry.tool_info import MCP_FIELDS

logger = logging.getLogger(__name__)

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
