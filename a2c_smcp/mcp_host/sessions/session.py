"""One session with one MCP server.

**Owner.** One task (`_run`) opens the transport and the SDK's client, uses them and closes them. No other may: their
cancel scopes have to be left by the task that entered them. A caller makes a `PendingRequest` and awaits its outcome;
the request itself is sent directly by the transport, or by a task in the owner's task group.

**States.** new, starting (`_run` is running), ready (`_ready` is set, `_tasks` is there), failed (`_failure` is set).
Only `_fail` leads to the last one, from any other; the first reason counts, later ones are ignored. It fails the
pending requests first and only then cancels the owner, so that callers do not wait for the cleanup, which may take
`farewell_limit` seconds.

**Races.** `_send` checks `_failure` and adds to `_pending` without an await in between. So a request is either refused,
or `_fail` finds it. A request whose caller is gone before its task starts is closed, and the task does nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, Protocol

import anyio
import anyio.abc

from a2c_smcp.errors import CallTimeout, CapabilityNotSupported, SMCPError, kind_of
from a2c_smcp.mcp_host.failures import OversizedAnswer, RequestRefused, ServerFailure, ServerGone, StartFailed
from a2c_smcp.mcp_host.limits import HostLimits
from a2c_smcp.mcp_host.sessions.requests import SessionRequests, Work
from a2c_smcp.mcp_host.sessions.sdk_client import SDKClient
from a2c_smcp.mcp_host.sessions.server_info import AboutServer, LogLevel, OnLog, ServerLog
from a2c_smcp.mcp_host.sessions.subscriptions import OfferChange, ServerListings
from a2c_smcp.mcp_host.sessions.tool_request import READ_METHODS, UNDECLARED, ReadRequest, ToolRequest
from a2c_smcp.mcp_host.sessions.turns import CallTurns
from a2c_smcp.mcp_host.transports.direct_requests import DirectSender, MCPRequest, Otherwise, PendingRequest
from a2c_smcp.mcp_host.transports.transport import MCPTransport
from a2c_smcp.telemetry import conventions, tracing

logger = logging.getLogger(__name__)

EventKind = OfferChange | Literal["lost"]


class OnEvent(Protocol):
    """Called in the event loop; it must return at once. `about` is the URI of a resource, or the failure."""

    def __call__(self, kind: EventKind, about: str | ServerFailure | None = None) -> None: ...


def require_capability(name: str, about: AboutServer, revision: str, method: str) -> None:
    """Raise `CapabilityNotSupported` if the server does not declare what this request needs."""
    capability = READ_METHODS[method]
    if not about.declares(capability) and (method, revision) not in UNDECLARED:
        raise CapabilityNotSupported(repr(name), mcp_server=name, capability=capability)


class MCPSession:
    """Call `start` once and `stop` always. `tools` and `windows` are the server's lists, kept up to date."""

    def __init__(
        self,
        name: str,
        open_transport: Callable[[], MCPTransport],
        *,
        on_event: OnEvent,
        policy: HostLimits,
        on_log: OnLog = lambda message: None,
        all_windows: bool = False,
        subscribed: Collection[str] = (),
        legacy: bool = False,
        turns: CallTurns | None = None,
    ) -> None:
        self.name = name
        self.legacy = legacy
        self.revision = ""
        self.about = AboutServer()
        self._open_transport = open_transport
        self._on_event = on_event
        self._policy = policy
        self._transport: MCPTransport | None = None
        self._client: SDKClient | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._scope = anyio.CancelScope()
        self._offers = ServerListings(name, policy, self._emit, all_windows=all_windows, subscribed=subscribed)
        self._log = ServerLog(on_log)
        self._pending: set[PendingRequest] = set()
        self._requests = SessionRequests(self._send, policy, turns or CallTurns())
        self._failure: ServerFailure | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def tools(self) -> list[dict[str, Any]]:
        return self._offers.tools

    @property
    def warnings(self) -> list[str]:
        return [*self._offers.warnings, *(self._transport.warnings if self._transport else ())]

    @property
    def windows(self) -> list[dict[str, Any]]:
        return self._offers.windows

    @property
    def is_modern(self) -> bool:
        """True for a revision that says which call a question belongs to."""
        return self._client is not None and self._client.is_modern

    @property
    def diagnostics(self) -> dict[str, object]:
        return self._transport.diagnostics if self._transport else {}

    async def start(self, timeout: float) -> None:
        """Return when the server can be used. Raises a `ServerFailure` otherwise."""
        self._owner = asyncio.get_running_loop().create_task(self._run(), name=f"mcp:{self.name}")
        done, _ = await asyncio.wait([self._ready], timeout=timeout)
        if not done:
            self._fail(StartFailed(f"it was not ready within {timeout:g} s"))
        await self._ready

    async def stop(self) -> None:
        """End the connection and, if it is a child process, the server. Pending requests fail."""
        self._stopping = True
        self._fail(ServerGone("it was stopped"))
        if self._owner is not None:
            await asyncio.wait([self._owner], timeout=self._policy.stop_limit)

    def call_tool(self, request: ToolRequest) -> Awaitable[dict[str, Any]]:
        """Return the result as the server sent it, or an error result. Raises a `ServerFailure` or `CallTimeout`."""
        return self._requests.call_tool(request)

    async def read(self, request: ReadRequest) -> dict[str, Any]:
        """Return the result as the server sent it.

        Raises a `ServerFailure`, `CallTimeout`, or `CapabilityNotSupported` if the server does not declare it.
        """
        require_capability(self.name, self.about, self.revision, request.method)
        return await self._requests.read(request)

    async def subscribe(self, uri: str, timeout: float) -> None:
        """Have changes of a resource announced. Raises as `read` does."""
        if not self.about.declares("resources"):
            raise CapabilityNotSupported(repr(self.name), mcp_server=self.name, capability="resources")
        await self._do("subscribing", timeout, lambda _: self._offers.subscribe(uri))

    async def unsubscribe(self, uri: str) -> None:
        with suppress(RequestRefused, OversizedAnswer, CallTimeout):
            await self._do("unsubscribing", self._policy.read_limit, lambda _: self._offers.unsubscribe(uri))

    async def request_logs(self, level: LogLevel | None) -> None:
        """Ask the server for messages of this level and above; `None` for as few as possible."""
        with suppress(RequestRefused, OversizedAnswer, CallTimeout):
            await self._do("setting the log level", self._policy.read_limit, lambda client: client.request_logs(level))

    async def check(self, timeout: float) -> None:
        """Return when the server answers a health check. Raises if it does not in time."""
        await self._do("a health check", timeout, lambda client: client.check())

    async def _do(self, what: str, timeout: float, act: Callable[[SDKClient], Awaitable[None]]) -> None:
        """Do something without a result in a task of the owner."""

        async def work(client: SDKClient) -> dict[str, Any]:
            await act(client)
            return {}

        timeout = min(timeout, self._policy.request_limit)
        await self._send(PendingRequest(what, timeout, timeout), work)

    async def _send(self, pending: PendingRequest, work: Work, request: MCPRequest | None = None) -> dict[str, Any]:
        """Do the work in a task of the owner, unless the request can be sent directly. Return the outcome."""
        if self._tasks is None or self._client is None or self._failure is not None:
            pending.close()
            raise self._failure or ServerGone("it has not been started")
        start = partial(self._tasks.start_soon, self._work, pending, work, self._client)
        direct = self._transport.direct if request and self._transport else None
        self._pending.add(pending)
        try:
            if request is None or direct is None or ((is_traced := tracing.is_on()) and not direct.is_traceable):
                start()
            elif is_traced:
                return await self._send_traced(pending, request, direct, start)
            elif direct.send(request, pending, start) is None:
                start()
            return await pending.outcome
        finally:
            pending.close()
            self._pending.discard(pending)

    async def _send_traced(
        self, pending: PendingRequest, request: MCPRequest, direct: DirectSender, otherwise: Otherwise
    ) -> dict[str, Any]:
        """Send a request directly, in a span of its own whose context the server gets. The SDK does the same."""
        method, params = request
        with tracing.span(conventions.mcp_request, None, method, params.get("name"), self.revision, "pipe") as span:
            params = params | {"_meta": span.inject(params.get("_meta"))}
            span.set(conventions.REQUEST_ID, str(direct.send(MCPRequest(method, params), pending, otherwise)))
            result = await pending.outcome
            if result.get("isError"):
                span.fail(conventions.TOOL_ERROR)
            return result

    async def _work(self, pending: PendingRequest, work: Work, client: SDKClient) -> None:
        if pending.is_closed:
            return
        with anyio.CancelScope() as scope:
            pending.on_close(scope.cancel)
            try:
                pending.finish(await work(client))
            except ServerGone:
                pending.fail(self._failure or (self._transport.failure() if self._transport else ServerGone()))
            except SMCPError as failure:
                pending.fail(failure)
            except Exception:
                logger.exception("%s: a request failed", self.name)
                pending.fail(ServerFailure())
            finally:
                pending.on_close(None)

    async def _run(self) -> None:
        try:
            with self._scope:
                if await self._connect():
                    logger.info("%s: ended at the probe of the newer protocol, starting it the older way", self.name)
                    self.legacy = True
                    await self._connect()
        except Exception as error:  # the tasks of a transport failed
            logger.debug("%s: its transport failed", self.name, exc_info=True)
            cause: BaseException = error
            while isinstance(cause, BaseExceptionGroup):
                cause = cause.exceptions[0]
            self._fail(ServerGone(f"{kind_of(type(cause))}: {cause}"))
        finally:
            self._fail(ServerGone("it was stopped"))

    async def _connect(self) -> bool:
        """Own one connection from its opening to its end. Return True to try again with the older protocol."""
        told = self._transport.warnings if self._transport else ()
        transport = self._transport = self._open_transport()
        transport.told = told
        probing, answer = not self.legacy, self._requests.server_requests.answer
        try:
            async with (
                transport.connect(self._fail) as (read, write),
                SDKClient(
                    read, write, self._on_notification, answer, transport.direct, limit=self._policy.request_limit
                ) as client,
            ):
                try:
                    if self.legacy:
                        await client.initialize()
                    else:
                        self.legacy = not await client.negotiate(probe_limit=self._policy.probe_limit)
                    probing = False
                    self.revision, self.about = client.revision, client.about
                    await self._serve(client, transport)
                except ServerGone:
                    if probing:
                        return True
                    self._fail(transport.failure())
                except ServerFailure as failure:
                    self._fail(failure)
        except ServerFailure as failure:
            self._fail(failure)
        return False

    async def _serve(self, client: SDKClient, transport: MCPTransport) -> None:
        async with anyio.create_task_group() as tasks:
            self._client, self._tasks = client, tasks
            self._requests.serve(client)
            try:
                await self._offers.list_all(client, tasks)
                tasks.start_soon(self._offers.keep_current)
                tasks.start_soon(self._watch_silence, transport)
                self._ready.set_result(None)
                await client.ended.wait()
                self._fail(transport.failure())
            except ServerFailure as failure:
                self._fail(transport.failure() if isinstance(failure, ServerGone) else failure)
            finally:
                self._tasks = None
                tasks.cancel_scope.cancel()

    async def _watch_silence(self, transport: MCPTransport) -> None:
        """Check the health of a server that has been silent for long."""
        while transport.quiet_limit is not None:
            await anyio.sleep(max(transport.quiet_limit - transport.silence(), 0.05))
            if transport.silence() < transport.quiet_limit:
                continue
            try:
                await self.check(self._policy.health_limit)
            except SMCPError:
                self._fail(ServerGone(f"nothing was heard of it for {transport.silence():.0f} s"))

    def _on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        if self._requests.notified(method, params):
            return
        if method == "notifications/message":
            self._log.add(params)
        else:
            self._offers.announcements.add(method, params)

    def _fail(self, failure: ServerFailure) -> None:
        """End the session. Only the first failure counts; callers learn of it before the cleanup begins."""
        if self._failure is not None:
            return
        self._failure = failure
        for pending in self._pending:
            pending.fail(failure)
        self._close()
        if not self._ready.done():
            self._ready.set_exception(failure)
            self._ready.exception()
        elif not self._stopping:
            self._emit("lost", failure)

    def _close(self) -> None:
        """Cancel the owner. A connection in use has `farewell_limit` seconds to end properly."""
        if self._tasks is None:
            self._scope.cancel()
            return
        self._tasks.cancel_scope.cancel()
        self._scope.deadline = anyio.current_time() + self._policy.farewell_limit

    def _emit(self, kind: EventKind, about: str | ServerFailure | None = None) -> None:
        try:
            self._on_event(kind, about)
        except Exception:
            logger.exception("a callback for %s of %s failed", kind, self.name)
