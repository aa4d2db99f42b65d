"""The client session of the MCP SDK: negotiates the protocol revision, sends raw requests, translates exceptions.

Only here does the client side use inner modules of the SDK (`mcp.shared`), which may change with any minor version.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from functools import cached_property
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc
import mcp_types as types
from mcp import MCPError
from mcp.client import ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.dispatcher import (
    CallOptions,
    DispatchContext,
    OnNotify,
    OnNotifyIntercept,
    OnRequest,
    coerce_request_id,
)
from mcp.shared.inbound import encode_header_value, find_invalid_x_mcp_header, mcp_param_headers, x_mcp_header_map
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher, cancelled_request_id_from_params
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse, RequestId
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, TypeAdapter, ValidationError

from a2c_smcp import __version__
from a2c_smcp.errors import ConfigError
from a2c_smcp.mcp_host.failures import OversizedAnswer, RequestRefused, ServerFailure, ServerGone, StartFailed, if_short
from a2c_smcp.mcp_host.limits import refused
from a2c_smcp.mcp_host.sessions.server_info import AboutServer, LogLevel, about_server
from a2c_smcp.mcp_host.sign_in.flow import token_refused
from a2c_smcp.mcp_host.transports.direct_requests import DirectSender, MCPRequest, as_json
from a2c_smcp.mcp_host.transports.messages import SessionMessage

KNOWN_SDK = "mcp>=2.3,<2.4"


def require_known_sdk() -> None:
    """Raise `ConfigError` unless the inner modules of the installed SDK are those that this package is written for."""
    if (installed := version("mcp")).split(".")[:2] != ["2", "3"]:
        raise ConfigError(f"mcp {installed} cannot be used: install a version that this program knows, {KNOWN_SDK}")


# The streams of a connection, with a limit on the requests of the server that are not answered yet.
#
# The SDK starts a task for each request that a server sends to us. A server that sends requests and never reads the
# answers would fill the memory with tasks that wait for its pipe. So a server has at most `MOST_UNANSWERED` requests
# that wait for an answer; those beyond are ignored, and so is one under the id of another that waits. A request ends
# with its answer, or when the server cancels it: then it gets none.

MOST_UNANSWERED = 64
_CANCELLED = "notifications/cancelled"


def with_limited_requests(read: Any, write: Any) -> tuple[Any, Any]:
    """Return both streams of a connection, with the limit on unanswered requests."""
    unanswered: set[RequestId] = set()
    return _IncomingMessages(read, unanswered), _OutgoingMessages(write, unanswered)


class _WatchedStream:
    def __init__(self, stream: Any, unanswered: set[RequestId]) -> None:
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


class _IncomingMessages(_WatchedStream):
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while True:
            item: SessionMessage | Exception = await self._stream.__anext__()
            if not isinstance(item, SessionMessage) or self._admits(item.message):
                return item

    def _admits(self, message: object) -> bool:
        if isinstance(message, JSONRPCNotification) and message.method == _CANCELLED:
            cancelled = cancelled_request_id_from_params(message.params)
            self._unanswered.discard(-1 if cancelled is None else coerce_request_id(cancelled))
        if not isinstance(message, JSONRPCRequest):
            return True
        number = coerce_request_id(message.id)
        if number in self._unanswered or len(self._unanswered) >= MOST_UNANSWERED:
            return False
        self._unanswered.add(number)
        return True


class _OutgoingMessages(_WatchedStream):
    async def send(self, item: SessionMessage) -> None:
        await self._stream.send(item)
        if isinstance(item.message, JSONRPCResponse | JSONRPCError) and item.message.id is not None:
            self._unanswered.discard(coerce_request_id(item.message.id))


# The dispatcher under the SDK's client session: parameters, results and requests of the server stay as they are.
#
# The session of the SDK negotiates, and stamps requests with headers and `_meta`. It would also rewrite parameters
# (dropping nulls), validate results and strip what it does not know, and do the same to requests of the server. So the
# parameters of a raw request pass the session in a context variable and replace those that it made; a raw result passes
# it as an exception; and requests of the server that `OnRequest` knows are answered before the session sees them.

OnNotification = Callable[[str, Mapping[str, Any]], None]
AnswerRequest = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]] | None]
"""Answers a request of the server, by method and parameters; `None` leaves it to the SDK."""

TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
APPS: Mapping[str, Any] = {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}}
"""The extension by which servers show apps. A list of tools is for all agents, and some have clients that show apps."""
CAPABILITIES: Mapping[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {},
    "roots": {},
    "extensions": APPS,
}
"""The capabilities declared at `initialize`, to servers of older revisions."""
raw_params: ContextVar[dict[str, Any] | None] = ContextVar("raw_params", default=None)
"""The parameters of the request that this task sends next."""


class RawAnswer(Exception):
    """Carries a result past the SDK, which would validate and strip it."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw


class RawDispatcher(JSONRPCDispatcher):
    """`on_notification` gets notifications at once and in order."""

    def __init__(
        self,
        read: Any,
        write: Any,
        on_notification: OnNotification,
        answer_request: AnswerRequest,
        direct: DirectSender | None,
    ) -> None:
        super().__init__(*with_limited_requests(read, write), on_stream_exception=_ignore)
        self.direct = direct
        if direct is not None:
            direct.on_notification, direct.headers_of_call = on_notification, self._headers_of_call
        self.ended = anyio.Event()
        self._header_arguments: Mapping[str, Mapping[tuple[str, ...], str]] = {}
        self._log_level: dict[str, LogLevel] = {}
        self._meta: Mapping[str, Any] = {}
        self._on_notification = on_notification
        self._answer_request = answer_request

    def set_header_arguments(self, arguments: Mapping[str, Mapping[tuple[str, ...], str]]) -> None:
        """Set, for each tool, the arguments that are sent as HTTP headers too."""
        self._header_arguments = arguments

    def request_logs(self, level: LogLevel | None) -> None:
        """Set the level that every raw request asks for (2026-07-28)."""
        self._log_level = {types.LOG_LEVEL_META_KEY: level} if level else {}
        self._set_common_meta()

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None, **private: Any
    ) -> dict[str, Any]:
        raw = raw_params.get()
        raw_params.set(None)  # tasks that the SDK starts from here inherit the context
        params = params or {}
        if method == "tools/list":  # what the SDK stamps on it, it stamps on all requests
            self._meta = params.get("_meta") or {}
            self._set_common_meta()
        if raw is not None:
            params = {**raw, "_meta": {**(params.get("_meta") or {}), **self._log_level, **raw.get("_meta", {})}}
        elif method == "initialize":
            params = {**params, "capabilities": CAPABILITIES}
        if opts is not None and method == "tools/call":
            opts.setdefault("headers", {}).update(self._headers_of_arguments(params["name"], params.get("arguments")))
        if self.direct is not None:
            opts = {"request_id": next(self.direct.ids), **(opts or {})}
        answer = await super().send_raw_request(method, params, opts, **private)
        if raw is not None:
            raise RawAnswer(answer)
        return answer

    def _headers_of_call(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        return {"Mcp-Name": encode_header_value(tool), **self._headers_of_arguments(tool, arguments)}

    def _headers_of_arguments(self, tool: str, arguments: Mapping[str, Any] | None) -> dict[str, str]:
        return mcp_param_headers(self._header_arguments.get(tool, {}), arguments or {})

    def _set_common_meta(self) -> None:
        if self.direct is not None:
            self.direct.common_meta = {**self._meta, **self._log_level}

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

        async def answer(
            context: DispatchContext[Any], method: str, params: Mapping[str, Any] | None
        ) -> dict[str, Any]:
            answering = self._answer_request(method, dict(params or {}))
            return await (on_request(context, method, params) if answering is None else answering)

        try:
            await super().run(answer, on_notify, intercept, task_status=task_status)
        finally:
            self.ended.set()


async def _ignore(_: Exception) -> None:
    """Ignore a fault in one message; the request it may have answered has its own deadline."""


_NEVER_USED: TypeAdapter[BaseModel] = TypeAdapter(BaseModel)
"""The model of results that leave the SDK unread."""
_CONNECTION_CLOSED = ("Connection closed", "SSE stream")


class _RawRequest(types.Request[dict[str, str], str]):
    """The method of a raw request, and the parameter that the SDK sends as a header too."""


class _RawTaskRequest(_RawRequest):
    name_param = "taskId"


class SDKClient:
    """An async context manager, to be used by one task. It raises nothing but `ServerFailure`.

    `limit` is the most seconds that the server may take to answer `initialize`.
    """

    def __init__(
        self,
        read: Any,
        write: Any,
        on_notification: OnNotification,
        answer_request: AnswerRequest,
        direct: DirectSender | None = None,
        *,
        limit: float,
    ) -> None:
        def answer_older(method: str, params: dict[str, Any]) -> Awaitable[dict[str, Any]] | None:
            return None if self.is_modern else answer_request(method, params)  # newer servers send no requests

        self._dispatcher = RawDispatcher(read, write, on_notification, answer_older, direct)
        self._session = ClientSession(
            dispatcher=self._dispatcher,
            client_info=types.Implementation(name="a2c-smcp", version=__version__),
            extensions={TASKS_EXTENSION: {}, **APPS},
        )
        self._limit = limit
        self._stack = AsyncExitStack()
        self.task_tools: frozenset[str] = frozenset()
        """The tools that have to be called with a task (2025-11-25)."""

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
        """True if the revision is 2026-07-28 or later: no sessions, no ping, one stream for all subscriptions."""
        return self._session.protocol_version in MODERN_PROTOCOL_VERSIONS

    @cached_property
    def about(self) -> AboutServer:
        """The server's description of itself. Usable after the handshake."""
        capabilities, info = (
            {} if model is None else model.model_dump(by_alias=True, mode="json", exclude_none=True)
            for model in (self._session.server_capabilities, self._session.server_info)
        )
        return about_server(capabilities, info, self._session.instructions)

    @property
    def can_subscribe(self) -> bool:
        return self.about.declares("resources.subscribe")

    async def negotiate(self, *, probe_limit: float) -> bool:
        """Try the newer protocol with a probe, then the older one. Return False if the probe was not answered."""
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
            with anyio.fail_after(self._limit):
                await self._session.initialize()
        except TimeoutError:
            raise StartFailed(f"it did not answer initialize within {self._limit:g} s") from None
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

    async def page(self, kind: str, cursor: str | None) -> dict[str, Any]:
        """Return a page of the list of `tools` or `resources`."""
        return await self.request(MCPRequest(f"{kind}/list", {} if cursor is None else {"cursor": cursor}))

    async def request(self, request: MCPRequest) -> dict[str, Any]:
        """Send the parameters as they are and return the result as it came. Raises `BadRequest` for other values."""
        params = as_json(request.params)
        named: dict[str, str] = {key: params[key] for key in ("name", "uri", "taskId") if key in params}
        kind = _RawTaskRequest if request.method.startswith("tasks/") else _RawRequest
        before = raw_params.set(params)
        try:
            await self._session.send_request(kind(method=request.method, params=named), _NEVER_USED)
        except RawAnswer as answer:
            return answer.raw
        except MCPError as error:
            raise _translated(error) from error
        finally:
            raw_params.reset(before)
        raise AssertionError("unreachable: a raw answer is raised")

    async def subscribe(self, uri: str) -> None:
        await self.request(MCPRequest("resources/subscribe", {"uri": uri}))

    async def unsubscribe(self, uri: str) -> None:
        await self.request(MCPRequest("resources/unsubscribe", {"uri": uri}))

    async def request_logs(self, level: LogLevel | None) -> None:
        """Ask for messages of this level and above: with every request on 2026-07-28, once on older revisions."""
        capabilities = self._session.server_capabilities
        if self.is_modern:
            self._dispatcher.request_logs(level)
        elif capabilities is not None and capabilities.logging is not None:
            await self.request(MCPRequest("logging/setLevel", {"level": level or "emergency"}))

    async def check(self) -> None:
        """Return when the server answers; an error is an answer."""
        try:
            await (self.page("tools", None) if self.is_modern else self.request(MCPRequest("ping", {})))
        except (RequestRefused, OversizedAnswer):
            return

    def usable_tools(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the tools without those that ask for arguments as HTTP headers (2026-07-28) in a wrong way.

        Calls of the others send the headers that they ask for, or begin a task (2025-11-25).
        """
        if not self.is_modern:
            if self._runs_tasks():
                required = (tool for tool in tools if (tool.get("execution") or {}).get("taskSupport") == "required")
                self.task_tools = frozenset(tool["name"] for tool in required)
            return tools
        kept = [tool for tool in tools if find_invalid_x_mcp_header(tool["inputSchema"]) is None]
        self._dispatcher.set_header_arguments({tool["name"]: x_mcp_header_map(tool["inputSchema"]) for tool in kept})
        return kept

    def _runs_tasks(self) -> bool:
        """True if a server of 2025-11-25 can run calls of tools as tasks."""
        capabilities = self._session.server_capabilities
        requests = capabilities.tasks.requests if capabilities and capabilities.tasks else None
        return bool(requests and requests.tools and requests.tools.call is not None)

    @asynccontextmanager
    async def subscription(self, uris: Sequence[str]) -> AsyncGenerator[tuple[frozenset[str], Callable[[], Any]], None]:
        """Subscribe with the newer protocol. Yield the URIs that are honoured, and a wait for the end."""
        try:
            async with listen(
                self._session,
                tools_list_changed=True,
                prompts_list_changed=True,
                resources_list_changed=True,
                resource_subscriptions=uris,
            ) as stream:

                async def ended() -> None:
                    try:
                        async for _ in stream:
                            pass
                    except SubscriptionLost:
                        return

                yield frozenset(stream.honored.resource_subscriptions or ()), ended
        except MCPError as error:
            raise _translated(error) from error
        except SubscriptionLost as error:
            raise RequestRefused("it does not keep a subscription") from error


def _translated(error: MCPError) -> ServerFailure:
    if _is_gone(error):
        return ServerGone()
    return token_refused(error.message) or refused(error.code, error.message, error.data)


def _is_gone(error: MCPError) -> bool:
    """The error code is not enough: servers also use it for their own errors."""
    return error.code == types.CONNECTION_CLOSED and error.message.startswith(_CONNECTION_CLOSED)


def _brief(error: Exception) -> str:
    return if_short(str(error).partition("\n")[0])
