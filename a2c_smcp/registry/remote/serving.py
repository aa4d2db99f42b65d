"""A registry as an MCP server, over stdio and streamable HTTP, for clients of both of MCP's eras."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import ValidationError

from a2c_smcp.registry.registry import MCPRegistry
from a2c_smcp.registry.results import mcp_result

__all__ = ["RegistryServer"]

logger = logging.getLogger(__name__)

PATIENCE = 1.0  # seconds, with a client that is told something

ASGIApp: TypeAlias = Callable[
    [
        MutableMapping[str, Any],
        Callable[[], Awaitable[MutableMapping[str, Any]]],
        Callable[[MutableMapping[str, Any]], Awaitable[None]],
    ],
    Awaitable[None],
]
_Request: TypeAlias = ServerRequestContext[Any, Any]


class RegistryServer:
    """What a registry holds, at the moment a client asks. Changes of the tools are announced."""

    def __init__(
        self, registry: MCPRegistry, name: str = "registry", *, version: str = "", instructions: str | None = None
    ) -> None:
        self._registry = registry
        self._identity = {"name": name, "version": version, "instructions": instructions}

    def run_stdio(self) -> None:
        """Serves one client on standard input and output, until it goes. What tools print goes to standard error."""
        asyncio.run(self.serve_stdio())

    async def serve_stdio(self) -> None:
        """As `run_stdio`, in a loop that is running already."""
        server = _Served(self._registry, **self._identity)
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    def http_app(self, path: str = "/mcp", *, allowed_hosts: Sequence[str] | None = None) -> ASGIApp:
        """An ASGI application for streamable HTTP; it needs its lifespan to be run. Make one for each server process.

        Only this machine is let in by its `Host` header, against DNS rebinding. Name the hosts that a service is
        known by (`"tools.example.com"`, `"10.0.0.1:*"`) where it listens for others, and ask who they are before.
        """
        security = None if allowed_hosts is None else TransportSecuritySettings(allowed_hosts=[*allowed_hosts])
        served = _Served(self._registry, **self._identity)
        return served.streamable_http_app(streamable_http_path=path, transport_security=security)


class _Served(Server[None]):
    """One run of the server. The newer clients listen on a bus, the older ones are told one by one."""

    def __init__(self, registry: MCPRegistry, **identity: Any) -> None:
        self._registry = registry
        self._bus = InMemorySubscriptionBus()
        self._older: set[ServerSession] = set()
        super().__init__(
            **identity,
            lifespan=_lifespan,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=ListenHandler(self._bus),
        )
        self.add_notification_handler("notifications/initialized", types.NotificationParams, self._welcome)

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *rest: Any, **more: Any
    ) -> InitializationOptions:
        """The SDK asks for this itself over HTTP, and would say that tools never change."""
        announced = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(announced, *rest, **more)

    @asynccontextmanager
    async def announcing(self) -> AsyncGenerator[None, None]:
        """Changes come from any thread. Several at once are one."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def heard() -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(changed.set)

        unsubscribe = self._registry.on_change(heard)
        task = loop.create_task(self._announce(changed))
        try:
            yield
        finally:
            unsubscribe()
            task.cancel()
            await asyncio.wait([task])

    async def _announce(self, changed: asyncio.Event) -> None:
        while await changed.wait():
            changed.clear()
            await self._bus.publish(ToolsListChanged())
            for session in [*self._older]:
                with suppress(TimeoutError):  # it does not read
                    async with asyncio.timeout(PATIENCE):
                        await session.send_tool_list_changed()

    async def _welcome(self, context: _Request, params: types.NotificationParams) -> None:
        session = context.session
        self._older.add(session)
        # The SDK lets go of what belongs to a connection here, and has no public way to it yet.
        session._connection.exit_stack.callback(self._older.discard, session)

    async def _list_tools(
        self, context: _Request, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        tools = (_tool(wire) for wire in self._registry.describe("mcp"))
        return types.ListToolsResult(tools=[tool for tool in tools if tool is not None])

    async def _call_tool(self, context: _Request, params: types.CallToolRequestParams) -> types.CallToolResult:
        result = await mcp_result(params.name, self._registry.acall(params.name, params.arguments or {}))
        return types.CallToolResult.model_validate(result)


@asynccontextmanager
async def _lifespan(server: Server[None]) -> AsyncGenerator[None, None]:
    assert isinstance(server, _Served)
    async with server.announcing():
        yield


def _tool(wire: dict[str, Any]) -> types.Tool | None:
    """One tool that says something odd of itself shall not hide the others."""
    try:
        return types.Tool.model_validate(wire)
    except ValidationError as error:
        logger.warning("Tool %r is not listed: %s", wire.get("name"), error.errors()[0]["msg"])
        return None
