"""An MCP server of both eras over whatever lists tools, resources and prompts: handlers, pages, errors, announcements.

`_ServedRegistry` serves a registry by it, the bridge an office. Items that the SDK refuses are left out of a list one
by one, and this is the only place where errors become those of MCP.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypedDict, TypeVar

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp_types.methods import serialize_server_result
from pydantic import BaseModel, ValidationError

from a2c_smcp.errors import BadRequest, PromptNotFound, ResourceNotFound, SMCPError
from a2c_smcp.http.asgi import ASGIApp, Receive, Scope, Send
from a2c_smcp.mcp_host.failures import RESOURCE_NOT_FOUND
from a2c_smcp.registry.calls.caller import CannotAsk
from a2c_smcp.registry.remote.announcing import Announcer, Request, is_modern
from a2c_smcp.registry.remote.rounds import STATE_TTL, missing_capability

__all__ = ["PAGE_SIZE", "MCPServer", "ServerIdentity", "TrimmedHeaders"]

logger = logging.getLogger(__name__)

PAGE_SIZE = 1000
"""Items of a list in one answer. Many clients ask for the first page only."""

Model = TypeVar("Model", bound=BaseModel)

_OF_RESULT = frozenset({"resultType", "content", "structuredContent", "isError", "_meta"})
_OF_TEXT = frozenset({"type", "text"})
_ALL_CHANGE = NotificationOptions(tools_changed=True, resources_changed=True, prompts_changed=True)


class ServerIdentity(TypedDict, total=False):
    """What clients are told of a server, as MCP names it."""

    version: str
    title: str | None
    description: str | None
    instructions: str | None
    website_url: str | None
    icons: Sequence[dict[str, Any]] | None


class MCPServer(Server[None], ABC):
    """One run of a server. Subclasses say what is listed, and answer the requests."""

    def __init__(self, name: str, announcer: Announcer, page_size: int = PAGE_SIZE, **identity: Any) -> None:
        self.announcer = announcer
        self._page_size = page_size
        who = {**identity, "icons": [types.Icon.model_validate(icon) for icon in identity.get("icons") or ()] or None}
        super().__init__(
            name,
            **who,
            lifespan=_lifespan,
            cache_hints={"resources/read": CacheHint()},
            get_tool_input_schema=self.input_schema,
        )
        self._stamp = self.server_info_stamp
        self._add_handlers()
        sealing = RequestStateSecurity.ephemeral(ttl=STATE_TTL)
        self.state_boundary = RequestStateBoundary(sealing, default_audience=name)
        self.middleware.append(self.state_boundary)

    # What a subclass provides

    @abstractmethod
    async def tools(self) -> list[dict[str, Any]]: ...

    @abstractmethod
    async def resources(self) -> list[dict[str, Any]]: ...

    @abstractmethod
    async def templates(self) -> list[dict[str, Any]]: ...

    @abstractmethod
    async def prompts(self) -> list[dict[str, Any]]: ...

    @abstractmethod
    async def call_tool(self, context: Request, params: types.CallToolRequestParams) -> dict[str, Any]: ...

    @abstractmethod
    async def read_resource(self, context: Request, params: types.ReadResourceRequestParams) -> dict[str, Any]: ...

    @abstractmethod
    async def get_prompt(self, context: Request, params: types.GetPromptRequestParams) -> dict[str, Any]: ...

    @abstractmethod
    async def complete(self, context: Request, params: types.CompleteRequestParams) -> dict[str, Any]: ...

    @abstractmethod
    def input_schema(self, name: str) -> dict[str, Any] | None:
        """The schema of a tool's arguments, by which the SDK checks HTTP headers."""

    async def close(self) -> None:
        """Called at the end of the run."""

    # Handlers

    def _add_handlers(self) -> None:
        add, tells = self.add_request_handler, self.announcer
        add("tools/list", types.PaginatedRequestParams, self._list_tools)
        self.translated_call = self._translated(self.call_tool)
        add("tools/call", types.CallToolRequestParams, self.translated_call)
        add("resources/list", types.PaginatedRequestParams, self._list_resources)
        add("resources/templates/list", types.PaginatedRequestParams, self._list_templates)
        add("resources/read", types.ReadResourceRequestParams, self._translated(self.read_resource))
        add("resources/subscribe", types.SubscribeRequestParams, tells.subscribe)
        add("resources/unsubscribe", types.UnsubscribeRequestParams, tells.unsubscribe)
        add("subscriptions/listen", types.SubscriptionsListenRequestParams, tells.listen)
        add("prompts/list", types.PaginatedRequestParams, self._list_prompts)
        add("prompts/get", types.GetPromptRequestParams, self._translated(self.get_prompt))
        add("completion/complete", types.CompleteRequestParams, self._translated(self.complete))
        add("logging/setLevel", types.SetLevelRequestParams, tells.set_level)
        self.add_notification_handler("notifications/initialized", types.NotificationParams, tells.on_initialized)

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *rest: Any, **more: Any
    ) -> InitializationOptions:
        """The SDK calls this for HTTP, and would announce that nothing ever changes."""
        return super().create_initialization_options(notification_options or _ALL_CHANGE, *rest, **more)

    # Lists

    async def _list_tools(self, context: Request, params: types.PaginatedRequestParams) -> types.ListToolsResult:
        page, cursor = self._page(await self.tools(), "name", params)
        return types.ListToolsResult(tools=_valid(types.Tool, page), next_cursor=cursor)

    async def _list_resources(
        self, context: Request, params: types.PaginatedRequestParams
    ) -> types.ListResourcesResult:
        page, cursor = self._page(await self.resources(), "uri", params)
        return types.ListResourcesResult(resources=_valid(types.Resource, page), next_cursor=cursor)

    async def _list_templates(
        self, context: Request, params: types.PaginatedRequestParams
    ) -> types.ListResourceTemplatesResult:
        page, cursor = self._page(await self.templates(), "uriTemplate", params)
        templates = _valid(types.ResourceTemplate, page)
        return types.ListResourceTemplatesResult(resource_templates=templates, next_cursor=cursor)

    async def _list_prompts(self, context: Request, params: types.PaginatedRequestParams) -> types.ListPromptsResult:
        page, cursor = self._page(await self.prompts(), "name", params)
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

    # Results and errors

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
        """The same handler, whose errors are those of MCP."""

        async def handle(context: Request, params: Any) -> dict[str, Any]:
            try:
                return _own(await answer(context, params))
            except MCPError:
                raise
            except CannotAsk as error:
                raise missing_capability(error) if is_modern(context) else _failed(error) from None
            except ResourceNotFound as error:
                code = types.INVALID_PARAMS if is_modern(context) else RESOURCE_NOT_FOUND
                raise MCPError(code, "Resource not found", {"uri": (context.params or {}).get("uri")}) from error
            except (PromptNotFound, BadRequest) as error:
                raise _failed(error, types.INVALID_PARAMS) from None
            except SMCPError as error:
                raise _failed(error) from None
            except Exception as error:
                logger.warning("%s failed", context.method, exc_info=True)
                raise MCPError(types.INTERNAL_ERROR, str(error) or type(error).__name__) from None

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
    """Whether it has the usual fields, and contents that are nothing but texts."""
    content, meta = result.get("content"), result.get("_meta", {})
    return (
        result.keys() <= _OF_RESULT
        and type(result.get("isError", False)) is bool
        and isinstance(meta, dict)
        and isinstance(content, list)
        and all(
            isinstance(each, dict) and each.keys() == _OF_TEXT and each["type"] == "text" and type(each["text"]) is str
            for each in content
        )
    )


def _failed(error: SMCPError, code: int = types.INTERNAL_ERROR) -> MCPError:
    """An error of an MCP server that was asked stays as it was."""
    own, said = error.details.get("mcp_code"), error.details.get("mcp_message")
    if type(own) is int and isinstance(said, str):
        return MCPError(own, said, error.details.get("mcp_data"))
    return MCPError(code, error.message)


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
