"""One MCP connection, opened, used and closed by one task. Everybody else asks it and awaits what comes back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, Protocol

import anyio
import anyio.abc

from a2c_smcp.errors import SMCPError
from a2c_smcp.mcp_host.failures import RequestRefused, ServerFailure, ServerGone, StartFailed
from a2c_smcp.mcp_host.message_limits import check_result
from a2c_smcp.mcp_host.policy import HostPolicy
from a2c_smcp.mcp_host.sessions.offers import Offers
from a2c_smcp.mcp_host.sessions.sdk_client import SDKClient
from a2c_smcp.mcp_host.sessions.subscriptions import Announcements
from a2c_smcp.mcp_host.transports.direct_requests import MCPRequest
from a2c_smcp.mcp_host.transports.pending_request import OnProgress, PendingRequest
from a2c_smcp.mcp_host.transports.transport import MCPTransport

__all__ = [
    "EventKind",
    "MCPSession",
    "OnEvent",
    "ToolRequest",
    "error_result",
    "finished",
    "tool_result",
    "wants_input",
]

logger = logging.getLogger(__name__)

EventKind = Literal["tools_changed", "windows_changed", "window_updated", "lost"]


class OnEvent(Protocol):
    """Called in the event loop; it must return at once. `about` is a window's URI, or the failure."""

    def __call__(self, kind: EventKind, about: str | ServerFailure | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A tool of an MCP server to be called, under the name that the server gives it.

    `timeout` counts from the last progress, `cap` from the beginning; without a `cap` the policy has one. `begin` is
    called directly before the request is written; if it raises, nothing is written.
    """

    tool: str
    arguments: Mapping[str, Any]
    timeout: float
    cap: float | None = None
    on_progress: OnProgress | None = None
    begin: Callable[[], None] = lambda: None


class MCPSession:
    """`start()` once, `stop()` always. `tools` and `windows` are as the server lists them, kept up to date."""

    def __init__(
        self,
        name: str,
        open_transport: Callable[[], MCPTransport],
        *,
        on_event: OnEvent,
        policy: HostPolicy,
        all_windows: bool = False,
        legacy: bool = False,
    ) -> None:
        self.name = name
        self.legacy = legacy
        self.revision = ""
        self._open_transport = open_transport
        self._on_event = on_event
        self._policy = policy
        self._transport: MCPTransport | None = None
        self._client: SDKClient | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._scope = anyio.CancelScope()
        self._announcements = Announcements()
        self._offers = Offers(name, policy, self._emit, self._announcements, all_windows=all_windows)
        self._pending: set[PendingRequest] = set()
        self._progress: dict[str, PendingRequest] = {}
        self._tokens = count(1)
        self._failure: ServerFailure | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def tools(self) -> list[dict[str, Any]]:
        return self._offers.tools

    @property
    def warnings(self) -> list[str]:
        return self._offers.warnings

    @property
    def windows(self) -> list[dict[str, Any]]:
        return self._offers.windows

    @property
    def diagnostics(self) -> dict[str, object]:
        return self._transport.diagnostics if self._transport else {}

    async def start(self, timeout: float) -> None:
        """Returns when the server can be used. Raises a `ServerFailure` otherwise."""
        self._owner = asyncio.get_running_loop().create_task(self._own(), name=f"mcp:{self.name}")
        done, _ = await asyncio.wait([self._ready], timeout=timeout)
        if not done:
            self._fail(StartFailed(f"it was not ready within {timeout:g} s"))
        await self._ready

    async def stop(self) -> None:
        """Ends the connection and, where it is our child, the server. Calls in flight fail."""
        self._stopping = True
        self._fail(ServerGone("it was stopped"))
        if self._owner is not None:
            await asyncio.wait([self._owner], timeout=self._policy.stop_limit)

    async def call_tool(self, request: ToolRequest) -> dict[str, Any]:
        """The result as the server sent it."""
        cap = request.cap or self._policy.call_cap
        job = PendingRequest(f"tool {request.tool!r}", request.timeout, cap, request.on_progress)
        token = f"a2c-{next(self._tokens)}"
        params = {"name": request.tool, "arguments": dict(request.arguments), "_meta": {"progressToken": token}}
        self._progress[token] = job
        try:
            return tool_result(await self._ask(job, MCPRequest("tools/call", params)))
        except RequestRefused as refusal:
            return error_result(str(refusal.details["mcp_message"]))
        finally:
            del self._progress[token]

    async def read_resource(self, uri: str, timeout: float | None = None) -> dict[str, Any]:
        limit = timeout or self._policy.read_limit
        raw = await self._ask(
            PendingRequest(f"reading {uri}", limit, limit), MCPRequest("resources/read", {"uri": uri})
        )
        if wants_input(raw):
            raise RequestRefused(f"reading {uri} wants interactive input")
        return finished(raw)

    async def check(self, timeout: float) -> None:
        """Raises if the server gives no sign of life in time."""
        await self._do(PendingRequest("a health check", timeout, timeout), _check)

    async def _ask(self, job: PendingRequest, request: MCPRequest) -> dict[str, Any]:
        result = await self._do(job, lambda client: client.request(request), request)
        check_result(result)
        return result

    async def _do(
        self,
        job: PendingRequest,
        work: Callable[[SDKClient], Awaitable[dict[str, Any]]],
        direct: MCPRequest | None = None,
    ) -> dict[str, Any]:
        """By a task of the connection, unless it can go direct to the server."""
        if self._tasks is None or self._client is None or self._failure is not None:
            job.close()
            raise self._failure or ServerGone("it has not been started")
        self._pending.add(job)
        try:
            if direct is None or not self._client.request_directly(direct, job):
                self._tasks.start_soon(self._work, job, work)
            return await job.outcome
        finally:
            job.close()
            self._pending.discard(job)

    async def _work(self, job: PendingRequest, work: Callable[[SDKClient], Awaitable[dict[str, Any]]]) -> None:
        assert self._client is not None
        if job.is_closed:
            return
        with anyio.CancelScope() as scope:
            job.on_close(scope.cancel)
            try:
                job.finish(await work(self._client))
            except ServerGone:
                job.fail(self._why_gone())
            except ServerFailure as failure:
                job.fail(failure)
            except Exception:
                logger.exception("%s: a request failed", self.name)
                job.fail(ServerFailure())
            finally:
                job.on_close(None)

    async def _own(self) -> None:
        try:
            with self._scope:
                if await self._converse():
                    logger.info("%s: ended at the probe of the newer protocol, starting it the older way", self.name)
                    self.legacy = True
                    await self._converse()
        except Exception as error:  # the tasks of a transport failed
            logger.debug("%s: its transport failed", self.name, exc_info=True)
            self._fail(ServerGone(_innermost(error)))
        finally:
            self._fail(ServerGone("it was stopped"))

    async def _converse(self) -> bool:
        """One connection from its opening to its end. Whether it should be tried again in legacy mode."""
        transport = self._transport = self._open_transport()
        probing = not self.legacy
        try:
            async with (
                transport.connect(self._fail) as (read, write),
                SDKClient(read, write, self._heard, transport.direct) as client,
            ):
                try:
                    if self.legacy:
                        await client.initialize()
                    else:
                        self.legacy = not await client.negotiate(probe_limit=self._policy.probe_limit)
                    probing = False
                    self.revision = client.revision
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
        """Silence is no proof of death: the server is asked first."""
        while transport.quiet_limit is not None:
            await anyio.sleep(max(transport.quiet_limit - transport.silence(), 0.05))
            if transport.silence() < transport.quiet_limit:
                continue
            try:
                await self.check(self._policy.health_limit)
            except SMCPError:
                self._fail(ServerGone(f"nothing was heard of it for {transport.silence():.0f} s"))

    def _heard(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "notifications/progress":
            token = params.get("progressToken")
            if isinstance(token, str) and (job := self._progress.get(token)):
                job.progressed(params.get("progress"), params.get("total"), params.get("message"))
        else:
            self._announcements.add(method, params)

    def _fail(self, failure: ServerFailure) -> None:
        """The end, for the first reason given: all who wait are told before anything is cleaned up."""
        if self._failure is not None:
            return
        self._failure = failure
        for job in self._pending:
            job.fail(failure)
        self._let_go()
        if not self._ready.done():
            self._ready.set_exception(failure)
            self._ready.exception()
        elif not self._stopping:
            self._emit("lost", failure)

    def _let_go(self) -> None:
        """A connection in use is left in an orderly way and has a little time for it."""
        if self._tasks is None:
            self._scope.cancel()
            return
        self._tasks.cancel_scope.cancel()
        self._scope.deadline = anyio.current_time() + self._policy.farewell_limit

    def _why_gone(self) -> ServerFailure:
        return self._failure or (self._transport.failure() if self._transport else ServerGone())

    def _emit(self, kind: EventKind, about: str | ServerFailure | None = None) -> None:
        try:
            self._on_event(kind, about)
        except Exception:
            logger.exception("a callback for %s of %s failed", kind, self.name)


async def _check(client: SDKClient) -> dict[str, Any]:
    await client.check()
    return {}


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def tool_result(raw: dict[str, Any]) -> dict[str, Any]:
    if wants_input(raw):
        return error_result("This tool wants interactive input, which cannot be given here.")
    return finished(raw)


def finished(raw: dict[str, Any]) -> dict[str, Any]:
    """Without the mark of the newer protocol that tells finished results from unfinished ones."""
    return {key: value for key, value in raw.items() if key != "resultType"}


def wants_input(raw: dict[str, Any]) -> bool:
    return raw.get("resultType") == "input_required"


def error_result(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": True}
