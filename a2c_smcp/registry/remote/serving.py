"""A registry as an MCP server, over stdio and streamable HTTP, for clients of older and newer versions of MCP."""

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

from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.registry.results import mcp_result
from a2c_smcp.registry.tool_registry import ToolRegistry

__all__ = ["RegistryServer"]

logger = logging.getLogger(__name__)

NOTIFIED_WITHIN = 1.0  # seconds, for a client that does not read

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
    """Lists and calls the tools that the registry has at that moment. Clients are told when its tools change."""

    def __init__(
        self, registry: ToolRegistry, name: str = "registry", *, version: str = "", instructions: str | None = None
    ) -> None:
        self._registry = registry
        self._identity = {"name": name, "version": version, "instructions": instructions}

    def run_stdio(self) -> None:
        """Serves one client on standard input and output until it disconnects. Tools print to standard error."""
        asyncio.run(self.serve_stdio())

    async def serve_stdio(self) -> None:
        """As `run_stdio`, in the running event loop."""
        server = _ServedRegistry(self._registry, **self._identity)
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    def http_app(self, path: str = "/mcp", *, allowed_hosts: Sequence[str] | None = None) -> ASGIApp:
        """Returns an ASGI application for streamable HTTP. Its lifespan must be run. Make one for each server process.

        Against DNS rebinding, only requests to this machine's own `Host` names are answered. List the hosts of a
        service for others in `allowed_hosts` (`"tools.example.com"`, `"10.0.0.1:*"`), and authenticate its clients.
        """
        security = None if allowed_hosts is None else TransportSecuritySettings(allowed_hosts=[*allowed_hosts])
        served = _ServedRegistry(self._registry, **self._identity)
        return served.streamable_http_app(streamable_http_path=path, transport_security=security)


class _ServedRegistry(Server[None]):
    """One run of the server. Newer clients listen on a bus; older ones are notified one by one."""

    def __init__(self, registry: ToolRegistry, **identity: Any) -> None:
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
        self.add_notification_handler("notifications/initialized", types.NotificationParams, self._on_initialized)

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *rest: Any, **more: Any
    ) -> InitializationOptions:
        """The SDK calls this for HTTP, and would announce that tools never change."""
        announced = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(announced, *rest, **more)

    @asynccontextmanager
    async def announcing(self) -> AsyncGenerator[None, None]:
        """Notifies clients of changes, which may come from any thread. Several at once are one notification."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def on_change() -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(changed.set)

        stop_listening = self._registry.on_change(on_change)
        task = loop.create_task(self._announce(changed))
        try:
            yield
        finally:
            stop_listening()
            await cancel_and_wait(task)

    async def _announce(self, changed: asyncio.Event) -> None:
        while await changed.wait():
            changed.clear()
            await self._bus.publish(ToolsListChanged())
            for session in [*self._older]:
                with suppress(TimeoutError):  # it does not read
                    async with asyncio.timeout(NOTIFIED_WITHIN):
                        await session.send_tool_list_changed()

    async def _on_initialized(self, context: _Request, params: types.NotificationParams) -> None:
        session = context.session
        self._older.add(session)
        # The SDK calls this when the connection ends. It has no public way to that yet.
        session._connection.exit_stack.callback(self._older.discard, session)

    async def _list_tools(
        self, context: _Request, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        tools = (_tool(listing) for listing in self._registry.describe("mcp"))
        return types.ListToolsResult(tools=[tool for tool in tools if tool is not None])

    async def _call_tool(self, context: _Request, params: types.CallToolRequestParams) -> types.CallToolResult:
        on_progress = context.session.report_progress if _wants_progress(params) else None
        call = self._registry.acall(params.name, params.arguments or {}, on_progress=on_progress)
        result = await mcp_result(params.name, call)
        return types.CallToolResult.model_validate(result)


@asynccontextmanager
async def _lifespan(server: Server[None]) -> AsyncGenerator[None, None]:
    assert isinstance(server, _ServedRegistry)
    async with server.announcing():
        yield


def _wants_progress(params: types.CallToolRequestParams) -> bool:
    return params.meta is not None and params.meta.get("progress_token") is not None


def _tool(listing: dict[str, Any]) -> types.Tool | None:
    """`None` for a tool that the SDK refuses, so that the others are listed."""
    try:
        return types.Tool.model_validate(listing)
    except ValidationError as error:
        logger.warning("Tool %r is not listed: %s", listing.get("name"), error.errors()[0]["msg"])
        return None
