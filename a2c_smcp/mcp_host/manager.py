"""All MCP servers of a host, by name. None of them can delay or fail another."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self, get_args

from a2c_smcp.errors import BadRequest, ServerNotFound
from a2c_smcp.mcp_host.config.servers import MCPServerConfig
from a2c_smcp.mcp_host.failures import AuthRequired, ServerExists
from a2c_smcp.mcp_host.message_limits import MAX_BYTES
from a2c_smcp.mcp_host.policy import HostPolicy
from a2c_smcp.mcp_host.processes.guard import ProcessGuard
from a2c_smcp.mcp_host.sessions.logs import LogLevel, is_log_level
from a2c_smcp.mcp_host.sessions.server_info import AboutServer
from a2c_smcp.mcp_host.sessions.tool_request import ReadRequest, ToolRequest
from a2c_smcp.mcp_host.sign_in.account import Account
from a2c_smcp.mcp_host.status import OnChange, OnServerEvent, OnServerLog, ServerStatus, State
from a2c_smcp.mcp_host.supervisor import Supervisor
from a2c_smcp.mcp_host.transports.http import StreamableTransport
from a2c_smcp.mcp_host.transports.sse import SSETransport
from a2c_smcp.mcp_host.transports.stdio import StdioTransport
from a2c_smcp.mcp_host.transports.transport import MCPTransport

__all__ = ["Manager", "transport_for"]

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

    `account_for` is called whenever a server gets a configuration.
    """

    def __init__(
        self,
        *,
        policy: HostPolicy | None = None,
        on_change: OnChange = lambda name, state, reason: None,
        on_event: OnServerEvent = lambda name, kind, about: None,
        on_log: OnServerLog = lambda name, message: None,
        open_transport: OpenTransport = transport_for,
        account_for: AccountFor = lambda config: None,
    ) -> None:
        self._policy = policy or HostPolicy()
        self._on_change = on_change
        self._on_event = on_event
        self._on_log = on_log
        self._open_transport = open_transport
        self._account_for = account_for
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

    def state(self, name: str) -> State:
        return self._server(name).state

    def is_asleep(self, name: str) -> bool:
        """Return whether a server is stopped only until it is used again."""
        return name in self._servers and self._servers[name].is_asleep

    def config(self, name: str) -> MCPServerConfig:
        return self._server(name).config

    def tools(self, name: str) -> list[dict[str, Any]]:
        """Return the tools as the server lists them. Sends nothing to the server."""
        return self._server(name).tools

    def windows(self, name: str) -> list[dict[str, Any]]:
        return self._server(name).windows

    def about(self, name: str) -> AboutServer:
        """Return what the server said about itself when it was last started."""
        return self._server(name).about

    def refusal(self, name: str) -> AuthRequired | None:
        """Return why a server is `auth_required`; `None` if it is not."""
        return self._server(name).refusal

    def add(self, config: MCPServerConfig) -> None:
        """Add a server without starting it. Raises `ServerExists`."""
        if config.name in self._servers:
            raise ServerExists(repr(config.name))
        self._servers[config.name] = self._supervised(config)

    async def remove(self, name: str) -> None:
        server = self._server(name)
        await server.stop("removed")
        if self._servers.get(name) is server:
            del self._servers[name]

    async def replace(self, config: MCPServerConfig) -> bool:
        """Stop the server of this name and take over its new configuration. Return whether to start it again."""
        before = self._server(config.name)
        was_wanted = before.is_wanted or before.state == "disabled"
        await before.stop("replaced")
        after = self._servers[config.name] = self._supervised(config)
        if after.state == "disabled":
            self._on_change(after.name, after.state, after.reason)
        return was_wanted and after.state != "disabled"

    async def start(self, name: str | None = None) -> dict[str, State]:
        """Start one server, or all. Return the states after the first attempt; a failed start raises nothing."""
        servers = list(self._servers.values()) if name is None else [self._server(name)]
        states = await asyncio.gather(*(server.start() for server in servers))
        return {server.name: state for server, state in zip(servers, states, strict=True)}

    def check_soon(self, name: str) -> None:
        """Have a health check of a server that is ready, because its token is gone."""
        self._server(name).check_soon()

    def explain(self, name: str, reason: str) -> None:
        """Say why nobody is signed in to a server that is `auth_required`."""
        self._server(name).explain(reason)

    async def stop(self, name: str | None = None) -> None:
        servers = list(self._servers.values()) if name is None else [self._server(name)]
        await asyncio.gather(*(server.stop() for server in servers))

    async def close(self) -> None:
        """Stop all servers at the same time, then the guard process."""
        await self.stop()
        await self._guard.close()

    async def call_tool(self, name: str, request: ToolRequest) -> dict[str, Any]:
        """Return the raw MCP result, also of a tool that failed. Raises `ServerFailure` or `CallTimeout`."""
        return await self._server(name).callers.call_tool(request)

    async def set_log_level(self, name: str, level: str | None) -> None:
        """Have `on_log` called with the server's messages of this level and above; `None`: with as few as possible.

        It holds until it is set again, also when the server starts again. Raises `BadRequest` for an unknown level.
        """
        if level is not None and not is_log_level(level):
            raise BadRequest(f"{level!r} is not a log level: {', '.join(get_args(LogLevel))}")
        await self._server(name).set_log_level(level)

    async def read(self, name: str, request: ReadRequest) -> dict[str, Any]:
        """Return MCP's result. Raises `ServerFailure`, `CallTimeout`, `CapabilityNotSupported`."""
        return await self._server(name).callers.read(request)

    async def read_resource(self, name: str, uri: str, timeout: float) -> dict[str, Any]:
        """Return MCP's result; nobody answers questions. Raises as `read` does."""
        return await self.read(name, ReadRequest("resources/read", {"uri": uri}, timeout))

    async def subscribe(self, name: str, uri: str, timeout: float) -> None:
        """Have `on_event` called with changes of a resource, until `unsubscribe`.

        It holds also when the server has started again, or has another configuration. Raises as `read` does.
        """
        await self._server(name).subscribe(uri, timeout)

    async def unsubscribe(self, name: str, uri: str) -> None:
        """End it, also for a server that is not here any more."""
        self._subscribed[name].discard(uri)
        if name in self._servers:
            await self._servers[name].unsubscribe(uri)

    def _server(self, name: str) -> Supervisor:
        try:
            return self._servers[name]
        except KeyError:
            raise ServerNotFound(repr(name), server=name) from None

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
            subscribed=self._subscribed[config.name],
        )
