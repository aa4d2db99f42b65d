"""Seats of MCP clients on a Server: one agent for each principal and office, which is in the office while it is used.

A seat is used by each HTTP request, from its head to the end of its response, so an open stream counts. The first one
connects the agent, with the credentials of that request, and joins the office. All requests that come meanwhile wait
for the same attempt. If the office refuses, they are refused, and the seat leaves nothing behind.

When nobody has used it for a while (`idle`), and no call is in flight, the agent leaves the office, so that others may
have it. The MCP sessions stay: many clients would not begin a new one by themselves. The next request joins again. A
seat that was not used for long (`keep`) is closed, and so is one whose credentials the Server no longer accepts:
sessions end, and open streams with them.

`_lock` orders joining, leaving and closing. A request takes it only if the agent is not in the office. A seat that is
closed is first removed from the table, so no request gets hold of it; a new one may wait a moment for the office.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.bridge.bridge import Bridge
from a2c_smcp.bridge.options import BridgeOptions
from a2c_smcp.bridge.serving.http import EndOfRequests
from a2c_smcp.bridge.serving.session_files import SessionFiles
from a2c_smcp.device_events import Sealing
from a2c_smcp.endpoint import Credentials
from a2c_smcp.errors import NotAuthenticated, NotAuthorised, RateLimited, SMCPError, Unavailable
from a2c_smcp.http.asgi import ASGIApp
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.server.auth.authentication import Principal
from a2c_smcp.server.mounts import Lifespan
from a2c_smcp.server.observation import McpCallRefused, McpClientSeen

__all__ = ["MCP_PATH", "ClientSeat", "Occupant", "SeatOptions", "Seats"]

logger = logging.getLogger(__name__)

MCP_PATH = "/mcp"
"""Where the application of a seat is asked."""

_MOST_CLIENTS = 64
_LAST_ANSWERS = 1.0
"""Seconds for answers that are being written when the Server ends."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """Whose seat it is: the principal, the office, and the name that the agent has there."""

    principal: str
    office: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatOptions:
    """Times are in seconds. `bridge` makes the options of the bridge of an occupant.

    `e2e` and `origin` are those of its agents: see `AsyncSMCPAgentClient`. `on_seen` is told which clients use a seat,
    `on_refused` which requests, from which address, get none although their key is right, `on_call_refused` which tool
    calls are not sent. What else is refused, the Server sees itself.
    """

    idle: float = 60.0
    keep: float = 1800.0
    most_per_principal: int = 64
    bridge: Callable[[Occupant], BridgeOptions] = field(default=lambda occupant: BridgeOptions())
    e2e: Sealing = "off"
    origin: str | None = None
    on_seen: Callable[[McpClientSeen], None] = field(default=lambda seen: None)
    on_refused: Callable[[str | None, SMCPError, Principal], None] = field(default=lambda address, error, who: None)
    on_call_refused: Callable[[McpCallRefused], None] = field(default=lambda refused: None)


class Seats:
    """All seats. The agents connect to the Server at `url`."""

    def __init__(self, url: str, options: SeatOptions) -> None:
        self._url = url
        self._options = options
        self._seats: dict[Occupant, ClientSeat] = {}
        self._background = OwnedTasks()

    def has(self, occupant: Occupant) -> bool:
        return occupant in self._seats

    def keeps(self, occupant: Occupant, session: str) -> bool:
        """Whether a session of an occupant who has no seat now can go on."""
        options = self._options.bridge(occupant)
        folder = options.sessions_folder
        return folder is not None and SessionFiles(folder, options.max_sessions).find(session) is not None

    async def use(self, occupant: Occupant, headers: Mapping[str, str]) -> ClientSeat:
        """The seat, joined and in use until `ClientSeat.release`. `headers` are the credentials of the request.

        Raises the refusal of the Server, or `RateLimited`.
        """
        seat = self._seats.get(occupant)
        if seat is None:
            if sum(other.principal == occupant.principal for other in self._seats) >= self._options.most_per_principal:
                most = self._options.most_per_principal
                raise RateLimited(f"{occupant.principal!r} uses {most} offices already, which is the most")
            seat = self._seats[occupant] = ClientSeat(occupant, self._url, self._options, self._close_soon)
        await seat.use(headers)
        return seat

    async def close(self) -> None:
        """Ends all seats. Answers that are being written have a moment."""
        seats, self._seats = [*self._seats.values()], {}
        await asyncio.gather(*(seat.close(_LAST_ANSWERS) for seat in seats))
        await self._background.close()

    def _close_soon(self, seat: ClientSeat) -> None:
        if self._seats.get(seat.occupant) is seat:
            del self._seats[seat.occupant]
            self._background.spawn(seat.close())


class ClientSeat:
    """One agent in one office, and the MCP server that its clients talk to. Its credentials are in memory only."""

    def __init__(
        self, occupant: Occupant, url: str, options: SeatOptions, close_soon: Callable[[ClientSeat], None]
    ) -> None:
        self.occupant = occupant
        self.is_over = EndOfRequests()
        self._headers: Mapping[str, str] = {}
        self._dialled_with: Mapping[str, str] = {}
        sealing: dict[str, Any] = {"e2e": options.e2e, "origin": options.origin}
        agent = AsyncSMCPAgentClient(occupant.name, url=url, office=[], auth=self, event_handler=self, **sealing)
        self._clients: dict[str, None] = {}
        told = replace(options.bridge(occupant), on_client=self._on_client, on_refused=self._on_call_refused)
        self._bridge = Bridge(agent, occupant.office, told)
        self.app: ASGIApp = self._bridge.http_app(MCP_PATH)
        self._lifespan = Lifespan(self.app)
        self._options = options
        self._close_soon = close_soon
        self._users = self._answers = 0
        self._answered = asyncio.Event()
        self._answered.set()
        self._is_joined = self._was_joined = False
        self._lock = asyncio.Lock()
        self._opened: AsyncExitStack | None = None
        self._joining: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._background = OwnedTasks()

    async def use(self, headers: Mapping[str, str]) -> None:
        """Joins the office unless it is joined. Raises its refusal; else `release` must follow."""
        self._users += 1
        self._stop_timer()
        self._headers = headers  # a token may have been renewed: the next dial takes the newest
        try:
            if not self._is_joined:
                await self._join_once()
            if self.is_over.is_set:
                raise Unavailable("the access to this office has ended just now, try again")
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """The request is over."""
        self._users -= 1
        if not (self._users or self.is_over.is_set):
            self._after(self._options.idle if self._is_joined else 0.0, self._rest)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """While a request is answered that should be complete before the seat is closed."""
        self._answers += 1
        self._answered.clear()
        try:
            yield
        finally:
            self._answers -= 1
            if not self._answers:
                self._answered.set()

    async def close(self, patience: float = 0.0) -> None:
        """Leaves the office, and ends all sessions and streams. Answers may be completed within `patience` seconds."""
        self._stop_timer()
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._answered.wait()
        self.is_over.set()
        await self._background.close()
        async with self._lock:
            if self._opened:
                await self._opened.aclose()

    # For the agent

    def credentials(self) -> Credentials:
        self._dialled_with = self._headers
        return Credentials(headers=self._headers)

    def on_office_lost(self, office: str, error: Exception) -> None:
        if isinstance(error, NotAuthorised):  # the key is for other offices now
            self.on_refused(error)

    def on_refused(self, error: Exception) -> None:
        if isinstance(error, NotAuthenticated) and self._headers != self._dialled_with:
            self._is_joined = False  # a renewed token has come meanwhile: the next request joins with it
            return
        logger.info("the seat of %r in office %r ends: %s", self.occupant.principal, self.occupant.office, error)
        self._close_soon(self)

    # In and out

    async def _join_once(self) -> None:
        if self._joining is None or self._joining.done():
            self._joining = asyncio.create_task(self._join())
        await asyncio.shield(self._joining)

    async def _join(self) -> None:
        async with self._lock:
            if self._opened is None:
                self._opened = AsyncExitStack()
                await self._opened.enter_async_context(self._bridge)
                self._opened.push_async_callback(self._lifespan.stop)
                await self._lifespan.start()
            self._clients.clear()
            await self._bridge.enter()
            self._is_joined = self._was_joined = True

    def _on_client(self, client: str) -> None:
        """For the operator: which clients use the seat, each once since it was taken. They have chosen their names."""
        if client in self._clients:
            return
        if len(self._clients) >= _MOST_CLIENTS:
            del self._clients[next(iter(self._clients))]
        self._clients[client] = None
        who = self.occupant
        self._options.on_seen(McpClientSeen(who.office, who.name, client, who.principal))

    def _on_call_refused(self, tool: str, error: SMCPError, address: str | None) -> None:
        who = self.occupant
        self._options.on_call_refused(McpCallRefused(who.office, who.name, who.principal, address, tool, error))

    async def _rest(self) -> None:
        """Leaves the office if nobody uses it. A seat that was never in it has no sessions, and is closed."""
        async with self._lock:
            if self._users:
                return
            if self._bridge.is_busy:
                self._after(self._options.idle, self._rest)
                return
            self._is_joined = False
            await self._bridge.leave()
            if not self._users:
                self._after(self._options.keep if self._was_joined else 0.0, self._give_up)

    async def _give_up(self) -> None:
        if not self._users:
            self._close_soon(self)

    def _after(self, delay: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._stop_timer()
        self._timer = self._background.later(delay, work)

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
