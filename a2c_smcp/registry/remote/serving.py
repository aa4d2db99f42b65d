"""A registry as an MCP server, over stdio and streamable HTTP, for clients of older and newer versions of MCP."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias, TypedDict, TypeVar, Unpack

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import EventStore
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ValidationError

from a2c_smcp.errors import BadRequest, PromptNotFound, ResourceNotFound, SMCPError
from a2c_smcp.mcp_host.failures import RESOURCE_NOT_FOUND
from a2c_smcp.registry.calls.caller import CannotAsk
from a2c_smcp.registry.calls.progress import OnProgress
from a2c_smcp.registry.readable_registry import ReadableRegistry
from a2c_smcp.registry.remote.announcing import Announcer, Request, is_modern
from a2c_smcp.registry.remote.rounds import STATE_TTL, Rounds, missing_capability
from a2c_smcp.registry.results import mcp_result

__all__ = ["HTTPOptions", "RegistryServer", "ServerIdentity"]

logger = logging.getLogger(__name__)

PAGE_SIZE = 1000
"""Items of a list in one answer. Many clients ask for the first page only."""

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Model = TypeVar("Model", bound=BaseModel)

_ENDS_WITHIN = 3  # seconds: streams of notices end only with the server
_ALL_CHANGE = NotificationOptions(tools_changed=True, resources_changed=True, prompts_changed=True)


class ServerIdentity(TypedDict, total=False):
    """What clients are told of a server, as MCP names it."""

    version: str
    title: str | None
    description: str | None
    instructions: str | None
    website_url: str | None
    icons: Sequence[dict[str, Any]] | None


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
        """Raises `ValueError` for a page that has room for nothing."""
        if page_size < 1:
            raise ValueError("a page of a list needs room for one item at least")
        self._registry = registry
        self._name, self._identity, self._page_size = name, identity, page_size

    def run_stdio(self) -> None:
        """Serves one client on standard input and output until it disconnects. Tools print to standard error."""
        asyncio.run(self.serve_stdio())

    async def serve_stdio(self) -> None:
        """As `run_stdio`, in the running event loop."""
        server = self._served()
        async with stdio_server() as (read, write):
            try:
                await server.run(read, write, server.create_initialization_options())
            finally:
                sys.stdout.flush()  # to standard error, as long as the SDK has its place

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
        app.add_middleware(_TrimmedHeaders)
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


class _ServedRegistry(Server[None]):
    """One run of the server."""

    def __init__(self, registry: ReadableRegistry, name: str, page_size: int = PAGE_SIZE, **identity: Any) -> None:
        self._registry = registry
        self._page_size = page_size
        self.announcer = Announcer(registry)
        self.rounds = Rounds(self.announcer)
        who = {**identity, "icons": [types.Icon.model_validate(icon) for icon in identity.get("icons") or ()] or None}
        super().__init__(
            name,
            **who,
            lifespan=_lifespan,
            cache_hints={"resources/read": CacheHint()},
            get_tool_input_schema=self._input_schema,
        )
        self._add_handlers()
        sealing = RequestStateSecurity.ephemeral(ttl=STATE_TTL)
        self.middleware.append(RequestStateBoundary(sealing, default_audience=name))

    def _add_handlers(self) -> None:
        add, tells = self.add_request_handler, self.announcer
        add("tools/list", types.PaginatedRequestParams, self._list_tools)
        add("tools/call", types.CallToolRequestParams, self._call_tool)
        add("resources/list", types.PaginatedRequestParams, self._list_resources)
        add("resources/templates/list", types.PaginatedRequestParams, self._list_templates)
        add("resources/read", types.ReadResourceRequestParams, self._read_resource)
        add("resources/subscribe", types.SubscribeRequestParams, tells.subscribe)
        add("resources/unsubscribe", types.UnsubscribeRequestParams, tells.unsubscribe)
        add("subscriptions/listen", types.SubscriptionsListenRequestParams, tells.listen)
        add("prompts/list", types.PaginatedRequestParams, self._list_prompts)
        add("prompts/get", types.GetPromptRequestParams, self._get_prompt)
        add("completion/complete", types.CompleteRequestParams, self._complete)
        add("logging/setLevel", types.SetLevelRequestParams, tells.set_level)
        self.add_notification_handler("notifications/initialized", types.NotificationParams, tells.on_initialized)

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *rest: Any, **more: Any
    ) -> InitializationOptions:
        """The SDK calls this for HTTP, and would announce that nothing ever changes."""
        return super().create_initialization_options(notification_options or _ALL_CHANGE, *rest, **more)

    # Lists

    async def _list_tools(self, context: Request, params: types.PaginatedRequestParams) -> types.ListToolsResult:
        page, cursor = self._page(self._registry.describe("mcp"), "name", params)
        return types.ListToolsResult(tools=_valid(types.Tool, page), next_cursor=cursor)

    async def _list_resources(
        self, context: Request, params: types.PaginatedRequestParams
    ) -> types.ListResourcesResult:
        page, cursor = self._page(self._registry.resources(), "uri", params)
        return types.ListResourcesResult(resources=_valid(types.Resource, page), next_cursor=cursor)

    async def _list_templates(
        self, context: Request, params: types.PaginatedRequestParams
    ) -> types.ListResourceTemplatesResult:
        page, cursor = self._page(self._registry.resource_templates(), "uriTemplate", params)
        templates = _valid(types.ResourceTemplate, page)
        return types.ListResourceTemplatesResult(resource_templates=templates, next_cursor=cursor)

    async def _list_prompts(self, context: Request, params: types.PaginatedRequestParams) -> types.ListPromptsResult:
        page, cursor = self._page(self._registry.prompts(), "name", params)
        return types.ListPromptsResult(prompts=_valid(types.Prompt, page), next_cursor=cursor)

    def _page(
        self, listed: list[dict[str, Any]], key: str, params: types.PaginatedRequestParams
    ) -> tuple[list[dict[str, Any]], str | None]:
        """One page, and the cursor of the next one. A cursor names the last item before the page."""
        begin, cursor = 0, params.cursor
        if cursor is not None:
            names = [each[key] for each in listed]
            try:
                begin = names.index(urlsafe_b64decode(cursor).decode()) + 1
            except ValueError:  # also for bad base64 and bad UTF-8
                raise MCPError(types.INVALID_PARAMS, "Invalid cursor: list again from the beginning") from None
        page = listed[begin : begin + self._page_size]
        is_last = begin + self._page_size >= len(listed)
        return page, None if is_last else urlsafe_b64encode(page[-1][key].encode()).decode()

    # Requests

    async def _call_tool(self, context: Request, params: types.CallToolRequestParams) -> dict[str, Any]:
        """What a tool raises becomes an error result. A tool that does not exist is an error of the request."""
        name, arguments = params.name, params.arguments or {}
        tool = self._tool(name)
        if tool is None:
            try:
                await self._registry.acall(name, arguments)  # hooks are told of it
            except SMCPError as error:
                raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {error.about}") from None

        async def call(on_progress: OnProgress | None) -> dict[str, Any]:
            calling = self._registry.acall(name, arguments, on_progress=on_progress)
            return await mcp_result(name, calling, tool, passing=(CannotAsk,) if is_modern(context) else ())

        return await self._answer(context, call)

    async def _read_resource(self, context: Request, params: types.ReadResourceRequestParams) -> dict[str, Any]:
        return await self._answer(context, lambda _: self._registry.aread_resource(params.uri))

    async def _get_prompt(self, context: Request, params: types.GetPromptRequestParams) -> dict[str, Any]:
        return await self._answer(context, lambda _: self._registry.aget_prompt(params.name, params.arguments))

    async def _complete(self, context: Request, params: types.CompleteRequestParams) -> dict[str, Any]:
        reference = params.ref.model_dump(by_alias=True, mode="json")
        given = params.context.arguments if params.context else None
        argument = params.argument
        return await self._answer(
            context, lambda _: self._registry.acomplete(reference, argument.name, argument.value, given)
        )

    async def _answer(
        self, context: Request, work: Callable[[OnProgress | None], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        """The result of the work. This is where errors become those of MCP."""
        try:
            return _own(await self.rounds.answer(context, work))
        except MCPError:
            raise
        except CannotAsk as error:
            raise missing_capability(error) if is_modern(context) else _failed(error) from None
        except ResourceNotFound as error:
            code = types.INVALID_PARAMS if is_modern(context) else RESOURCE_NOT_FOUND
            raise MCPError(code, "Resource not found", {"uri": (context.params or {}).get("uri")}) from error
        except (PromptNotFound, BadRequest) as error:
            raise MCPError(types.INVALID_PARAMS, error.message) from None
        except SMCPError as error:
            raise _failed(error) from None
        except Exception as error:
            logger.warning("%s failed", context.method, exc_info=True)
            raise MCPError(types.INTERNAL_ERROR, str(error) or type(error).__name__) from None

    def _tool(self, name: str) -> Any:
        try:
            return self._registry[name]
        except SMCPError:
            return None

    def _input_schema(self, name: str) -> dict[str, Any] | None:
        described = self._registry.describe().get(name)
        return described["input_schema"] if described else None


class _TrimmedHeaders:
    """Removes blanks around the values of headers (RFC 9110 §5.5): some web servers leave them, and MCP compares."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}
        await self._app(scope, receive, send)


@asynccontextmanager
async def _lifespan(server: Server[None]) -> AsyncGenerator[None, None]:
    assert isinstance(server, _ServedRegistry)
    async with server.announcer.running():
        try:
            yield
        finally:
            await server.rounds.close()


def _own(result: dict[str, Any]) -> dict[str, Any]:
    """A result as this server sends it: complete by default, and without the signature of another server."""
    meta = result.get("_meta")
    if isinstance(meta, dict) and types.SERVER_INFO_META_KEY in meta:
        rest = {key: value for key, value in meta.items() if key != types.SERVER_INFO_META_KEY}
        result = {**result, "_meta": rest or None}
    return {"resultType": "complete", **{key: value for key, value in result.items() if value is not None}}


def _failed(error: SMCPError) -> MCPError:
    return MCPError(types.INTERNAL_ERROR, error.message)


def _valid(model: type[Model], listed: list[dict[str, Any]]) -> list[Model]:
    """The items without those that the SDK refuses: one must not hide the others."""
    found = []
    for each in listed:
        try:
            found.append(model.model_validate(each))
        except ValidationError as error:
            name = each.get("name") or each.get("uri")
            logger.warning("%s %r is not listed: %s", model.__name__, name, error.errors()[0]["msg"])
    return found
