"""All tools of an MCP server in a registry, in step with what the server offers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from itertools import count
from types import TracebackType
from typing import Any, TypedDict, Unpack

from a2c_smcp.errors import ServerNotFound
from a2c_smcp.registry.registry import MCPRegistry
from a2c_smcp.registry.remote.servers import (
    CALL_LIMIT,
    START_LIMIT,
    Address,
    Lease,
    RemoteMCPAdapter,
    ServerConfig,
    ServerExists,
    servers,
)

__all__ = ["AttachedServer", "AttachedServers", "ServerOptions"]

logger = logging.getLogger(__name__)

_SHOWN = ("title", "annotations", "_meta")
_INSTEAD = "`async with registry.mcp_server(config)`, or run it in a thread"


class ServerOptions(TypedDict, total=False):
    """Seconds to get ready and for a call; `raw` for MCP's own results; whether its hints decide about retries."""

    start_timeout: float
    timeout: float
    raw: bool
    trust_hints: bool


class AttachedServer:
    """A context manager, sync and async, for one use: inside, the server's tools are in the registry. It gives names.

    A tool keeps the name it got: its own, or `<server>__<tool>` where that was taken. What is registered in its place
    meanwhile stays; with the next change of the server's tools, ours is there again under the longer name.
    """

    def __init__(
        self,
        registry: MCPRegistry,
        config: ServerConfig,
        *,
        start_timeout: float = START_LIMIT,
        timeout: float = CALL_LIMIT,
        raw: bool = False,
        trust_hints: bool = False,
    ) -> None:
        """`timeout` and `raw` are those of every `RemoteMCPAdapter` of it. Raises `ConfigError`."""
        self._registry = registry
        self._lease = Lease(Address(config))
        self._config = self._lease.address.config
        self._start_timeout, self._timeout, self._raw = start_timeout, timeout, raw
        self._trust_hints = trust_hints
        self._tools: dict[str, RemoteMCPAdapter] = {}
        self._listed: dict[str, dict[str, Any]] = {}
        self.name = self._config.name

    @property
    def names(self) -> list[str]:
        """Those of the tools that can be called, in the server's order: a registry may have a policy."""
        return [name for name in self._tools if name in self._registry]

    def open(self) -> list[str]:
        """Starts the server and adds its tools. Raises what `Servers.open` raises, and `LoopIsRunning`."""
        return servers().background.wait(self._open(), f"use {_INSTEAD}")

    def close(self) -> None:
        """Takes the tools out again; the server ends with its last user. Raises `LoopIsRunning`."""
        servers().background.wait(self._close(), f"use {_INSTEAD}")

    def __enter__(self) -> list[str]:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> list[str]:
        return await servers().background.done(self._open())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await servers().background.done(self._close())

    async def _open(self) -> list[str]:
        here = servers()
        try:
            await here.open(self._lease, self._start_timeout)
        except BaseException:
            await here.release(self._lease)
            raise
        here.watch(self._lease, self._follow)
        self._follow()
        return self.names

    async def _close(self) -> None:
        self._offer([])
        await servers().release(self._lease)

    def _follow(self) -> None:
        """Called in the background, for one change after the other."""
        try:
            self._offer(servers().tools(self._lease))
        except Exception:
            logger.exception("%s: its tools could not be registered", self.name)

    def _offer(self, listed: list[dict[str, Any]]) -> None:
        """What has not changed stays registered as it is."""
        known = {self._tools[name].tool: name for name in self._tools if not self._is_replaced(name)}
        tools: dict[str, RemoteMCPAdapter] = {}
        added: list[RemoteMCPAdapter] = []
        for raw in listed:
            if self._is_forbidden(raw["name"]):
                continue
            name = known.get(raw["name"])
            if name is not None and self._listed.get(raw["name"]) == raw:
                tools[name] = self._tools[name]
                continue
            tool = self._adapted(raw, name or self._free_name(raw["name"], tools))
            tools[tool.name] = tool
            added.append(tool)
        gone = [name for name in known.values() if name not in tools]
        self._tools, self._listed = tools, {raw["name"]: raw for raw in listed}
        if added or gone:
            self._registry.update(add=added, remove=gone)

    def _is_replaced(self, name: str) -> bool:
        return name in self._registry and self._registry[name] is not self._tools[name]

    def _free_name(self, tool: str, taken: Mapping[str, object]) -> str:
        own = self._said(tool, "alias") or tool
        names = _variants(own, f"{self.name}__{tool}")
        if any(own.startswith(f"{other}__") for other in self._registry.mcp_servers if other != self.name):
            next(names)  # it would look like a tool of that server
        return next(name for name in names if name not in self._registry and name not in taken)

    def _is_forbidden(self, tool: str) -> bool:
        return not {tool, self._said(tool, "alias")}.isdisjoint(self._config.forbidden_tools)

    def _said(self, tool: str, about: str) -> Any:
        """What the configuration says of a tool, or else of all tools (WIRE §7)."""
        metas = (self._config.tool_meta.get(tool), self._config.default_tool_meta)
        said = (getattr(meta, about) for meta in metas if meta)
        return next((value for value in said if value is not None), None)

    def _adapted(self, raw: dict[str, Any], name: str) -> RemoteMCPAdapter:
        tool = RemoteMCPAdapter(
            name,
            raw.get("description") or "",
            raw["inputSchema"],
            config=self._lease,
            tool=raw["name"],
            timeout=self._timeout,
            raw=self._raw,
        )
        tool.output_schema = None if self._raw else raw.get("outputSchema")
        tool.tags = tuple(self._said(raw["name"], "tags") or ())
        tool.meta = {key: raw[key] for key in _SHOWN if raw.get(key)}
        tool.trusts_hints = self._trust_hints
        return tool


class AttachedServers:
    """The MCP servers that were added to one registry, by name."""

    def __init__(self, registry: MCPRegistry) -> None:
        self._registry = registry
        self._servers: dict[str, AttachedServer] = {}

    def __iter__(self) -> Iterator[str]:
        return iter([*self._servers])

    def add(self, config: ServerConfig, **options: Unpack[ServerOptions]) -> list[str]:
        """The names of its tools. Raises `ServerExists`, and what `AttachedServer` and its `open` raise."""
        server = AttachedServer(self._registry, config, **options)
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


def _variants(own: str, longer: str) -> Iterator[str]:
    yield own
    yield longer
    yield from (f"{longer}_{number}" for number in count(2))
