"""The client session of the MCP SDK: negotiates the protocol revision, sends raw requests, translates exceptions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.abc
import mcp_types as types
from mcp import MCPError
from mcp.client import ClientSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, TypeAdapter, ValidationError

from a2c_smcp.mcp_host.failures import (
    OversizedAnswer,
    RequestRefused,
    ServerFailure,
    ServerGone,
    StartFailed,
    in_brief,
)
from a2c_smcp.mcp_host.message_limits import refused
from a2c_smcp.mcp_host.sessions.logs import LogLevel
from a2c_smcp.mcp_host.sessions.raw_dispatcher import (
    TASKS_EXTENSION,
    AnswerRequest,
    OnNotification,
    RawAnswer,
    RawDispatcher,
    raw_params,
)
from a2c_smcp.mcp_host.sessions.server_info import AboutServer, about_server
from a2c_smcp.mcp_host.sign_in.refused_request import token_refused
from a2c_smcp.mcp_host.transports.direct_requests import DirectRequests, DirectSender, MCPRequest, Otherwise, as_json
from a2c_smcp.mcp_host.transports.in_flight_request import InFlightRequest

__all__ = ["SDKClient"]

_NEVER_USED: TypeAdapter[BaseModel] = TypeAdapter(BaseModel)
"""The model of results that leave the SDK unread."""
_CONNECTION_CLOSED = ("Connection closed", "SSE stream")


class _RawRequest(types.Request[dict[str, str], str]):
    """What the SDK needs to know of a raw request: the method, and the parameter that it sends as a header too."""


class _RawTaskRequest(_RawRequest):
    name_param = "taskId"


class SDKClient:
    """An async context manager, to be used by one task. Everything that it raises is a `ServerFailure`."""

    def __init__(
        self,
        read: Any,
        write: Any,
        on_notification: OnNotification,
        answer_request: AnswerRequest,
        direct: DirectSender | None = None,
    ) -> None:
        def answer_older(method: str, params: dict[str, Any]) -> Awaitable[dict[str, Any]] | None:
            return None if self.is_modern else answer_request(method, params)  # newer servers send no requests

        self._dispatcher = RawDispatcher(read, write, on_notification, answer_older, direct)
        self._session = ClientSession(
            dispatcher=self._dispatcher,
            client_info=types.Implementation(name="a2c-smcp", version=_own_version()),
            extensions={TASKS_EXTENSION: {}},
        )
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
        """Whether the revision is 2026-07-28 or later: no sessions, no ping, one stream for all subscriptions."""
        return self.revision in MODERN_PROTOCOL_VERSIONS

    @property
    def _runs_tasks(self) -> bool:
        """Whether a call of a tool may ask for a task (2025-11-25)."""
        capabilities = self._session.server_capabilities
        tasks = capabilities.tasks if capabilities else None
        return bool(tasks and tasks.requests and tasks.requests.tools and tasks.requests.tools.call is not None)

    @cached_property
    def about(self) -> AboutServer:
        """What the server says about itself. Usable after the handshake."""
        capabilities, info = (
            {} if said is None else said.model_dump(by_alias=True, mode="json", exclude_none=True)
            for said in (self._session.server_capabilities, self._session.server_info)
        )
        return about_server(capabilities, info, self._session.instructions)

    @property
    def can_subscribe(self) -> bool:
        return self.about.declares("resources.subscribe")

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
        """Send the parameters as they are and return the result as it came. Raises `BadRequest` for other values."""
        params = as_json(request.params)
        named: dict[str, str] = {key: params[key] for key in ("name", "uri", "taskId") if key in params}
        kind = _RawTaskRequest if request.method.startswith("tasks/") else _RawRequest
        before = raw_params.set(params)
        try:
            return await self._request(kind(method=request.method, params=named))
        finally:
            raw_params.reset(before)

    @property
    def is_piped(self) -> bool:
        """Whether requests are written into a pipe without the SDK, and so can be traced without it."""
        return isinstance(self._dispatcher.direct, DirectRequests)

    def request_directly(self, request: MCPRequest, pending: InFlightRequest, otherwise: Otherwise) -> bool:
        """Send the request without the SDK, if the transport can.

        Return whether it was sent, or will be by `otherwise`. Raises `BadRequest`.
        """
        direct = self._dispatcher.direct
        return direct is not None and direct.send(request, pending, otherwise) is not None

    def send_directly(self, request: MCPRequest, pending: InFlightRequest) -> int:
        """Write the request into the pipe. Return its id. Raises `BadRequest`."""
        assert isinstance(self._dispatcher.direct, DirectRequests)
        return self._dispatcher.direct.send(request, pending)

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

    def usable_tools(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the tools without those that ask for arguments as HTTP headers (2026-07-28) in a wrong way.

        Calls of the others send the headers that they ask for, or begin a task (2025-11-25).
        """
        if not self.is_modern:
            self.task_tools = frozenset(tool["name"] for tool in tools if self._runs_tasks and _needs_task(tool))
            return tools
        kept = [tool for tool in tools if find_invalid_x_mcp_header(tool["inputSchema"]) is None]
        self._dispatcher.set_header_arguments({tool["name"]: x_mcp_header_map(tool["inputSchema"]) for tool in kept})
        return kept

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

    async def _request(self, request: types.Request[Any, Any]) -> dict[str, Any]:
        try:
            await self._session.send_request(request, _NEVER_USED)
        except RawAnswer as answer:
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


def _needs_task(tool: dict[str, Any]) -> bool:
    execution = tool.get("execution")
    return isinstance(execution, dict) and execution.get("taskSupport") == "required"


def _translated(error: MCPError) -> ServerFailure:
    if _is_gone(error):
        return ServerGone()
    return token_refused(error.message) or refused(error.code, error.message, error.data)


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
