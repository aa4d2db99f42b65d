"""The client session of the MCP SDK: negotiates the protocol revision, sends raw requests, translates exceptions.

The SDK starts a task for each request that a server sends to us. A server that sends requests and never reads the
answers would fill the memory with tasks that wait for its pipe. So a server has at most `MOST_UNANSWERED` requests
that wait for an answer; those beyond are ignored.
"""

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
from mcp.shared.message import SessionMessage
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
from a2c_smcp.mcp_host.message_limits import too_large
from a2c_smcp.mcp_host.sessions.logs import LogLevel
from a2c_smcp.mcp_host.sign_in.refused_request import token_refused
from a2c_smcp.mcp_host.transports.direct_requests import DirectRequests, MCPRequest
from a2c_smcp.mcp_host.transports.in_flight_request import InFlightRequest

__all__ = ["OnNotification", "SDKClient"]

OnNotification = Callable[[str, Mapping[str, Any]], None]

MOST_UNANSWERED = 64

_NEVER_USED: TypeAdapter[BaseModel] = TypeAdapter(BaseModel)
"""The model of results that leave the SDK unread."""
_RAW = frozenset({"tools/list", "tools/call", "resources/list", "resources/read"})
_LOGGED = frozenset({"tools/call", "resources/read"})
_REQUESTS: dict[str, tuple[Any, type[BaseModel]]] = {
    "tools/call": (types.CallToolRequest, types.CallToolRequestParams),
    "resources/read": (types.ReadResourceRequest, types.ReadResourceRequestParams),
}
_CONNECTION_CLOSED = ("Connection closed", "SSE stream")


class _RawAnswer(Exception):
    """Carries a result past the SDK, which would validate and strip it."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw


class _RawDispatcher(JSONRPCDispatcher[TransportContext]):
    """Results of `_RAW` methods stay as they came; `on_notification` gets notifications at once and in order."""

    def __init__(self, read: Any, write: Any, on_notification: OnNotification, direct: DirectRequests | None) -> None:
        super().__init__(*_with_limited_requests(read, write), on_stream_exception=_ignore)
        self.direct = direct
        if direct is not None:
            direct.on_notification = on_notification
        self.ended = anyio.Event()
        self.header_arguments: dict[str, dict[tuple[str, ...], str]] = {}
        """For each tool, the arguments that are sent as HTTP headers too."""
        self._meta: Mapping[str, Any] = {}
        self.log_level: LogLevel | None = None
        """The level that requests ask for on 2026-07-28."""
        self._on_notification = on_notification

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None, **private: Any
    ) -> dict[str, Any]:
        if opts is not None and method == "tools/call" and params is not None:
            headers = mcp_param_headers(self.header_arguments.get(params["name"], {}), params.get("arguments") or {})
            opts.setdefault("headers", {}).update(headers)
        if self.log_level is not None and method in _LOGGED:
            params = {**(params or {}), "_meta": _with_level((params or {}).get("_meta"), self.log_level)}
        if self.direct is not None:
            opts = {"request_id": next(self.direct.ids), **(opts or {})}
            if method == "tools/list":  # its `_meta` holds only what all requests have
                self._meta = (params or {}).get("_meta") or {}
                self.direct.common_meta = _with_level(self._meta, self.log_level)
        raw = await super().send_raw_request(method, params, opts, **private)
        if method in _RAW:
            raise _RawAnswer(raw)
        return raw

    def set_log_level(self, level: LogLevel | None) -> None:
        self.log_level = level
        if self.direct is not None:
            self.direct.common_meta = _with_level(self._meta, level)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        def intercept(method: str, params: Mapping[str, Any] | None) -> bool:
            if on_notify_intercept is None or not on_notify_intercept(method, params):
                self._on_notification(method, params or {})
            return True

        try:
            await super().run(on_request, on_notify, intercept, task_status=task_status)
        finally:
            self.ended.set()


class SDKClient:
    """An async context manager, to be used by one task. Everything that it raises is a `ServerFailure`."""

    def __init__(
        self, read: Any, write: Any, on_notification: OnNotification, direct: DirectRequests | None = None
    ) -> None:
        self._dispatcher = _RawDispatcher(read, write, on_notification, direct)
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
        """Whether the revision is 2026-07-28 or later: no sessions, no ping, one stream for all subscriptions."""
        return self.revision in MODERN_PROTOCOL_VERSIONS

    @property
    def has_resources(self) -> bool:
        capabilities = self._session.server_capabilities
        return capabilities is not None and capabilities.resources is not None

    @property
    def can_subscribe(self) -> bool:
        capabilities = self._session.server_capabilities
        return bool(capabilities and capabilities.resources and capabilities.resources.subscribe)

    async def negotiate(self, *, probe_limit: float) -> bool:
        """Try the newer protocol with a probe, then the older one. Return whether the probe was answered at all."""
        answered = False
        with anyio.move_on_after(probe_limit):
            try:
                await self._session.discover()
            except MCPError as error:
                answered = error.code != types.REQUEST_TIMEOUT
                if _is_gone(error):
                    raise ServerGone from error
            except (RuntimeError, ValidationError):  # the answer names no newer revision
                answered = True
            else:
                return True
        await self.initialize()
        return answered

    async def initialize(self) -> None:
        """Do the `initialize` handshake of all revisions up to 2025-11-25."""
        try:
            await self._session.initialize()
        except MCPError as error:
            if error.code != types.UNSUPPORTED_PROTOCOL_VERSION:
                raise _translated(error) from error
            await self._discover()  # it started slowly, and has answered the probe meanwhile
        except (RuntimeError, ValidationError) as error:
            raise StartFailed(f"its answer to initialize cannot be used: {_brief(error)}") from error

    async def _discover(self) -> None:
        try:
            await self._session.discover()
        except MCPError as error:
            raise _translated(error) from error
        except (RuntimeError, ValidationError) as error:
            raise StartFailed(f"no common protocol revision: {_brief(error)}") from error

    async def list_tools(self, cursor: str | None) -> dict[str, Any]:
        return await self._request(types.ListToolsRequest(params=types.PaginatedRequestParams(cursor=cursor)))

    async def list_resources(self, cursor: str | None) -> dict[str, Any]:
        return await self._request(types.ListResourcesRequest(params=types.PaginatedRequestParams(cursor=cursor)))

    async def request(self, request: MCPRequest) -> dict[str, Any]:
        kind, params = _REQUESTS[request.method]
        return await self._request(kind(params=params.model_validate(request.params)))

    def request_directly(self, request: MCPRequest, pending: InFlightRequest) -> bool:
        """Send the request without the SDK, if the transport can and no tracing is on: the SDK does the tracing.

        Return whether it was sent. Raises `BadRequest`.
        """
        direct = self._dispatcher.direct
        if direct is None or _is_traced():
            return False
        direct.send(request, pending)
        return True

    async def subscribe(self, uri: str) -> None:
        await self._request_empty(types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri)))

    async def unsubscribe(self, uri: str) -> None:
        await self._request_empty(types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=uri)))

    async def set_log_level(self, level: LogLevel | None) -> None:
        """Ask for messages of this level and above: with every request on 2026-07-28, once on older revisions."""
        capabilities = self._session.server_capabilities
        if self.is_modern:
            self._dispatcher.set_log_level(level)
        elif capabilities is not None and capabilities.logging is not None:
            params = types.SetLevelRequestParams(level=level or "emergency")
            await self._request_empty(types.SetLevelRequest(params=params))

    async def check(self) -> None:
        """Return when the server answers, whatever it answers."""
        try:
            await (self.list_tools(None) if self.is_modern else self._request_empty(types.PingRequest()))
        except (RequestRefused, OversizedAnswer):
            return

    def with_valid_headers(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the tools without those that ask for arguments as HTTP headers (2026-07-28) in a wrong way.

        Calls of the others send the headers that they ask for.
        """
        if not self.is_modern:
            return tools
        kept = [tool for tool in tools if find_invalid_x_mcp_header(tool["inputSchema"]) is None]
        self._dispatcher.header_arguments = {tool["name"]: x_mcp_header_map(tool["inputSchema"]) for tool in kept}
        return kept

    @asynccontextmanager
    async def subscription(self, uris: Sequence[str]) -> AsyncGenerator[tuple[bool, Callable[[], Any]], None]:
        """Subscribe with the newer protocol. Yield whether resources are honoured, and a wait for the end."""
        try:
            async with listen(
                self._session, tools_list_changed=True, resources_list_changed=True, resource_subscriptions=uris
            ) as stream:

                async def ended() -> None:
                    try:
                        async for _ in stream:
                            pass
                    except SubscriptionLost:
                        return

                yield bool(stream.honored.resource_subscriptions), ended
        except MCPError as error:
            raise _translated(error) from error
        except SubscriptionLost as error:
            raise RequestRefused("it does not keep a subscription") from error

    async def _request(self, request: types.Request[Any, Any]) -> dict[str, Any]:
        try:
            await self._session.send_request(request, _NEVER_USED)
        except _RawAnswer as answer:
            return answer.raw
        except MCPError as error:
            raise _translated(error) from error
        raise AssertionError("unreachable: a raw answer is raised")

    async def _request_empty(self, request: types.Request[Any, Any]) -> None:
        try:
            await self._session.send_request(request, types.EmptyResult)
        except MCPError as error:
            raise _translated(error) from error
        except ValidationError:
            return  # an answer all the same


def _with_level(meta: Mapping[str, Any] | None, level: LogLevel | None) -> dict[str, Any]:
    return {**(meta or {}), **({types.LOG_LEVEL_META_KEY: level} if level else {})}


async def _ignore(_: Exception) -> None:
    """Ignore a fault in one message; the request it may have answered has its own deadline."""


def _translated(error: MCPError) -> ServerFailure:
    if _is_gone(error):
        return ServerGone()
    ours = too_large(error.message) or token_refused(error.message)
    return ours or RequestRefused(error.message, mcp_code=error.code, mcp_message=error.message)


def _is_traced() -> bool:
    return not isinstance(get_tracer_provider(), ProxyTracerProvider)


def _is_gone(error: MCPError) -> bool:
    """The error code is not enough: servers also use it for their own errors."""
    return error.code == types.CONNECTION_CLOSED and error.message.startswith(_CONNECTION_CLOSED)


def _brief(error: Exception) -> str:
    return in_brief(str(error).partition("\n")[0], 300)


def _own_version() -> str:
    try:
        return version("a2c-smcp")
    except PackageNotFoundError:
        return "0"


def _with_limited_requests(read: Any, write: Any) -> tuple[Any, Any]:
    """Return both streams of a connection, with the limit on unanswered requests."""
    unanswered = _Unanswered()
    return _IncomingMessages(read, unanswered), _OutgoingMessages(write, unanswered)


class _Unanswered:
    count = 0


class _CountingStream:
    def __init__(self, stream: Any, unanswered: _Unanswered) -> None:
        self._stream = stream
        self._unanswered = unanswered

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stream.__aexit__(kind, error, traceback)


class _IncomingMessages(_CountingStream):
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while True:
            item: SessionMessage | Exception = await self._stream.__anext__()
            if not (isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCRequest)):
                return item
            if self._unanswered.count < MOST_UNANSWERED:
                self._unanswered.count += 1
                return item


class _OutgoingMessages(_CountingStream):
    async def send(self, item: SessionMessage) -> None:
        await self._stream.send(item)
        if isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError):
            self._unanswered.count -= 1
