"""All MCP servers of a host, by name. None of them can delay or fail another."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from a2c_smcp.errors import ServerNotFound
from a2c_smcp.mcp_host.config.servers import MCPServerConfig
from a2c_smcp.mcp_host.failures import ServerExists
from a2c_smcp.mcp_host.limits import MAX_BYTES, HostLimits
from a2c_smcp.mcp_host.processes.guard import ProcessGuard
from a2c_smcp.mcp_host.sessions.sdk_client import require_known_sdk
from a2c_smcp.mcp_host.sign_in.account import Account
from a2c_smcp.mcp_host.status import OnChange, OnServerEvent, OnServerLog, ServerStatus, State
from a2c_smcp.mcp_host.supervisor import SeenServers, Supervisor
from a2c_smcp.mcp_host.transports.http import SSETransport, StreamableTransport
from a2c_smcp.mcp_host.transports.stdio import StdioTransport
from a2c_smcp.mcp_host.transports.transport import MCPTransport

_TRANSPORTS: dict[str, Callable[[Any, ProcessGuard, int, Account | None], MCPTransport]] = {
    "stdio": lambda config, guard, limit, _: StdioTransport(
        config.server_parameters, guard, limit, sandbox=config.sandbox, name=config.name
    ),
    "streamable": lambda config, _, limit, account: StreamableTransport(config.server_parameters, limit, account),
    "sse": lambda config, _, limit, account: SSETransport(config.server_parameters, limit, account),
}


def transport_for(
    config: MCPServerConfig, guard: ProcessGuard, limit: int = MAX_BYTES, account: Account | None = None
) -> MCPTransport:
    """Return a transport that is not opened yet. `limit` is the most bytes of a message from the server."""
    return _TRANSPORTS[config.type](config, guard, limit, account)


OpenTransport = Callable[[MCPServerConfig, ProcessGuard, int, Account | None], MCPTransport]
AccountFor = Callable[[MCPServerConfig], Account | None]
"""The account to sign in to a server with; `None` for a server without one."""


class Manager:
    """An async context manager; leaving it stops all servers. Callbacks are called in the event loop.

    `account_for` is called whenever a server gets a configuration. Raises `ConfigError` for an unknown MCP SDK.
    """

    def __init__(
        self,
        *,
        policy: HostLimits | None = None,
        on_change: OnChange = lambda name, state, reason: None,
        on_event: OnServerEvent = lambda name, kind, about: None,
        on_log: OnServerLog = lambda name, message: None,
        open_transport: OpenTransport = transport_for,
        account_for: AccountFor = lambda config: None,
        seen: SeenServers | None = None,
    ) -> None:
        require_known_sdk()
        self._policy = policy or HostLimits()
        self._on_change = on_change
        self._on_event = on_event
        self._on_log = on_log
        self._open_transport = open_transport
        self._account_for = account_for
        self._seen = seen or SeenServers()
        self._guard = ProcessGuard()
        self._start_slots = asyncio.Semaphore(self._policy.starting_at_once)
        self._servers: dict[str, Supervisor] = {}
        self._subscribed: dict[str, set[str]] = defaultdict(set)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._servers)

    def __contains__(self, name: object) -> bool:
        return name in self._servers

    def status(self) -> dict[str, ServerStatus]:
        return {name: server.status for name, server in self._servers.items()}

    def __getitem__(self, name: str) -> Supervisor:
        """Return a server. Raises `ServerNotFound`."""
        try:
            return self._servers[name]
        except KeyError:
            raise ServerNotFound(repr(name), server=name) from None

    def add(self, config: MCPServerConfig) -> None:
        """Add a server without starting it. Raises `ServerExists`."""
        if config.name in self._servers:
            raise ServerExists(repr(config.name))
        self._servers[config.name] = self._supervised(config)

    async def remove(self, name: str) -> None:
        server = self[name]
        await server.stop("removed")
        if self._servers.get(name) is server:
            del self._servers[name]

    async def replace(self, config: MCPServerConfig) -> bool:
        """Stop the server of this name and take over its new configuration. Return True to start it again."""
        before = self[config.name]
        was_wanted = before.is_wanted or before.state == "disabled"
        await before.stop("replaced")
        after = self._servers[config.name] = self._supervised(config)
        if after.state == "disabled":
            self._on_change(after.name, after.state, after.reason)
        return was_wanted and after.state != "disabled"

    async def start(self, name: str | None = None) -> dict[str, State]:
        """Start one server, or all. Return the states after the first attempt; a failed start raises nothing."""
        servers = list(self._servers.values()) if name is None else [self[name]]
        states = await asyncio.gather(*(server.start() for server in servers))
        return {server.name: state for server, state in zip(servers, states, strict=True)}

    async def stop(self, name: str | None = None) -> None:
        servers = list(self._servers.values()) if name is None else [self[name]]
        await asyncio.gather(*(server.stop() for server in servers))

    async def close(self) -> None:
        """Stop all servers at the same time, then the guard process."""
        await self.stop()
        await self._guard.close()

    async def unsubscribe(self, name: str, uri: str) -> None:
        """End a subscription, also of a server that is not here any more."""
        self._subscribed[name].discard(uri)
        if name in self._servers:
            await self._servers[name].unsubscribe(uri)

    def _supervised(self, config: MCPServerConfig) -> Supervisor:
        account = self._account_for(config)
        return Supervisor(
            config,
            lambda: self._open_transport(config, self._guard, self._policy.largest_message, account),
            policy=self._policy,
            start_slots=self._start_slots,
            on_change=self._on_change,
            on_event=self._on_event,
            on_log=self._on_log,
            account=account,
            seen=self._seen,
            subscribed=self._subscribed[config.name],
        )
