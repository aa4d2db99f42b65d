"""An MCP server of both eras over tools, resources and prompts: handlers, pages, errors, announcements.

Registries and offices are served by it. Items that the SDK refuses are left out of a list one by one, and this is the
only place where errors become those of MCP.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from abc import ABC, abstractmethod
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from secrets import token_bytes
from typing import Any, TypedDict, Unpack, cast, get_args

import mcp_types as types
from mcp import MCPError, stdio_server
from mcp.server import CacheHint, InitializationOptions, NotificationOptions, Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.streamable_http import EventStore
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types.methods import MONOLITH_REQUESTS, MONOLITH_RESULTS, serialize_server_result
from pydantic import BaseModel, ValidationError

from a2c_smcp.errors import BadRequest, PromptNotFound, ResourceNotFound, SMCPError, kind_of
from a2c_smcp.mcp_host.failures import RESOURCE_NOT_FOUND
from a2c_smcp.protocol.operations import MCPOperation
from a2c_smcp.registry.calls.context import CannotAsk, OnProgress
from a2c_smcp.registry.content import mcp_result
from a2c_smcp.registry.remote.rounds import STATE_TTL, Announcer, Request, Rounds, is_modern, missing_capability
from a2c_smcp.registry.remote.sdk import check, serve_dual_era_loop
from a2c_smcp.registry.sources import ENTRIES
from a2c_smcp.registry.tool_registry import ANSWERS, ReadableRegistry
from a2c_smcp.web import ASGIApp, Receive, Scope, Send

logger = logging.getLogger(__name__)

PAGE_SIZE = 1000
"""Items of a list in one answer. Many clients ask for the first page only."""

_OF_RESULT = frozenset({"resultType", "content", "structuredContent", "isError", "_meta"})
_OF_TEXT = frozenset({"type", "text"})
_ALL_CHANGE = NotificationOptions(tools_changed=True, resources_changed=True, prompts_changed=True)


class ServerIdentity(TypedDict, total=False):
    """The description of a server for its clients, with MCP's names."""

    version: str
    title: str | None
    description: str | None
    instructions: str | None
    website_url: str | None
    icons: Sequence[dict[str, Any]] | None


class MCPServer(Server[None], ABC):
    """One run of a server. Its resources and prompts are those of a registry."""

    def __init__(
        self,
        name: str,
        announcer: Announcer,
        readables: ReadableRegistry,
        page_size: int = PAGE_SIZE,
        state_key: bytes | None = None,
        **identity: Any,
    ) -> None:
        """`state_key` seals what clients give back, by default one of this process. Raises `ConfigError` if the
        installed SDK does not fit."""
        check()
        self.announcer = announcer
        self._page_size = page_size
        icons = [types.Icon.model_validate(icon) for icon in identity.get("icons") or ()] or None
        super().__init__(
            name,
            **{**identity, "icons": icons},
            lifespan=_lifespan,
            cache_hints={"resources/read": CacheHint()},
            get_tool_input_schema=self.input_schema,
        )
        self._stamp = self.server_info_stamp
        self._greeting: InitializationOptions | None = None
        self._add_handlers(readables)
        sealing = RequestStateSecurity(keys=[state_key or token_bytes(32)], ttl=STATE_TTL)
        self.state_boundary = RequestStateBoundary(sealing, default_audience=name)
        self.middleware.append(self.state_boundary)

    @abstractmethod
    def tools(self) -> list[dict[str, Any]]:
        """MCP's list of tools."""

    @abstractmethod
    def input_schema(self, name: str) -> dict[str, Any] | None:
        """The schema of a tool's arguments, by which the SDK checks HTTP headers."""

    @abstractmethod
    async def call_tool(self, context: Request, params: types.CallToolRequestParams) -> dict[str, Any]:
        """MCP's result of a call."""

    @abstractmethod
    async def answer(self, operation: MCPOperation, context: Request, params: dict[str, Any]) -> dict[str, Any]:
        """MCP's result of one of `MCP_OPERATIONS`."""

    def explain(self, error: SMCPError) -> str:
        """The text of an error for the client."""
        return error.message

    async def close(self) -> None:
        """Called at the end of the run."""

    async def serve_stdio(self) -> None:
        """Serve one client on standard input and output, until it disconnects."""
        async with self.running(), stdio_server() as (read, write):
            try:
                await self.serve(read, write)
            finally:
                sys.stdout.flush()  # to standard error, as long as the SDK has its place

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Clients can be served in this block."""
        self._greeting = self.create_initialization_options()
        async with self.lifespan(self):
            yield

    async def serve(self, read: Any, write: Any) -> None:
        """Serve one client at these streams of messages, until it disconnects. There may be others."""
        if self._greeting:
            self._greeting.capabilities = self.create_initialization_options().capabilities
        await serve_dual_era_loop(self, read, write, lifespan_state=None, init_options=self._greeting)

    def instruct(self, instructions: str) -> None:
        """Change the instructions for clients that connect later."""
        self.instructions = instructions
        if self._greeting:
            self._greeting.instructions = instructions

    def _add_handlers(self, readables: ReadableRegistry) -> None:
        add, announcer = self.add_request_handler, self.announcer
        self.translated_call = self._translated(self.call_tool)
        add("tools/call", types.CallToolRequestParams, self.translated_call)
        for operation in ANSWERS:
            params: Any = MONOLITH_REQUESTS[operation.method].model_fields["params"].annotation
            add(operation.method, params, self._translated(partial(self._answer, operation)))
        add("tools/list", types.PaginatedRequestParams, self._list("tools/list", "tools", "name", self.tools))
        for row, entries in ENTRIES.items():
            items = partial(readables.listings, entries)
            add(row.method, types.PaginatedRequestParams, self._list(row.method, row.listed, row.key, items))
        add("resources/subscribe", types.SubscribeRequestParams, announcer.subscribe)
        add("resources/unsubscribe", types.UnsubscribeRequestParams, announcer.unsubscribe)
        add("subscriptions/listen", types.SubscriptionsListenRequestParams, announcer.listen)
        add("logging/setLevel", types.SetLevelRequestParams, announcer.set_level)
        self.add_notification_handler("notifications/initialized", types.NotificationParams, announcer.on_initialized)

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *rest: Any, **options: Any
    ) -> InitializationOptions:
        """The SDK calls this for HTTP, and would announce that nothing ever changes."""
        return super().create_initialization_options(notification_options or _ALL_CHANGE, *rest, **options)

    def _list(
        self, method: str, field: str, key: str, items: Callable[[], list[dict[str, Any]]]
    ) -> Callable[[Request, types.PaginatedRequestParams], Awaitable[BaseModel]]:
        """A handler for pages of a list. A cursor names the last item before the page."""
        result = cast(type[BaseModel], MONOLITH_RESULTS[method])
        (model,) = get_args(result.model_fields[field].annotation)

        async def handle(context: Request, params: types.PaginatedRequestParams) -> BaseModel:
            listed, begin = items(), 0
            if params.cursor is not None:
                names = [item[key] for item in listed]
                try:
                    begin = names.index(urlsafe_b64decode(params.cursor).decode()) + 1
                except ValueError:  # also for bad base64 and bad UTF-8
                    raise MCPError(types.INVALID_PARAMS, "Invalid cursor: list again from the beginning") from None
            page = listed[begin : begin + self._page_size]
            is_last = begin + self._page_size >= len(listed)
            cursor = None if is_last else urlsafe_b64encode(page[-1][key].encode()).decode()
            return result.model_validate({field: _valid(model, page), "next_cursor": cursor})

        return handle

    # Results and errors

    async def _answer(self, operation: MCPOperation, context: Request, params: BaseModel) -> dict[str, Any]:
        return await self.answer(operation, context, params.model_dump(by_alias=True, mode="json", exclude_none=True))

    def as_sent(self, context: Request, result: dict[str, Any]) -> dict[str, Any]:
        """The result of a call as the SDK sends it to a client of 2026-07-28. Raises `MCPError`.

        The SDK checks it by models; a result of plain text is left as it is.
        """
        if not _is_plain_text(result):
            try:
                result = serialize_server_result("tools/call", context.protocol_version, result)
            except ValidationError:
                logger.exception("a tool returned an invalid result")
                raise MCPError(types.INTERNAL_ERROR, "Handler returned an invalid result") from None
        meta = {**(result.get("_meta") or {}), types.SERVER_INFO_META_KEY: self._stamp}
        return {**result, "_meta": meta}

    def _translated(
        self, answer: Callable[[Request, Any], Awaitable[dict[str, Any]]]
    ) -> Callable[[Request, Any], Awaitable[dict[str, Any]]]:
        """The same handler, with MCP's errors."""

        async def handle(context: Request, params: Any) -> dict[str, Any]:
            try:
                return _own(await answer(context, params))
            except MCPError:
                raise
            except CannotAsk as error:
                raise (missing_capability(error) if is_modern(context) else _failed(error, error.message)) from None
            except ResourceNotFound as error:
                code = types.INVALID_PARAMS if is_modern(context) else RESOURCE_NOT_FOUND
                raise MCPError(code, "Resource not found", {"uri": (context.params or {}).get("uri")}) from error
            except PromptNotFound as error:
                raise _failed(error, error.message, types.INVALID_PARAMS) from None
            except SMCPError as error:
                code = types.INVALID_PARAMS if isinstance(error, BadRequest) else types.INTERNAL_ERROR
                raise _failed(error, self.explain(error), code) from None
            except Exception as error:
                logger.warning("%s failed", context.method, exc_info=True)
                raise MCPError(types.INTERNAL_ERROR, str(error) or kind_of(type(error))) from None

        return handle


class TrimmedHeaders:
    """Removes blanks around the values of headers (RFC 9110 §5.5): some web servers leave them, and MCP compares."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}
        await self._app(scope, receive, send)


@asynccontextmanager
async def _lifespan(server: Server[None]) -> AsyncGenerator[None, None]:
    assert isinstance(server, MCPServer)
    async with server.announcer.running():
        try:
            yield
        finally:
            await server.close()


def _own(result: dict[str, Any]) -> dict[str, Any]:
    """A result as this server sends it: complete by default, and without the signature of another server."""
    meta = result.get("_meta")
    if isinstance(meta, dict) and types.SERVER_INFO_META_KEY in meta:
        rest = {key: value for key, value in meta.items() if key != types.SERVER_INFO_META_KEY}
        result = {**result, "_meta": rest or None}
    return {"resultType": "complete", **{key: value for key, value in result.items() if value is not None}}


def _is_plain_text(result: dict[str, Any]) -> bool:
    """True for a result with the usual fields, and with texts as its only content."""
    content, meta = result.get("content"), result.get("_meta", {})
    return (
        result.keys() <= _OF_RESULT
        and type(result.get("isError", False)) is bool
        and isinstance(meta, dict)
        and isinstance(content, list)
        and all(
            isinstance(block, dict)
            and block.keys() == _OF_TEXT
            and block["type"] == "text"
            and type(block["text"]) is str
            for block in content
        )
    )


def _failed(error: SMCPError, text: str, code: int = types.INTERNAL_ERROR) -> MCPError:
    """MCP's error. The error of an MCP server that was asked stays as it was."""
    own, message = error.details.get("mcp_code"), error.details.get("mcp_message")
    if type(own) is int and isinstance(message, str):
        return MCPError(own, message, error.details.get("mcp_data"))
    return MCPError(code, text)


def _valid(model: type[BaseModel], listed: list[dict[str, Any]]) -> list[BaseModel]:
    """The items without those that the SDK refuses: one must not hide the others."""
    items = []
    for item in listed:
        try:
            items.append(model.model_validate(item))
        except ValidationError as error:
            name = item.get("name") or item.get("uri")
            logger.warning("%s %r is not listed: %s", model.__name__, name, error.errors()[0]["msg"])
    return items


# A registry as an MCP server, over stdio and streamable HTTP, for clients of older and newer versions of MCP.

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
