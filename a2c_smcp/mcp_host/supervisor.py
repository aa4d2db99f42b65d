"""Keeps one MCP server running: starts it, watches it, starts it again after a failure, stops it while it is idle.

**States** (`State`). `disabled`: the configuration says so. `stopped`: not wanted. `asleep`: started by the next use,
and listed as it was seen last. `starting`, `ready`: there is a session. `backoff`, `failed`: it is started again after
a pause. `auth_required`: it is started again only on request, and its tools stay listed. `Restarts` decides which of
the last three follows a failure.

**Owners.** One task per wanted server (`_supervise`) makes one session after the other; it alone starts and stops them.
`start` and `stop` begin and cancel that task, one at a time (`_changing`). Only `_set_state` changes `state`, which is
what everything else goes by. Callers wait for `_state_changed`, a new event for every change.

**Races, and how each is handled.**
- Stopping takes a while, and the caller of `stop` may be cancelled meanwhile. The cancelled task stays in `_ending`,
  and the next `start` or `stop` waits for it. So there are never two sessions of one server.
- A session may be lost at any moment, also before `start` has returned. Its failure is kept in a future (`lost`), and
  the session is used only if that is not set. Events of a session that is not `_session` are ignored.
- A call may come while an idle server stops. It sets `_wake`, which is cleared only when the next session begins, so
  no wake-up is lost. A call that has begun counts in `requests.active` before it waits for anything, so a server with
  calls is never idle. Nor is one with subscriptions, which could not announce changes, or while its lists are kept.
- Many calls may wake a server: the task starts it once. A call whose start fails gets the reason, and is not kept for
  the restart; its cancel stops nothing.
- When a server goes down, its state changes first and its tools vanish second. So a server in the state `ready`
  without tools offers none. While it is started again (`backoff`) its tools stay, and a call waits for it for a while.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

from a2c_smcp.errors import BadRequest, CallTimeout, CapabilityNotSupported, NotPrivate, SMCPError
from a2c_smcp.files import PrivateFileUnusable, PrivateJSONFile, private_folder, stamp
from a2c_smcp.loops import cancel_and_wait, in_thread
from a2c_smcp.mcp_host.config.servers import MCPServerConfig, source
from a2c_smcp.mcp_host.failures import (
    AuthRequired,
    Fault,
    OversizedAnswer,
    RequestRefused,
    ServerFailure,
    ServerGone,
    ServerNotReady,
    SessionLost,
)
from a2c_smcp.mcp_host.limits import HostLimits, is_within
from a2c_smcp.mcp_host.request_queue import RequestQueue
from a2c_smcp.mcp_host.sessions.listings import MAX_LISTED_BYTES, ToolList, WindowList, uris_of
from a2c_smcp.mcp_host.sessions.server_info import AboutServer, LogLevel, is_log_level
from a2c_smcp.mcp_host.sessions.session import EventKind, MCPSession, require_capability
from a2c_smcp.mcp_host.sessions.subscriptions import OfferChange
from a2c_smcp.mcp_host.sessions.tool_request import ReadRequest
from a2c_smcp.mcp_host.sign_in.account import Account
from a2c_smcp.mcp_host.status import OnChange, OnServerEvent, OnServerLog, Restarts, ServerStatus, State
from a2c_smcp.mcp_host.transports.transport import MCPTransport
from a2c_smcp.protocol.operations import MCP_LISTS

logger = logging.getLogger(__name__)

# Lists that MCP servers offered when they last ran, in a private folder: those of servers that are asleep.
#
# Each server of a computer has one file. It counts only for the server it was made of: a digest of all that identifies
# it (`_identity`) is in the file. Variables and headers count by their names, since their values are secrets. A program
# on this machine that was replaced is another server.

_FORMAT = 1
_IDENTIFYING = ("type", "sandbox", "protocol", "desktop")
_NAMES_ONLY = ("env", "headers")

Pages = dict[str, dict[str, dict[str, Any]]]
"""Results of MCP's requests for lists, by method and cursor; the first page has the cursor `""`."""


@dataclass(frozen=True, slots=True)
class Seen:
    """All that a server offered: its tools and windows as they are used, its description, pages of other lists."""

    tools: list[dict[str, Any]]
    windows: list[dict[str, Any]]
    about: AboutServer
    revision: str
    pages: Pages = field(default_factory=dict)


class SeenServers:
    """The files of one computer. Without a folder nothing is kept. The methods read and write files."""

    def __init__(self, computer: str = "", state_folder: Path | None = None) -> None:
        self._computer = computer
        self._state_folder = state_folder

    def load(self, config: MCPServerConfig) -> Seen | None:
        """Return what this server offered; `None` if it was never seen, or its file cannot be used."""
        try:
            kept = file.load() if (file := self._file(config.name)) else {}
            if not kept or kept["identity"] != _identity(config):
                return None
            tools, windows = ToolList(), WindowList()
            tools.take(kept["tools"])
            windows.take(kept["windows"])
            about, pages = AboutServer(**kept["about"]), kept["pages"]
            if not all(isinstance(page, dict) for listed in pages.values() for page in listed.values()):
                raise TypeError
            return Seen(tools.tools, windows.windows, about, str(kept["revision"]), pages)
        except (OSError, NotPrivate, PrivateFileUnusable, KeyError, TypeError, AttributeError) as error:
            logger.warning("%s: what it offered last cannot be read, and it is started: %s", config.name, error)
            return None

    def save(self, config: MCPServerConfig, seen: Seen) -> None:
        try:
            if file := self._file(config.name):
                file.save({"identity": _identity(config), **asdict(seen)})
        except (OSError, NotPrivate, PrivateFileUnusable) as error:
            logger.warning("%s: what it offers cannot be kept: %s", config.name, error)

    def _file(self, server: str) -> PrivateJSONFile | None:
        if self._state_folder is None:
            return None
        folder = private_folder(self._state_folder, "seen")
        name = hashlib.sha256(json.dumps([self._computer, server]).encode()).hexdigest()[:32]
        return PrivateJSONFile(folder / f"{name}.json", self._state_folder, folder)


async def read_lists(session: MCPSession, policy: HostLimits) -> Pages:
    """All pages of the server's lists, but those that are too large or come too late; none of a list that it refuses.

    Raises `ServerFailure` if the session ends.
    """
    pages: Pages = {}
    for row in MCP_LISTS:
        with suppress(CapabilityNotSupported, CallTimeout, OversizedAnswer):
            if (listed := await _all_pages(session, row.method, policy)) is not None:
                pages[row.method] = listed
    return pages


async def _all_pages(session: MCPSession, method: str, policy: HostLimits) -> dict[str, dict[str, Any]] | None:
    pages: dict[str, dict[str, Any]] = {}
    cursor: object = ""
    while isinstance(cursor, str) and cursor not in pages:
        if len(pages) == policy.listing_pages or not is_within(pages, MAX_LISTED_BYTES):
            return None
        try:
            page = await session.read(ReadRequest(method, {"cursor": cursor} if cursor else {}, policy.listing_limit))
        except RequestRefused:
            return {}
        pages[cursor], cursor = page, page.get("nextCursor")
    return pages


def _identity(config: MCPServerConfig) -> str:
    """Return a digest of what is started or reached, and how; of programs and files among it also their stamps."""
    data = source(config)
    parameters = data["server_parameters"]
    words = [parameters["command"], *parameters["args"]] if config.type == "stdio" else []
    named = {name: sorted(parameters.get(name) or ()) for name in _NAMES_ONLY}
    place = Path(parameters.get("cwd") or "")
    found = [stamp(Path(path)) for path in (*map(shutil.which, words[:1]), *(place / word for word in words)) if path]
    identity = [_FORMAT, *(data.get(name) for name in _IDENTIFYING), {**parameters, **named}, found]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


_ANNOUNCED: dict[str, OfferChange] = {"resources": "resource_list_changed", "prompts": "prompts_changed"}
_LIST_CHANGES = frozenset(["tools_changed", "windows_changed", "resource_list_changed", "prompts_changed"])


class Supervisor:
    """Supervises one server. `tools` and `windows` are those that can be used now, or after it wakes up.

    `about` is the server's description of itself at its last start, `subscribed` the URIs that agents follow.
    """

    def __init__(
        self,
        config: MCPServerConfig,
        open_transport: Callable[[], MCPTransport],
        *,
        policy: HostLimits,
        start_slots: asyncio.Semaphore,
        on_change: OnChange,
        on_event: OnServerEvent,
        on_log: OnServerLog,
        seen: SeenServers,
        account: Account | None = None,
        subscribed: set[str] | None = None,
    ) -> None:
        self.config = config
        self.name = config.name
        self.state: State = "disabled" if config.disabled else "stopped"
        self.reason = ""
        self._fault: Fault = ""
        self.tools: list[dict[str, Any]] = []
        self.windows: list[dict[str, Any]] = []
        self.about = AboutServer()
        self.subscribed = set() if subscribed is None else subscribed
        self._open_transport = open_transport
        if config.type != "stdio":
            policy = policy.with_timeout(config.server_parameters.timeout_in_seconds)
        self._policy = policy
        self._start_slots = start_slots
        self._on_change = on_change
        self._on_event = on_event
        self._on_log = on_log
        self._log_level: LogLevel | None = None
        self._account = account
        self.refusal: AuthRequired | None = None
        self._loop = asyncio.get_running_loop()
        self._session: MCPSession | None = None
        self._supervision: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()
        self._state_changed = asyncio.Event()
        self._wake = asyncio.Event()
        self._suspected = asyncio.Event()
        self.requests = RequestQueue(
            self.name,
            policy,
            current=lambda: self._session if self.state == "ready" else None,
            wait=lambda is_call: self._ready_session(is_call=is_call),
            suspect=self._suspected.set,
            listed=self._seen_list,
        )
        self._ready_since = 0.0
        self._restarts = Restarts(policy)
        self._seen = seen
        self._pages: Pages = {}
        self._outdated = asyncio.Event()
        self._idle_stop = config.idle_stop or policy.idle_stop
        if config.start == "on_call":
            self._idle_stop = self._idle_stop or policy.on_call_idle
        self._legacy = config.protocol == "older"
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
            fault=self._fault,
        )

    @property
    def is_wanted(self) -> bool:
        return self._supervision is not None

    async def start(self) -> State:
        """Start the server, also during a pause, unless it is disabled. Return the state after the attempt."""
        async with self._changing:
            if self.state == "disabled":
                return self.state
            await self._wait_for_end()
            if self._supervision is None or self._supervision.done():
                self._restarts = Restarts(self._policy)
                self._wake.clear()
                self._set_state("starting")
                self._supervision = self._loop.create_task(self._supervise(), name=f"supervisor:{self.name}")
            elif self.state not in ("starting", "ready"):
                self._restarts = Restarts(self._policy)
                state_changed = self._state_changed
                self._wake.set()
                await state_changed.wait()
        while self.state == "starting":
            await self._state_changed.wait()
        return self.state

    async def stop(self, reason: str = "") -> None:
        async with self._changing:
            if self._supervision is not None:
                self._supervision.cancel()
                self._ending, self._supervision = self._supervision, None
            await self._wait_for_end()
            if self.state not in ("disabled", "stopped"):
                self._set_state("stopped", reason)
            self._set_offers([], [])

    def check_soon(self) -> None:
        self._suspected.set()

    async def _wait_for_end(self) -> None:
        """Wait until the task that `stop` has cancelled is over."""
        if self._ending is not None:
            await asyncio.wait([self._ending])
            self._ending = None

    async def subscribe(self, uri: str, timeout: float) -> None:
        """Have `on_event` called with changes of a resource, until `unsubscribe`.

        It holds also when the server has started again, or has another configuration. Raises as `read` does.
        """
        await self.requests.subscribe(uri, timeout)
        self.subscribed.add(uri)

    async def unsubscribe(self, uri: str) -> None:
        self.subscribed.discard(uri)
        self.requests.last_used = self._loop.time()  # it may be idle from now on
        if (session := self._session) is not None:
            with suppress(SMCPError):
                await session.unsubscribe(uri)

    async def request_logs(self, level: str | None) -> None:
        """Have `on_log` called with messages of this level and above; `None`: with as few as possible.

        It holds for this session and the next ones. Raises `BadRequest` for an unknown level.
        """
        if level is not None and not is_log_level(level):
            raise BadRequest(f"{level!r} is not a log level: {', '.join(get_args(LogLevel))}")
        self._log_level = level
        if (session := self._session) is not None:
            with suppress(SMCPError):  # the next session will ask again
                await session.request_logs(level)

    async def _ready_session(self, *, is_call: bool) -> MCPSession:
        await self._until_started(is_call=is_call)
        if self.state == "auth_required" and self.refusal is not None:
            raise type(self.refusal)(f"{self.name!r} ({self.reason})")
        if self._session is None or self.state != "ready":
            raise ServerNotReady(f"{self.name!r} is {self.state}" + (f" ({self.reason})" if self.reason else ""))
        return self._session

    async def _until_started(self, *, is_call: bool) -> None:
        """Wait for the end of a start. A call of a tool also waits a while for a server that is restarted."""
        is_patient = is_call and self._restarts.in_a_row > 0
        try:
            async with asyncio.timeout(self._policy.restart_wait if is_patient else None):
                while self.state in ("starting", "asleep") or (is_patient and self.state == "backoff"):
                    if self.state == "asleep":
                        self._wake.set()
                    await self._state_changed.wait()
        except TimeoutError:
            why = f" ({self.reason})" if self.reason else ""
            raise CallTimeout(f"{self.name!r} is restarting{why}: call it again in a moment") from None

    async def _supervise(self) -> None:
        try:
            may_sleep = await self._recall()
            while True:
                pause = None if may_sleep else await self._one_session()
                may_sleep = False
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._wake.wait()
                self._set_state("starting")
        except Exception:
            logger.exception("%s: its supervision failed", self.name)
            self._set_state("failed", "internal error")

    async def _recall(self) -> bool:
        """Offer what a server that starts on call offered last. False if it has to be started: it is new, or in use."""
        seen = await in_thread(self._seen.load, self.config) if self.config.start == "on_call" else None
        if seen is None:
            return False
        self.about, self._revision, self._pages = seen.about, seen.revision, seen.pages
        self._set_offers(seen.tools, seen.windows)
        if self.requests.is_busy or self.subscribed:
            return False
        self._sleep()
        return True

    def _sleep(self) -> None:
        self._session, self._restarts.in_a_row = None, 0
        self._set_state("asleep", "starts with the next call")

    def _seen_list(self, request: ReadRequest) -> dict[str, Any] | None:
        """The page of a list of a server that is asleep. Raises `CapabilityNotSupported` for what it does not offer."""
        if self.state != "asleep":
            return None
        require_capability(self.name, self.about, self._revision, request.method)
        return self._pages.get(request.method, {}).get(str(request.params.get("cursor", "")))

    async def _remember(self, session: MCPSession) -> None:
        """Keep what the server lists for the time when it is asleep, now and after each change.

        Lists that are not as they were before it was started are announced.
        """
        before: Pages | None = self._pages
        with suppress(ServerFailure):
            while True:
                self._outdated.clear()
                with self.requests.in_use():
                    self._pages = await read_lists(session, self._policy)
                    if before:
                        self._announce(before)
                    before = None
                    if self.config.start == "on_call":
                        seen = Seen(self.tools, self.windows, self.about, self._revision, self._pages)
                        await in_thread(self._seen.save, self.config, seen)
                await self._outdated.wait()

    async def _one_session(self) -> float | None:
        """Run one session to its end. Return the seconds until the next one; `None` to wait for `_wake`."""
        lost: asyncio.Future[float | None] = self._loop.create_future()

        def on_event(kind: EventKind, about: str | ServerFailure | None = None) -> None:
            if kind != "lost":
                self._on_session_event(session, kind, None if about is None else str(about))
            elif isinstance(about, ServerFailure) and not lost.done():
                lost.set_result(self._on_failure(about))

        session = MCPSession(
            self.name,
            self._open_transport,
            on_event=on_event,
            policy=self._policy,
            on_log=lambda message: self._on_log(self.name, message),
            subscribed=self.subscribed,
            all_windows=(self.config.desktop or self._policy.desktop) == "any",
            legacy=self._legacy,
            turns=self.requests.turns,
        )
        self._wake.clear()
        self._diagnostics = lambda: session.diagnostics
        try:
            async with self._start_slot():
                self._starts += 1
                await session.start(self._policy.start_limit)
                if self._log_level is not None:
                    await session.request_logs(self._log_level)
            if lost.done():
                return lost.result()
            self._use(session)
            remembering = self._loop.create_task(self._remember(session)) if self._idle_stop else None
            try:
                return await self._watch(session, lost)
            finally:
                if remembering:
                    await cancel_and_wait(remembering)
        except ServerFailure as failure:
            return self._on_failure(failure)
        finally:
            self._session = None
            await session.stop()

    @asynccontextmanager
    async def _start_slot(self) -> AsyncGenerator[None, None]:
        """Wait for a slot to start. A server that starts slowly gives its slot to others, and goes on starting."""
        await self._start_slots.acquire()
        turn = self._loop.call_later(self._policy.start_turn, self._start_slots.release)
        try:
            yield
        finally:
            if turn.when() > self._loop.time():
                turn.cancel()
                self._start_slots.release()

    def _use(self, session: MCPSession) -> None:
        self._legacy, self._revision, self.about = session.legacy, session.revision, session.about
        self._session = session
        self._ready_since = self._loop.time()
        self.requests.begin(is_modern=session.is_modern)
        self._suspected.clear()
        self._set_offers(session.tools, session.windows)
        self._set_state("ready")
        if not self._pages:
            self._announce()
        for uri in list(self.subscribed):
            self._on_event(self.name, "resource_updated", uri)

    def _announce(self, before: Pages | None = None) -> None:
        """Report lists as changed, unless they are as before: changes before this session may have been missed."""
        for capability, change in _ANNOUNCED.items():
            methods = [row.method for row in MCP_LISTS if row.capability == capability]
            is_same = before and all(each in before and before[each] == self._pages.get(each) for each in methods)
            if self.about.declares(capability) and not is_same:
                self._on_event(self.name, change, None)

    async def _watch(self, session: MCPSession, lost: asyncio.Future[float | None]) -> float | None:
        """Return when the session is lost, the server does not answer any more, or it is idle."""
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
                    return self._on_failure(ServerGone("calls timed out, and so did a health check"))
            elif self._idle_left() == 0:
                self._sleep()
                return None

    def _idle_left(self) -> float | None:
        if self._idle_stop is None:
            return None
        if self.requests.is_busy or self.subscribed:
            return self._idle_stop
        return max(0.0, self.requests.last_used + self._idle_stop - self._loop.time())

    async def _is_healthy(self, session: MCPSession) -> bool:
        try:
            await session.check(self._policy.health_limit)
        except SMCPError:
            return False
        return True

    def _on_failure(self, failure: ServerFailure) -> float | None:
        """Announce the new state at once, before the cleanup. Return the seconds until the next start, if any."""
        now = self._loop.time()
        ready_for = now - self._ready_since if self._session else 0.0
        recovery = self._restarts.after(failure, ready_for=ready_for, now=now)
        self._session = None
        self.refusal = failure if isinstance(failure, AuthRequired) else None
        self._set_state(recovery.state, failure.message, failure.fault)
        if self.refusal:
            self._set_offers(self.tools, [])
        elif recovery.state == "backoff":
            self._set_offers(self.tools, self.windows if isinstance(failure, SessionLost) else [])
        else:
            self._set_offers([], [])
        return recovery.pause

    def _on_session_event(self, session: MCPSession, kind: OfferChange, about: str | None) -> None:
        if session is not self._session:
            return
        self.tools, self.windows = session.tools, session.windows
        if kind in _LIST_CHANGES:
            self._outdated.set()
        self._on_event(self.name, kind, about)

    def _set_offers(self, tools: list[dict[str, Any]], windows: list[dict[str, Any]]) -> None:
        before = self.tools, uris_of(self.windows)
        self.tools, self.windows = tools, windows
        if tools != before[0]:
            self._on_event(self.name, "tools_changed", None)
        if uris_of(windows) != before[1]:
            self._on_event(self.name, "windows_changed", None)

    def _set_state(self, state: State, reason: str = "", fault: Fault = "") -> None:
        if (state, reason) == (self.state, self.reason):
            return
        self.state, self.reason, self._fault = state, reason, fault
        self._state_changed.set()
        self._state_changed = asyncio.Event()
        logger.info("%s: %s%s", self.name, state, f" ({reason})" if reason else "")
        self._on_change(self.name, state, reason)
