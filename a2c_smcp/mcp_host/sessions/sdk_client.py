"""One MCP connection as the SDK holds it: agreed on an era, asked in raw messages, its exceptions translated."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc
import mcp_types as types
from mcp import MCPError
from mcp.client import ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.inbound import find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider
from pydantic import BaseModel, TypeAdapter, ValidationError

from a2c_smcp.mcp_host.failures import (
    OversizedAnswer,
    RequestRefused,
    ServerFailure,
    ServerGone,
    StartFailed,
    in_brief,
)
from a2c_smcp.mcp_host.message_limits import limit_requests, too_large
from a2c_smcp.mcp_host.transports.direct_requests import DirectRequests, MCPRequest
from a2c_smcp.mcp_host.transports.pending_request import PendingRequest

__all__ = ["OnNotice", "SDKClient"]

OnNotice = Callable[[str, Mapping[str, Any]], None]

_UNSEEN: TypeAdapter[BaseModel] = TypeAdapter(BaseModel)
_RAW = frozenset({"tools/list", "tools/call", "resources/list", "resources/read"})
_REQUESTS: dict[str, tuple[Any, type[BaseModel]]] = {
    "tools/call": (types.CallToolRequest, types.CallToolRequestParams),
    "resources/read": (types.ReadResourceRequest, types.ReadResourceRequestParams),
}
_GONE_WORDS = ("Connection closed", "SSE stream")


class _Answer(Exception):
    """Carries a result past the SDK, which would validate and strip it."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw


class _RawDispatcher(JSONRPCDispatcher[TransportContext]):
    """Results of `_RAW` methods leave as they came; notifications are handed on in order, at once, without a task."""

    def __init__(self, read: Any, write: Any, on_notice: OnNotice, straight: DirectRequests | None) -> None:
        super().__init__(*limit_requests(read, write), on_stream_exception=_ignore)
        self.straight = straight
        if straight is not None:
            straight.on_progress = on_notice
        self.ended = anyio.Event()
        self.mirrored: dict[str, dict[tuple[str, ...], str]] = {}
        self._on_notice = on_notice

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None, **private: Any
    ) -> dict[str, Any]:
        if opts is not None and method == "tools/call" and params is not None:
            headers = mcp_param_headers(self.mirrored.get(params["name"], {}), params.get("arguments") or {})
            opts.setdefault("headers", {}).update(headers)
        if self.straight is not None:
            opts = {"request_id": next(self.straight.ids), **(opts or {})}
            if method == "tools/list":  # which has nothing in its `_meta` but what all requests have
                self.straight.stamp = (params or {}).get("_meta") or {}
        raw = await super().send_raw_request(method, params, opts, **private)
        if method in _RAW:
            raise _Answer(raw)
        return raw

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        def hand_on(method: str, params: Mapping[str, Any] | None) -> bool:
            if on_notify_intercept is None or not on_notify_intercept(method, params):
                self._on_notice(method, params or {})
            return True

        try:
            await super().run(on_request, on_notify, hand_on, task_status=task_status)
        finally:
            self.ended.set()


class SDKClient:
    """An async context manager, to be used by one task. Whatever goes wrong in it is a `ServerFailure`."""

    def __init__(self, read: Any, write: Any, on_notice: OnNotice, straight: DirectRequests | None = None) -> None:
        self._dispatcher = _RawDispatcher(read, write, on_notice, straight)
        self._session = ClientSession(
            dispatcher=self._dispatcher, client_info=types.Implementation(name="a2c-smcp", version=_own_version())
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._session)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, traceback)

    @property
    def ended(self) -> anyio.Event:
        return self._dispatcher.ended

    @property
    def revision(self) -> str:
        return self._session.protocol_version or ""

    @property
    def is_modern(self) -> bool:
        """Of 2026-07-28 or later: no sessions, no ping, one stream of all that is subscribed to."""
        return self.revision in MODERN_PROTOCOL_VERSIONS

    @property
    def has_resources(self) -> bool:
        capabilities = self._session.server_capabilities
        return capabilities is not None and capabilities.resources is not None

    @property
    def can_subscribe(self) -> bool:
        capabilities = self._session.server_capabilities
        return bool(capabilities and capabilities.resources and capabilities.resources.subscribe)

    async def agree(self, *, probe_limit: float) -> bool:
        """Finds the era with a probe that older servers do not know. Whether the probe was answered at all."""
        answered = False
        with anyio.move_on_after(probe_limit):
            try:
                await self._session.discover()
            except MCPError as error:
                answered = error.code != types.REQUEST_TIMEOUT
                if _is_gone(error):
                    raise ServerGone from error
            except (RuntimeError, ValidationError):  # answered, with nothing newer than `initialize`
                answered = True
            else:
                return True
        await self.agree_legacy()
        return answered

    async def agree_legacy(self) -> None:
        """The `initialize` handshake of all revisions up to 2025-11-25."""
        try:
            await self._session.initialize()
        except MCPError as error:
            if error.code != types.UNSUPPORTED_PROTOCOL_VERSION:
                raise _translated(error) from error
            await self._agree_modern()  # a slow start: it has meanwhile understood the probe
        except (RuntimeError, ValidationError) as error:
            raise StartFailed(f"its answer to initialize cannot be used: {_brief(error)}") from error

    async def _agree_modern(self) -> None:
        try:
            await self._session.discover()
        except MCPError as error:
            raise _translated(error) from error
        except (RuntimeError, ValidationError) as error:
            raise StartFailed(f"no common protocol revision: {_brief(error)}") from error

    async def list_tools(self, cursor: str | None) -> dict[str, Any]:
        return await self._ask(types.ListToolsRequest(params=types.PaginatedRequestParams(cursor=cursor)))

    async def list_resources(self, cursor: str | None) -> dict[str, Any]:
        return await self._ask(types.ListResourcesRequest(params=types.PaginatedRequestParams(cursor=cursor)))

    async def ask(self, request: MCPRequest) -> dict[str, Any]:
        kind, params = _REQUESTS[request.method]
        return await self._ask(kind(params=params.model_validate(request.params)))

    def ask_straight(self, request: MCPRequest, job: PendingRequest) -> bool:
        """Whether that could be done; the SDK's way is the one that is traced. Raises `BadRequest`."""
        straight = self._dispatcher.straight
        if straight is None or _is_traced():
            return False
        straight.ask(request, job)
        return True

    async def subscribe(self, uri: str) -> None:
        await self._tell(types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri)))

    async def unsubscribe(self, uri: str) -> None:
        await self._tell(types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri)))

    async def check(self) -> None:
        """Any answer is a sign of life."""
        try:
            await (self.list_tools(None) if self.is_modern else self._tell(types.PingRequest()))
        except (RequestRefused, OversizedAnswer):
            return

    def learn(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """2026-07-28 lets a tool ask for arguments as HTTP headers; the tools that ask for it properly are kept."""
        if not self.is_modern:
            return tools
        kept = [tool for tool in tools if find_invalid_x_mcp_header(tool["inputSchema"]) is None]
        self._dispatcher.mirrored = {tool["name"]: x_mcp_header_map(tool["inputSchema"]) for tool in kept}
        return kept

    @asynccontextmanager
    async def listening(self, uris: Sequence[str]) -> AsyncGenerator[tuple[bool, Callable[[], Any]], None]:
        """Subscribes the newer way: yields whether windows are honoured, and what to await for the stream's end."""
        try:
            async with listen(
                self._session, tools_list_changed=True, resources_list_changed=True, resource_subscriptions=uris
            ) as subscription:

                async def over() -> None:
                    try:
                        async for _ in subscription:
                            pass
                    except SubscriptionLost:
                        return

                yield bool(subscription.honored.resource_subscriptions), over
        except MCPError as error:
            raise _translated(error) from error
        except SubscriptionLost as error:
            raise RequestRefused("it does not keep a subscription") from error

    async def _ask(self, request: types.Request[Any, Any]) -> dict[str, Any]:
        try:
            await self._session.send_request(request, _UNSEEN)
        except _Answer as answer:
            return answer.raw
        except MCPError as error:
            raise _translated(error) from error
        raise AssertionError("unreachable: a raw answer is raised")

    async def _tell(self, request: types.Request[Any, Any]) -> None:
        try:
            await self._session.send_request(request, types.EmptyResult)
        except MCPError as error:
            raise _translated(error) from error
        except ValidationError:
            return  # answered all the same


async def _ignore(_: Exception) -> None:
    """A transport's complaint about one message; the request it may have answered has its own deadline."""


def _translated(error: MCPError) -> ServerFailure:
    if _is_gone(error):
        return ServerGone()
    return too_large(error.message) or RequestRefused(error.message, mcp_code=error.code, mcp_message=error.message)


def _is_traced() -> bool:
    return not isinstance(get_tracer_provider(), ProxyTracerProvider)


def _is_gone(error: MCPError) -> bool:
    """The code alone would not do: servers use it for errors of their own."""
    return error.code == types.CONNECTION_CLOSED and error.message.startswith(_GONE_WORDS)


def _brief(error: Exception) -> str:
    return in_brief(str(error).partition("\n")[0], 300)


def _own_version() -> str:
    try:
        return version("a2c-smcp")
    except PackageNotFoundError:
        return "0"
