"""A registry as an MCP server, over stdio and streamable HTTP, for clients of older and newer versions of MCP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack

import mcp_types as types
from mcp import MCPError
from mcp.server.streamable_http import EventStore
from mcp.server.transport_security import TransportSecuritySettings

from a2c_smcp.errors import SMCPError
from a2c_smcp.protocol.operations import MCPOperation
from a2c_smcp.registry.calls.context import CannotAsk, OnProgress
from a2c_smcp.registry.content import mcp_result
from a2c_smcp.registry.readable_registry import ReadableRegistry
from a2c_smcp.registry.remote.mcp_server import PAGE_SIZE, MCPServer, ServerIdentity, TrimmedHeaders
from a2c_smcp.registry.remote.rounds import Announcer, Request, Rounds, is_modern
from a2c_smcp.web import ASGIApp

_ENDS_WITHIN = 3  # seconds: streams of notices end only with the server


class HTTPOptions(TypedDict, total=False):
    """See `RegistryServer.http_app`."""

    allowed_hosts: Sequence[str] | None
    allowed_origins: Sequence[str]
    stateless: bool
    event_store: EventStore | None


class RegistryServer:
    """Serves the tools, resources and prompts that the registry has at that moment. Clients are told of changes."""

    def __init__(
        self,
        registry: ReadableRegistry,
        name: str = "registry",
        *,
        page_size: int = PAGE_SIZE,
        **identity: Unpack[ServerIdentity],
    ) -> None:
        """Raises `ValueError` for a page size below 1."""
        if page_size < 1:
            raise ValueError("a page of a list needs room for one item at least")
        self._registry = registry
        self._name, self._identity, self._page_size = name, identity, page_size

    def run_stdio(self) -> None:
        """Serves one client on standard input and output until it disconnects. Tools print to standard error."""
        asyncio.run(self.serve_stdio())

    async def serve_stdio(self) -> None:
        """As `run_stdio`, in the running event loop."""
        await self._served().serve_stdio()

    def http_app(self, path: str = "/mcp", **options: Unpack[HTTPOptions]) -> ASGIApp:
        """Returns an ASGI application for streamable HTTP. Its lifespan must be run. Make one for each server process.

        Against DNS rebinding, only requests to this machine's own `Host` names are answered, and only if they come from
        no web page or from one of its own. List the hosts of a service for others in `allowed_hosts`
        (`"tools.example.com"`, `"10.0.0.1:*"`) and the pages that may use it in `allowed_origins`
        (`"https://example.com"`), and authenticate its clients.

        Clients before 2026-07-28 have sessions. With `stateless` they have none: nothing is kept between requests, and
        tools cannot ask them anything. An `event_store` of the SDK lets them resume a stream that was cut.
        """
        hosts, origins = options.get("allowed_hosts"), options.get("allowed_origins", ())
        security = None
        if hosts is not None:
            security = TransportSecuritySettings(allowed_hosts=[*hosts], allowed_origins=[*origins])
        app = self._served().streamable_http_app(
            streamable_http_path=path,
            transport_security=security,
            stateless_http=options.get("stateless", False),
            event_store=options.get("event_store"),
        )
        app.add_middleware(TrimmedHeaders)
        return app

    def run_http(
        self,
        port: int = 8000,
        *,
        host: str = "127.0.0.1",
        path: str = "/mcp",
        on_listening: Callable[[str], None] = lambda url: None,
        **options: Unpack[HTTPOptions],
    ) -> None:
        """Serves streamable HTTP until the program is interrupted. The options are those of `http_app`.

        Port 0 is any that is free; `on_listening` is called with the URL as soon as clients can connect.
        """
        import uvicorn

        app = self.http_app(path, **options)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=_ENDS_WITHIN)
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listening:
            shown = f"[{host}]" if ":" in host else host
            on_listening(f"http://{shown}:{listening.getsockname()[1]}{path}")
            uvicorn.Server(config).run(sockets=[listening])

    def _served(self) -> _ServedRegistry:
        return _ServedRegistry(self._registry, self._name, self._page_size, **self._identity)


class _ServedRegistry(MCPServer):
    """One run of the server."""

    def __init__(self, registry: ReadableRegistry, name: str, page_size: int = PAGE_SIZE, **identity: Any) -> None:
        self._registry = registry
        announcer = Announcer(registry)
        self.rounds = Rounds(announcer)
        super().__init__(name, announcer, registry, page_size, **identity)

    async def close(self) -> None:
        await self.rounds.close()

    def tools(self) -> list[dict[str, Any]]:
        return self._registry.describe("mcp")

    def input_schema(self, name: str) -> dict[str, Any] | None:
        described = self._registry.describe().get(name)
        return described["input_schema"] if described else None

    async def call_tool(self, context: Request, params: types.CallToolRequestParams) -> dict[str, Any]:
        """MCP's result: an exception of a tool becomes an error result. Raises `MCPError` for an unknown tool."""
        name, arguments, tool = params.name, params.arguments or {}, None
        try:
            tool = self._registry[name]
        except SMCPError:
            try:
                await self._registry.acall(name, arguments)  # hooks are told of it
            except SMCPError as error:
                raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {error.about}") from None

        async def call(on_progress: OnProgress | None) -> dict[str, Any]:
            calling = self._registry.acall(name, arguments, on_progress=on_progress)
            return await mcp_result(name, calling, tool, passing=(CannotAsk,) if is_modern(context) else ())

        return await self.rounds.answer(context, call)

    async def answer(self, operation: MCPOperation, context: Request, params: dict[str, Any]) -> dict[str, Any]:
        return await self.rounds.answer(context, lambda _: self._registry.answer(operation, params))
