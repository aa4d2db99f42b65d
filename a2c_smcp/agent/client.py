"""The agent's two clients: the same flows, waited for by `await` or by blocking."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self, TypeVar

from a2c_smcp.agent.auth import AgentAuthProvider, ApiKeyAuth
from a2c_smcp.agent.connection import not_connected
from a2c_smcp.agent.flows import Flows
from a2c_smcp.agent.requests import DEFAULT_TIMEOUT
from a2c_smcp.agent.types import AgentEvents
from a2c_smcp.connection import Reconnect
from a2c_smcp.endpoint import Endpoint
from a2c_smcp.errors import Unavailable
from a2c_smcp.protocol.results import CallToolResult
from a2c_smcp.registry import MCPRegistry
from a2c_smcp.registry.background import Background
from a2c_smcp.registry.threads import in_thread
from a2c_smcp.smcp import GetComputerConfigRet, SessionInfo, SMCPTool
from a2c_smcp.types import Desktop

__all__ = ["AsyncSMCPAgentClient", "SMCPAgentClient"]

Result = TypeVar("Result")

_FAREWELL = 10.0


class _Agent(AgentEvents):
    """What both clients are made of, and what needs no waiting."""

    def __init__(
        self,
        name: str,
        *,
        url: str = "http://127.0.0.1:7000",
        office: str | Iterable[str] | None = None,
        api_key: str | None = None,
        auth: AgentAuthProvider | None = None,
        event_handler: object | None = None,
        registry: MCPRegistry | None = None,
        ssl: SSLContext | None = None,
        proxy: str | None = None,
        reconnect: Reconnect | None = None,
        trusted_computers: Iterable[str] = (),
    ) -> None:
        """Without an office it takes the one of its own name (003); `office=[]` is none for now.

        `auth` is for those to whom an `api_key` is not enough. `event_handler` is any object with some of the methods
        of `AgentEvents`. Tools appear in `registry`, beside those that are there already. Of `trusted_computers` the
        tags and hints of tools count for the registry's policy and retries; of all others they are only shown.
        """
        self.name = name
        self.registry = MCPRegistry() if registry is None else registry
        self._offices = [name if office is None else office] if office is None or isinstance(office, str) else [*office]
        endpoint = Endpoint(url=url, credentials=(auth or ApiKeyAuth(api_key)).credentials, ssl=ssl, proxy=proxy)
        listeners = [self] if event_handler is None else [self, event_handler]
        trusted = frozenset(trusted_computers)
        self._flows = Flows(name, endpoint, self.registry, listeners, reconnect or Reconnect(), trusted)

    @property
    def offices(self) -> list[str]:
        """The offices in which it sits, or to which it returns as soon as it can."""
        return list(self._flows.connection.seats)

    @property
    def computers(self) -> list[str]:
        """The computers that are there, as `office/computer`."""
        return [str(seat) for seat in self._flows.toolbox.seats()]

    @property
    def is_connected(self) -> bool:
        return self._flows.connection.current is not None

    def desktop(self, computer: str, *, office: str | None = None) -> list[Desktop] | None:
        """The desktop as it was seen last, kept current once somebody has asked for it; `None` before."""
        return self._flows.latest_desktop(computer, office)


class AsyncSMCPAgentClient(_Agent):
    """An agent: calls tools on the computers of its offices, and knows them all as one registry.

    It comes back by itself when the connection is lost, and calls in flight survive that.
    """

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.disconnect()

    async def connect(self) -> None:
        """Dials and joins. Raises what it is refused with, `Unavailable` if nobody is there."""
        await self._flows.connect(_invoke, self._offices)

    async def disconnect(self) -> None:
        """Leaves. Calls that have not ended fail."""
        await self._flows.disconnect()

    async def join_office(self, office: str) -> None:
        """Takes a seat, and learns who is there. Raises `OfficeHasAgent` and other refusals."""
        await self._flows.join_office(office)

    async def leave_office(self, office: str) -> None:
        """Gives up a seat."""
        await self._flows.leave_office(office)

    async def emit_tool_call(
        self,
        computer: str,
        tool_name: str,
        params: dict[str, Any] | None = None,
        timeout: float | None = None,
        *,
        expires: float | None = None,
        office: str | None = None,
        req_id: str | None = None,
    ) -> CallToolResult:
        """The tool's result; one that failed has `is_error`. Raises for everything else that goes wrong.

        The `timeout` is in seconds; `expires` is its older name (003). Who stops waiting cancels the call there.
        """
        limit = _limit(timeout, expires)
        return await self._flows.ask.call_tool(computer, tool_name, params or {}, limit, office, req_id)

    async def cancel(self, req_id: str) -> None:
        """Ends a call: it raises `CallCancelled` where it is waited for."""
        await self._flows.ask.cancel(req_id)

    async def get_tools(self, computer: str, *, office: str | None = None) -> list[SMCPTool]:
        """The tools of a computer, asked for anew."""
        return await self._flows.ask.tools(computer, office)

    async def get_config(self, computer: str, *, office: str | None = None) -> GetComputerConfigRet:
        """The MCP servers of a computer, without their secrets."""
        return await self._flows.ask.config(computer, office)

    async def get_desktop(
        self, computer: str, size: int | None = None, window: str | None = None, *, office: str | None = None
    ) -> list[Desktop]:
        """The windows of a computer, the most important ones first: at most `size`, or the `window` of this URI."""
        return await self._flows.get_desktop(computer, size, window, office)

    def watch_desktop(
        self, computer: str, size: int | None = None, window: str | None = None, *, office: str | None = None
    ) -> AsyncGenerator[list[Desktop], None]:
        """The desktop now, and again whenever it has changed."""
        return self._flows.watch_desktop(computer, size, window, office)

    async def list_room(self, office: str | None = None) -> list[SessionInfo]:
        """Everybody in an office of this agent."""
        return await self._flows.ask.members(office)

    async def request(
        self,
        event: str,
        computer: str,
        data: dict[str, Any] | None = None,
        *,
        timeout: float = 30,
        office: str | None = None,
    ) -> Any:
        """Any `client:*` event, also one newer than this client. The answer, as it came."""
        return await self._flows.ask.anything(event, computer, data or {}, timeout, office)


class SMCPAgentClient(_Agent):
    """`AsyncSMCPAgentClient` for code that blocks, from any thread: each method means what it means there.

    Handlers are called in threads, one at a time, and may use the client.
    """

    _background: Background | None = None
    _process = 0

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.disconnect()

    def connect(self) -> None:
        if self._background is None:
            self._background, self._process = Background(f"agent-{self.name}"), os.getpid()
        try:
            self._wait(self._flows.connect(_invoke_in_thread, self._offices))
        except BaseException:
            self.disconnect()
            raise

    def disconnect(self) -> None:
        background, self._background = self._background, None
        if background and self._process == os.getpid():
            background.close(self._flows.disconnect(), _FAREWELL)

    def join_office(self, office: str) -> None:
        self._wait(self._flows.join_office(office))

    def leave_office(self, office: str) -> None:
        self._wait(self._flows.leave_office(office))

    def emit_tool_call(
        self,
        computer: str,
        tool_name: str,
        params: dict[str, Any] | None = None,
        timeout: float | None = None,
        *,
        expires: float | None = None,
        office: str | None = None,
        req_id: str | None = None,
    ) -> CallToolResult:
        limit = _limit(timeout, expires)
        return self._wait(self._flows.ask.call_tool(computer, tool_name, params or {}, limit, office, req_id))

    def cancel(self, req_id: str) -> None:
        self._wait(self._flows.ask.cancel(req_id))

    def get_tools(self, computer: str, *, office: str | None = None) -> list[SMCPTool]:
        return self._wait(self._flows.ask.tools(computer, office))

    def get_config(self, computer: str, *, office: str | None = None) -> GetComputerConfigRet:
        return self._wait(self._flows.ask.config(computer, office))

    def get_desktop(
        self, computer: str, size: int | None = None, window: str | None = None, *, office: str | None = None
    ) -> list[Desktop]:
        return self._wait(self._flows.get_desktop(computer, size, window, office))

    def watch_desktop(
        self, computer: str, size: int | None = None, window: str | None = None, *, office: str | None = None
    ) -> Iterator[list[Desktop]]:
        frames = self._flows.watch_desktop(computer, size, window, office)
        try:
            while (frame := self._wait(_next(frames))) is not None:
                yield frame
        finally:
            if self._background:
                self._background.submit(frames.aclose())

    def list_room(self, office: str | None = None) -> list[SessionInfo]:
        return self._wait(self._flows.ask.members(office))

    def request(
        self,
        event: str,
        computer: str,
        data: dict[str, Any] | None = None,
        *,
        timeout: float = 30,
        office: str | None = None,
    ) -> Any:
        return self._wait(self._flows.ask.anything(event, computer, data or {}, timeout, office))

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._background is None:
            work.close()
            raise not_connected()
        try:
            self._require_own_process()
        except Unavailable:
            work.close()
            raise
        return self._background.wait(work, "use AsyncSMCPAgentClient here")

    def _require_own_process(self) -> None:
        if self._process != os.getpid():
            raise Unavailable("a fork takes no connection along: make another client here, and connect() it")


def _limit(timeout: float | None, expires: float | None) -> float:
    given = expires if timeout is None else timeout
    return DEFAULT_TIMEOUT if given is None else given


async def _next(frames: AsyncIterator[list[Desktop]]) -> list[Desktop] | None:
    return await anext(frames, None)


async def _invoke(handler: Callable[..., Any], *arguments: Any) -> None:
    result = handler(*arguments)
    if inspect.isawaitable(result):
        await result


async def _invoke_in_thread(handler: Callable[..., Any], *arguments: Any) -> None:
    result = await in_thread(lambda _: handler(*arguments), None)
    if inspect.isawaitable(result):
        await result
