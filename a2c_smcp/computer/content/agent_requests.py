"""The part of `Computer` that answers agents: `computer.agents`. Whatever it returns is masked."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from a2c_smcp.computer.calls.run import ToolCalls
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.consent.freeze import FreezeState
from a2c_smcp.computer.content.blob_handles import BlobLimits, Blobs
from a2c_smcp.computer.content.requests import ReadContents, ServerReading
from a2c_smcp.computer.content.skills import Skills
from a2c_smcp.computer.content.uploads import Uploads
from a2c_smcp.computer.desktop.organize import Contents, Window, blobs_in, rank
from a2c_smcp.computer.owner import MAX_MESSAGE, ComputerOptions, Owner
from a2c_smcp.computer.secrets.mask import CONFIG, SERVER
from a2c_smcp.computer.secrets.rules import mask_config
from a2c_smcp.computer.types import OwnedTool, ServerUpdate, ToolCallRecord, Update
from a2c_smcp.devices.proving import Prover
from a2c_smcp.errors import CallTimeout, SMCPError
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.config.servers import input_to_wire, to_wire
from a2c_smcp.mcp_host.sessions.session import EventKind
from a2c_smcp.protocol.codec import Encoded
from a2c_smcp.smcp import GetComputerConfigRet
from a2c_smcp.types import Desktop

if TYPE_CHECKING:
    from a2c_smcp.computer.device import ComputerDevice

logger = logging.getLogger(__name__)

# Reads the windows of the desktop: only as many as needed, several at a time, each within a time limit.

_AT_ONCE = 64
_AT_ONCE_OF_ONE_SERVER = 8  # a server may answer one by one, and the last answer must not seem slow
_ONE = 10.0
_ALL = 15.0  # the agent gets its answer within 20 s (WIRE §5)

Read = Callable[[Window, float], Awaitable[Contents]]
"""Reads a window within so many seconds."""


async def read_desktop(
    windows: Iterable[Window], size: int | None, history: Sequence[ToolCallRecord], read: Read
) -> list[Desktop]:
    """The desktop of these windows. A window that cannot be read is left out."""
    ranking, limits = rank(windows, size, history), _TimeLimits()
    reading: dict[asyncio.Task[Contents], Window] = {}
    try:
        while not ranking.is_known:
            for window in ranking.take(_AT_ONCE - len(reading)):
                reading[asyncio.ensure_future(_contents(read, window, limits))] = window
            done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                ranking.put(reading.pop(task), task.result())
    finally:
        await cancel_and_wait(*reading)
    return ranking.desktops()


class _TimeLimits:
    """Time limits for reading windows. After a timeout, other windows of the same server are not read."""

    def __init__(self) -> None:
        self.turns: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_AT_ONCE_OF_ONE_SERVER))
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + _ALL
        self.slow: set[str] = set()

    def left(self, server: str) -> float:
        left = min(_ONE, self._deadline - self._loop.time())
        if left <= 0:
            raise CallTimeout(f"{server!r} is too slow")
        return left


async def _contents(read: Read, window: Window, limits: _TimeLimits) -> Contents:
    try:
        async with limits.turns[window.server]:
            if window.server in limits.slow:
                return []
            contents = await read(window, limits.left(window.server))
    except SMCPError as error:
        if isinstance(error, CallTimeout):
            limits.slow.add(window.server)
        logger.warning("window %s of %s cannot be read: %s", window.uri, window.server, error)
        return []
    if blobs := blobs_in(contents):
        logger.warning("window %s of %s: %d binary parts are not shown", window.uri, window.server, blobs)
    return contents


class AgentRequests:
    """Requests of agents to a computer, as its connection to a Server makes them, and the changes that they are told.

    Answers larger than `max_message` bytes are replaced by an error. `device` is there from `open` on, if this computer
    seals or signs.
    """

    device: ComputerDevice | None = None

    def __init__(self, name: str, owner: Owner, options: ComputerOptions) -> None:
        self.name, self.owner, self._options = name, owner, options
        self.mask, self.observation = owner.mask, owner.observation
        self.tells, self.questions = owner.tells, owner.questions
        self._state_folder = options.get("state_folder")
        self._max_message = options.get("max_message", MAX_MESSAGE)
        limits = options.get("blob_limits") or BlobLimits()
        self.blobs, self.uploads = Blobs(limits), Uploads(options.get("landing"), limits)
        self.blobs.on_fetched = self.observation.blob_fetched
        self.uploads.on_landed = self.observation.blob_stored
        home = options.get("skills")
        asking = owner.pins, owner.approvals
        self.skills = Skills(
            lambda: owner.host, self.mask, self.blobs, *asking, lambda: self.notify("skills"), home=home
        )
        self.calls = ToolCalls(name, owner, self.blobs, self._max_message)
        self._contents = ReadContents(self.blobs, self.mask, self._max_message)
        self.reading = ServerReading(owner, self.calls.live, self._contents)
        self._listeners: list[Callable[[Update], None]] = []
        self._changing = 0
        owner.freezing.on_change.append(self._on_freeze)

    async def open(self, state_folder: Path | None) -> None:
        """Read or make the keys of this device, and open what is kept on disk. Raises `ConfigError`."""
        self._state_folder = state_folder
        e2e, sign = self._options.get("e2e", "off"), self._options.get("sign", False)
        if e2e != "off" or sign:
            from a2c_smcp.computer.device import load_device

            self.device = await load_device(e2e, sign, state_folder, self._options.get("identity"))
        self.owner.freezing.open(self.name, state_folder)
        self.owner.pins.open(self.name, state_folder)
        self.blobs.open(state_folder)
        await self.uploads.open()

    async def close(self) -> None:
        """End all calls and subscriptions. `blobs` stay open: the caller closes them."""
        await self.owner.freezing.close()
        await self.calls.close()
        await self.skills.close()
        await self.reading.subscriptions.close()
        await self.uploads.close()
        await self.owner.pins.close()
        await self.owner.scanners.close()

    def prover(self, url: str) -> Prover:
        """Return what proves this device to a Server where the key of this computer is bound to it."""
        identity = self.device.identity if self.device else self._options.get("identity")
        return Prover.of("computer", url, identity, self._state_folder)

    # What has changed for agents

    def on_update(self, listener: Callable[[Update], None]) -> Callable[[], None]:
        """Call the listener with each update that agents are notified of. Returns a function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def notify(self, update: Update) -> None:
        for listener in list(self._listeners):
            listener(update)

    def refresh(self) -> None:
        """Rebuild the list of tools, and notify agents if they would see a difference."""
        if self.owner.catalog.refresh(self.owner.hosting):
            self.notify("tool_list")
        if not self._changing:
            self.owner.catalog.warn()

    @contextmanager
    def many_changes(self) -> Iterator[None]:
        """Delay warnings while servers start or stop one after the other: names may clash only meanwhile."""
        self._changing += 1
        try:
            yield
        finally:
            self._changing -= 1
        self.refresh()

    def on_event(self, name: str, kind: EventKind, about: str | None) -> None:
        """Notify agents of what an MCP server has announced."""
        self.skills.servers.on_event(name, kind, about)
        match kind:
            case "tools_changed" | "lost":
                self.refresh()
            case "tools_announced":  # they look the same: an agent that passes announcements on is told all the same
                self.notify("tool_list")
            case "resource_list_changed":
                self.notify(ServerUpdate("resource_list", name))
            case "prompts_changed":
                self.notify(ServerUpdate("prompts", name))
            case "resource_updated":
                self.reading.subscriptions.updated(name, about or "")
            case "windows_changed" | "window_updated":
                self.notify("desktop")

    # Requests

    def get_tools(self) -> list[OwnedTool]:
        """The tools as agents see them, each with its server. MCP servers are not asked."""
        return self.owner.catalog.shown(self.mask)

    def tools_for(self, agent: str, req_id: str, office: str = "") -> Encoded:
        """The answer to an agent's request for the tools, as JSON text already, with the tools it need not ask for."""
        routes = self.owner.catalog.routes
        if self.owner.gate is None:
            return self.owner.catalog.written(self.mask, req_id, self.owner.approvals.approved(agent, routes))
        caller = Caller(office, agent)
        outlooks = self.owner.gate.outlooks(caller, routes)
        approved = self.owner.approvals.approved_by_policy(caller, routes, outlooks)
        return self.owner.catalog.written(self.mask, req_id, approved, outlooks)

    def get_config(self, *, labelled: bool = False) -> GetComputerConfigRet:
        """The configuration as agents may see it: placeholders stay, literal secrets are masked.

        The options of a pick list have labels if the owner has given them some, or if `labelled`.
        """
        inputs = [input_to_wire(each, labelled=labelled) for each in self.owner.inputs.definitions.values()]
        ids = self.owner.host.bundle_ids
        servers = {
            name: {**to_wire(each), "bundle_id": ids.of(name), "secrets": each.secrets}
            for name, each in self.owner.host.configs.items()
        }
        config: dict[str, Any] = mask_config({"inputs": inputs, "servers": servers})
        config["servers"] = {name: self.mask.data(each, SERVER, name) for name, each in config["servers"].items()}
        return cast("GetComputerConfigRet", self.mask.data(config, CONFIG))

    async def get_desktop(self, size: int | None = None, window: str | None = None) -> list[Desktop]:
        """The windows of all servers as texts, the most important first, at most `size` (004).

        `window` selects one by its URI, as agents are shown it.
        """
        windows = self.owner.host.windows()
        if window is not None:
            windows = [each for each in windows if window in (each.uri, self.mask.uri(each.uri, each.server))]
        desktops = await read_desktop(windows, size, list(self.owner.history), self.owner.host.read)
        owners = [(each.uri, each.server) for each in windows]
        return [self._shown(desktop, owners) for desktop in desktops]

    def limit_messages(self, largest: int) -> None:
        """Send no answers that are larger than the largest message of the Server that this computer is connected to."""
        largest = min(largest, self._max_message)
        for part in (self.calls.delivery, self._contents, self.owner.catalog):
            part.limit(largest)
        self.refresh()

    def within_limit(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer, or, if it is too large to be sent, one that says so."""
        return self.calls.delivery.within_limit(answer)

    def forget(self, office: str, but: Caller | None = None) -> None:
        """End all that runs, waits or is kept for agents of an office, but for the one that has its seat now."""
        self._drop(lambda caller: caller.office == office and caller != but, self.calls.drop, self.blobs.drop)

    def withdraw(self, office: str) -> None:
        """End what waits for an agent that was lost, and what it is told. Calls that run go on, results are kept.

        Large contents are a part of results. All of this waits for the same agent only (WIRE §5).
        """
        self._drop(lambda caller: caller.office == office, self.calls.withdraw)

    def _drop(self, matches: Callable[[Caller], bool], *calls: Callable[[Callable[[Caller], bool]], None]) -> None:
        standing = self.uploads, self.questions, self.owner.server_logs, self.reading.subscriptions
        for drop in (*calls, *(each.drop for each in standing)):
            drop(matches)

    def _on_freeze(self, state: FreezeState) -> None:
        """Cancel all that runs or waits. Subscriptions and log levels stay, and are silent; so do results."""
        if state.is_frozen:
            self.calls.freeze(state)
            self.uploads.drop(lambda caller: True)
            self.notify("state")
        else:
            for update in ("state", "tool_list", "desktop", "skills"):
                self.notify(update)

    async def watch_logs(self, caller: Caller, server: str | None, level: str) -> None:
        """Tell an agent the messages of a server, or of all, of this level and above, as long as it is there.

        It lapses after fifteen minutes unless the agent asks again. Raises `ServerNotFound` or `BadRequest`.
        """
        self.owner.server_logs.watch(caller, server and self.owner.host.known(server), level)
        await self.owner.host.set_log_levels()

    # Inside

    def _shown(self, desktop: Desktop, owners: list[tuple[str, str]]) -> Desktop:
        """A window without the secrets of all servers that list its URI: it may be of any of them."""
        listed, blank, text = desktop.partition("\n\n")
        uri = listed
        for server in [server for each, server in owners if each == listed]:
            uri, text = self.mask.uri(uri, server), self.mask.text(text, server)
        return uri + blank + text
