"""The life of one MCP server: started, watched, started again, put to sleep when nobody needs it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from a2c_smcp.errors import CallTimeout, SMCPError
from a2c_smcp.mcp_host.config.servers import MCPServerConfig
from a2c_smcp.mcp_host.failures import ServerFailure, ServerGone, ServerNotReady, SessionLost
from a2c_smcp.mcp_host.policy import HostPolicy
from a2c_smcp.mcp_host.sessions.listings import uris_of
from a2c_smcp.mcp_host.sessions.offers import OfferChange
from a2c_smcp.mcp_host.sessions.session import EventKind, MCPSession, ToolRequest
from a2c_smcp.mcp_host.status import OnChange, OnServerEvent, Restarts, ServerStatus, State
from a2c_smcp.mcp_host.transports.transport import MCPTransport

__all__ = ["Supervisor"]

logger = logging.getLogger(__name__)


class Supervisor:
    """`state` is the one source of truth. `tools` and `windows` are what can be used now, or after waking.

    No tools in the state `ready` means that the server offers none: when it goes down, the state changes first.
    """

    def __init__(
        self,
        config: MCPServerConfig,
        open_transport: Callable[[], MCPTransport],
        *,
        policy: HostPolicy,
        gate: asyncio.Semaphore,
        on_change: OnChange,
        on_event: OnServerEvent,
    ) -> None:
        self.config = config
        self.name = config.name
        self.state: State = "disabled" if config.disabled else "stopped"
        self.reason = ""
        self.tools: list[dict[str, Any]] = []
        self.windows: list[dict[str, Any]] = []
        self._open_transport = open_transport
        self._policy = policy
        self._gate = gate
        self._on_change = on_change
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._session: MCPSession | None = None
        self._life: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._turns = asyncio.Lock()
        self._moved = asyncio.Event()
        self._needed = asyncio.Event()
        self._suspected = asyncio.Event()
        self._calls = asyncio.Semaphore(policy.calls_at_once)
        self._calling = 0
        self._last_used = self._ready_since = 0.0
        self._restarts = Restarts(policy)
        self._timeouts = 0
        self._asleep = False
        self._legacy = False
        self._starts = 0
        self._revision = ""
        self._diagnostics: Callable[[], dict[str, object]] = dict

    @property
    def status(self) -> ServerStatus:
        return ServerStatus(
            name=self.name,
            state=self.state,
            reason=self.reason,
            tools=len(self.tools),
            windows=len(self.windows),
            starts=self._starts,
            revision=self._revision,
            diagnostics=self._diagnostics(),
            warnings=tuple(self._session.warnings) if self._session else (),
        )

    @property
    def is_wanted(self) -> bool:
        return self._life is not None

    async def start(self) -> State:
        """Starts it unless it is disabled, without waiting out a pause. Returns when it is known how that went."""
        async with self._turns:
            if self.state == "disabled":
                return self.state
            await self._ended()
            if self._life is None or self._life.done():
                self._restarts = Restarts(self._policy)
                self._become("starting")
                self._life = self._loop.create_task(self._live(), name=f"supervisor:{self.name}")
            elif self.state not in ("starting", "ready"):
                self._restarts = Restarts(self._policy)
                moved = self._moved
                self._needed.set()
                await moved.wait()
        while self.state == "starting":
            await self._moved.wait()
        return self.state

    async def stop(self, reason: str = "") -> None:
        async with self._turns:
            if self._life is not None:
                self._life.cancel()
                self._ending, self._life = self._life, None
            await self._ended()
            if self.state not in ("disabled", "stopped") or self._asleep:
                self._asleep = False
                self._become("stopped", reason)
            self._offer([], [])

    async def _ended(self) -> None:
        """Waits for what was stopped, also if whoever stopped it has not."""
        if self._ending is not None:
            await asyncio.wait([self._ending])
            self._ending = None

    async def call_tool(self, request: ToolRequest) -> dict[str, Any]:
        """Wait for a server that is starting or asleep, and for its turn; the timeout covers all of it."""
        deadline = self._loop.time() + request.timeout
        session = await self._turn(request.timeout)
        try:
            left = max(deadline - self._loop.time(), 0.001)
            request.begin()
            result = await session.call_tool(replace(request, timeout=left))
        except CallTimeout:
            self._timed_out()
            raise
        finally:
            self._end_turn()
        self._timeouts = 0
        return result

    async def read_resource(self, uri: str, timeout: float) -> dict[str, Any]:
        deadline = self._loop.time() + timeout
        session = await self._turn(timeout)
        try:
            return await session.read_resource(uri, max(deadline - self._loop.time(), 0.001))
        finally:
            self._end_turn()

    async def _turn(self, timeout: float) -> MCPSession:
        """To be given back with `_end_turn`."""
        self._calling += 1
        try:
            if self.state == "ready" and not self._calls.locked():
                return await self._next_turn()
            return await self._turn_within(timeout)
        except BaseException:
            self._end_use()
            raise

    async def _turn_within(self, timeout: float) -> MCPSession:
        try:
            async with asyncio.timeout(timeout):
                return await self._next_turn()
        except TimeoutError:
            raise CallTimeout(f"{self.name!r} had no time for it within {timeout:g} s") from None

    async def _next_turn(self) -> MCPSession:
        session = await self._usable()
        await self._calls.acquire()
        return session

    def _end_turn(self) -> None:
        self._calls.release()
        self._end_use()

    def _end_use(self) -> None:
        self._calling -= 1
        self._last_used = self._loop.time()

    async def _usable(self) -> MCPSession:
        if self._asleep:
            self._needed.set()
        while self.state == "starting" or self._asleep:
            await self._moved.wait()
        if self._session is None or self.state != "ready":
            raise ServerNotReady(f"{self.name!r} is {self.state}" + (f" ({self.reason})" if self.reason else ""))
        return self._session

    def _timed_out(self) -> None:
        self._timeouts += 1
        if self._timeouts >= self._policy.timeouts_in_a_row:
            self._timeouts = 0
            self._suspected.set()

    async def _live(self) -> None:
        try:
            while True:
                self._become("starting")
                pause = await self._one_session()
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._needed.wait()
                self._asleep = False
        except Exception:
            logger.exception("%s: its supervision failed", self.name)
            self._become("failed", "internal error")

    async def _one_session(self) -> float | None:
        """From start to end. Seconds until the next one; `None` if it has to be asked for."""
        lost: asyncio.Future[float | None] = self._loop.create_future()

        def heard(kind: EventKind, about: str | ServerFailure | None = None) -> None:
            if kind != "lost":
                self._changed(session, kind, None if about is None else str(about))
            elif isinstance(about, ServerFailure) and not lost.done():
                lost.set_result(self._fall(about))

        session = MCPSession(
            self.name,
            self._open_transport,
            on_event=heard,
            policy=self._policy,
            all_windows=(self.config.desktop or self._policy.desktop) == "any",
            legacy=self._legacy,
        )
        self._needed.clear()
        self._diagnostics = lambda: session.diagnostics
        try:
            async with self._turn_to_start():
                self._starts += 1
                await session.start(self._policy.start_limit)
            if not lost.done():
                self._opened(session)
            return await self._watch(session, lost)
        except ServerFailure as failure:
            return self._fall(failure)
        finally:
            self._session = None
            await session.stop()

    @asynccontextmanager
    async def _turn_to_start(self) -> AsyncGenerator[None, None]:
        """One that hangs gives its turn to the others after a while, and goes on trying."""
        await self._gate.acquire()
        turn = self._loop.call_later(self._policy.start_turn, self._gate.release)
        try:
            yield
        finally:
            if turn.when() > self._loop.time():
                turn.cancel()
                self._gate.release()

    def _opened(self, session: MCPSession) -> None:
        self._legacy, self._revision = session.legacy, session.revision
        self._session = session
        self._last_used = self._ready_since = self._loop.time()
        self._timeouts = 0
        self._suspected.clear()
        self._offer(session.tools, session.windows)
        self._become("ready")

    async def _watch(self, session: MCPSession, lost: asyncio.Future[float | None]) -> float | None:
        """Until the connection is lost, or the server proves dead or superfluous."""
        while True:
            suspicion = self._loop.create_task(self._suspected.wait())
            waited: list[asyncio.Future[Any]] = [lost, suspicion]
            try:
                await asyncio.wait(waited, timeout=self._idle_left(), return_when=asyncio.FIRST_COMPLETED)
            finally:
                suspicion.cancel()
            if lost.done():
                return lost.result()
            if self._suspected.is_set():
                self._suspected.clear()
                if not await self._is_healthy(session) and not lost.done():
                    return self._fall(ServerGone("calls timed out, and so did a health check"))
            elif self._idle_left() == 0:
                self._fall_asleep()
                return None

    def _idle_left(self) -> float | None:
        if self._policy.idle_stop is None:
            return None
        if self._calling:
            return self._policy.idle_stop
        return max(0.0, self._last_used + self._policy.idle_stop - self._loop.time())

    async def _is_healthy(self, session: MCPSession) -> bool:
        try:
            await session.check(self._policy.health_limit)
        except SMCPError:
            return False
        return True

    def _fall(self, failure: ServerFailure) -> float | None:
        """Told at once, while the remains are still being cleaned up. Seconds until the next start, if any."""
        now = self._loop.time()
        ready_for = now - self._ready_since if self._session else 0.0
        recovery = self._restarts.after(failure, ready_for=ready_for, now=now)
        self._session = None
        self._become(recovery.state, failure.message)
        if not isinstance(failure, SessionLost):
            self._offer([], [])
        return recovery.pause

    def _fall_asleep(self) -> None:
        self._session = None
        self._asleep = True
        self._become("stopped", "idle, starts with the next call")

    def _changed(self, session: MCPSession, kind: OfferChange, about: str | None) -> None:
        if session is not self._session:
            return
        self.tools, self.windows = session.tools, session.windows
        self._on_event(self.name, kind, about)

    def _offer(self, tools: list[dict[str, Any]], windows: list[dict[str, Any]]) -> None:
        before = self.tools, uris_of(self.windows)
        self.tools, self.windows = tools, windows
        if tools != before[0]:
            self._on_event(self.name, "tools_changed", None)
        if uris_of(windows) != before[1]:
            self._on_event(self.name, "windows_changed", None)

    def _become(self, state: State, reason: str = "") -> None:
        if (state, reason) == (self.state, self.reason):
            return
        self.state, self.reason = state, reason
        self._moved.set()
        self._moved = asyncio.Event()
        logger.info("%s: %s%s", self.name, state, f" ({reason})" if reason else "")
        self._on_change(self.name, state, reason)
