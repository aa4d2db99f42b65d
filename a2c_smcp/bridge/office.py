"""An office as MCP clients see it: its tools under their names, and its state in words.

The tools of all computers are in the agent's registry, which changes them in one step. The catalog is built anew from
it when a client asks after a change. While the office cannot be used, or has no computer, there is a tool that says so:
a client shows its list of tools, and nothing else that a person would look at.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from a2c_smcp.agent import AsyncSMCPAgentClient, Reconnect
from a2c_smcp.agent.toolbox import RemoteTool
from a2c_smcp.bridge.apps import has_page, with_own_page
from a2c_smcp.bridge.catalog import Catalog, CatalogOptions, catalog, in_common_form
from a2c_smcp.bridge.desktops import GET_DESKTOP, DesktopResources
from a2c_smcp.bridge.names import GivenNames, OfferedTool, Target
from a2c_smcp.bridge.readables import Readables
from a2c_smcp.bridge.skills import OfficeSkills
from a2c_smcp.errors import (
    ComputerNotFound,
    NotAuthenticated,
    NotAuthorised,
    OfficeHasAgent,
    Outcome,
    SMCPError,
    ToolNotFound,
    Unavailable,
    kind_of,
)
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.registry.tool_registry import Listeners, ReadableChange

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeOptions:
    """All of it is optional.

    The names that tools were given are kept in `names_file`. `timeout` is how many seconds a tool may take; for a
    client that wants to know its progress, how long it may be silent. `explain` puts an error into words for the person
    at the MCP client, with what to do about it. A request over HTTP has at most `max_request` bytes. A client of an
    older revision of MCP has a session: there are at most `max_sessions`, and one that is not used for `session_idle`
    seconds is ended. If it has no open request for `withdraw_after` seconds, its calls that wait for a person are
    withdrawn. `max_kept` are the bytes of messages that are kept, so that a stream that was cut can be resumed.
    `wait` is how many seconds the start may take until clients are answered, even if the office was not joined yet.
    `state_key` has 32 bytes: all bridges that have it know what a client of another one gives back in its next request.
    `on_client` is called with the name that the client of a request gives itself, for each request. `on_refused` is
    called with the tool of each call that the bridge refuses without sending it, why, and the address of the client if
    it is known.
    """

    catalog: CatalogOptions = field(default_factory=CatalogOptions)
    names_file: Path | None = None
    timeout: float = 600.0
    explain: Callable[[SMCPError], str] = field(default=lambda error: error.message)
    max_request: int = 4 * 1024 * 1024
    max_sessions: int = 1000
    session_idle: float = 1800.0
    withdraw_after: float = 30.0
    max_kept: int = 32 * 1024 * 1024
    wait: float = 5.0
    state_key: bytes | None = field(default=None, repr=False)
    on_client: Callable[[str], None] | None = None
    on_refused: Callable[[str, SMCPError, str | None], None] = field(default=lambda tool, error, address: None)


# Announced changes of lists that look the same afterwards: clients are notified as well.
#
# The agent fetches a list again when its computer announces a change, and the registry reports a difference. Without
# one there would be no notice, but an MCP client may rely on the announcement itself. So each announcement waits a
# moment here; it is dropped if the registry has reported a change meanwhile.

ListName: TypeAlias = Literal["tools", "resources", "prompts"]

_PAUSE = 0.2
"""Seconds in which a list that has changed is fetched."""


class AnnouncedLists:
    """A listener to an agent's events. `tell` is called for lists that were announced and have not changed."""

    def __init__(self, office: str, tell: Callable[[ListName], None]) -> None:
        self._office, self._tell = office, tell
        self._timers: dict[ListName, asyncio.TimerHandle] = {}

    def changed(self, name: ListName) -> None:
        """The registry has told of a change."""
        if timer := self._timers.pop(name, None):
            timer.cancel()

    def close(self) -> None:
        for name in [*self._timers]:
            self.changed(name)

    def _announced(self, name: ListName, office: str) -> None:
        if office == self._office and name not in self._timers:
            self._timers[name] = asyncio.get_running_loop().call_later(_PAUSE, self._tell_of, name)

    def _tell_of(self, name: ListName) -> None:
        del self._timers[name]
        self._tell(name)

    # Events of the agent (`AgentEvents`)

    def on_tools_received(self, computer: str, tools: list[Any], office: str) -> None:
        self._announced("tools", office)

    def on_resources_changed(self, computer: str, server: str | None, office: str) -> None:
        self._announced("resources", office)

    def on_prompts_changed(self, computer: str, server: str | None, office: str) -> None:
        self._announced("prompts", office)


# Keeps the agent of a bridge in its office, or the reason why it is not there.
#
# Nobody watches a bridge, so it retries without limit: after each refusal (a wrong key, an office with another agent)
# and without an answer. `trouble` is the last refusal, until the office is joined. The
# agent itself reconnects after a lost connection; only after `_PATIENCE` is that trouble, the answer to waiting calls.
# A call of a tool starts the next attempt at once (`poke`), and waits a moment for it. It does not wait if the Server
# has refused the key in this attempt: another one would end the same way.

Result = TypeVar("Result")

_PATIENCE = 15.0
"""Seconds for which calls wait for a connection that was lost."""
_PAUSE_AFTER_REFUSAL = 15.0
"""Seconds until a key that was refused is tried again: the Server delays those who try often."""
_RECOVERS_WITHIN = 3.0
"""Seconds for which a call waits if the office is tried again because of it."""


class Membership:
    """`trouble` is why the office cannot be used.

    `on_change` is called whenever it has changed, `on_return` when the agent is back after a reconnect.
    """

    def __init__(
        self,
        agent: AsyncSMCPAgentClient,
        office: str,
        on_change: Callable[[], None],
        on_return: Callable[[], None] = lambda: None,
    ) -> None:
        self.trouble: SMCPError | None = Unavailable("the bridge has not connected yet")
        self._agent, self._office = agent, office
        self._on_change, self._on_return = on_change, on_return
        self._pauses = Reconnect()
        self._tried = asyncio.Event()
        self._again = asyncio.Event()
        self._refused = asyncio.Event()
        self._changed = asyncio.Event()
        self._is_joining = False
        self._begun = self._ended = 0
        self._running: set[asyncio.Timeout] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._stop_listening: Callable[[], None] = lambda: None

    async def open(self, timeout: float) -> None:
        """Begin to join the office. Returns when that was tried once, at most after `timeout` seconds."""
        self._stop_listening = self._agent.listen(self)
        await self._begin(timeout)

    async def close(self) -> None:
        self._stop_listening()
        self._stop_timer()
        if self._keeping:
            await cancel_and_wait(self._keeping)
        await self._agent.disconnect()

    @property
    def is_busy(self) -> bool:
        """True while work that needs the office runs."""
        return bool(self._running)

    async def leave(self) -> None:
        """Leave the office until `enter` is called. The agent stays connected."""
        if self._keeping:
            await cancel_and_wait(self._keeping)
            self._keeping = None
        self._stop_timer()
        self.trouble = Unavailable("the office was left, because nobody used it")
        with suppress(SMCPError):
            await self._agent.leave_office(self._office)

    async def enter(self, *, is_contested: bool = False) -> None:
        """Join the office again after `leave`, and wait a moment for it. Raises `trouble`.

        One that `is_contested` is not waited for if another agent has it.
        """
        if self._keeping is None:
            await self._begin(_RECOVERS_WITHIN)
        if is_contested and isinstance(self.trouble, OfficeHasAgent):
            raise _with_outcome(self.trouble, "not_run")
        await self.recovered()

    async def _begin(self, timeout: float) -> None:
        self._tried.clear()
        self._keeping = asyncio.create_task(self._keep())
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._tried.wait()

    def poke(self) -> None:
        """Try again now, if it is not being tried."""
        self._again.set()

    async def guard(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do work that needs the office. Raises `trouble`, also if it begins during the work."""
        if self.trouble is not None:
            try:
                await self.recovered()
            except BaseException:
                work.close()
                raise
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._running.add(limit)
                return await work
        except TimeoutError:
            if limit.expired() and self.trouble:
                raise _with_outcome(self.trouble, "unknown") from None
            raise
        finally:
            self._running.discard(limit)

    async def recovered(self) -> None:
        """Wait a moment until the office is joined. Raises `trouble` if it is not."""
        if self.trouble is None:
            return
        self.poke()
        latest = self._begun
        with suppress(TimeoutError):
            async with asyncio.timeout(_RECOVERS_WITHIN):
                while self.trouble is not None and not (self._ended > latest and _is_final(self.trouble)):
                    await self._changed.wait()
        if self.trouble is not None:
            raise _with_outcome(self.trouble, "not_run")

    async def _keep(self) -> None:
        attempt = 0
        while True:
            self._again.clear()
            self._refused.clear()
            self._begun += 1
            try:
                await self._join()
            except SMCPError as error:
                self._set(error)
            except Exception as error:  # of a credentials provider
                logger.warning("the office cannot be joined", exc_info=True)
                self._set(Unavailable(f"the office cannot be joined: {kind_of(type(error))}"))
            else:
                attempt = 0
                self._set(None)
                self._tried.set()
                await self._refused.wait()
            self._tried.set()
            await self._pause(attempt)
            attempt += 1

    async def _join(self) -> None:
        """Join, and wait a moment for the computers' tools: a client that asks for them before finds nothing."""
        self._is_joining = True
        try:
            await self._agent.connect()
            if self._office not in self._agent.offices:
                await self._agent.join_office(self._office)
        finally:
            self._is_joining = False
            self._ended = self._begun

    async def _pause(self, attempt: int) -> None:
        is_refused = isinstance(self.trouble, NotAuthenticated)
        with suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE_AFTER_REFUSAL if is_refused else self._pauses.delay(attempt)):
                await self._again.wait()

    def _set(self, trouble: SMCPError | None) -> None:
        before, self.trouble = self.trouble, trouble
        self._stop_timer()
        self._changed.set()
        self._changed = asyncio.Event()
        if (before and before.message) == (trouble and trouble.message):
            return
        for limit in self._running if trouble else ():
            limit.reschedule(asyncio.get_running_loop().time())
        self._on_change()

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    # Events of the agent (`AgentEvents`)

    def on_office_joined(self, office: str) -> None:
        if office == self._office and not self._is_joining:
            self._set(None)
            self._on_return()

    def on_disconnected(self) -> None:
        self._stop_timer()
        waiting = Unavailable(f"the connection to the Server was lost, and is not back after {_PATIENCE:g} s")
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE, self._set, waiting)

    def on_office_lost(self, office: str, error: SMCPError) -> None:
        if office == self._office:
            self._set(error)

    def on_refused(self, error: SMCPError) -> None:
        self._set(error)
        self._refused.set()


def _is_final(trouble: SMCPError) -> bool:
    """True if the next attempt can only succeed with another key."""
    return isinstance(trouble, NotAuthenticated | NotAuthorised)


def _with_outcome(trouble: SMCPError, outcome: Outcome) -> SMCPError:
    """The same error, which says of one call whether its tool has run."""
    copy = type(trouble).__new__(type(trouble), *trouble.args)
    vars(copy).update(vars(trouble), details={**trouble.details, "outcome": outcome})
    return copy


OFFICE_STATUS = "office_status"
_SHOWN_COMPUTERS = 50


class BridgedOffice:
    """An office that an agent is in, or tries to enter. It is what the `Announcer` of a server listens to."""

    def __init__(self, agent: AsyncSMCPAgentClient, name: str, options: BridgeOptions) -> None:
        self.agent, self.name, self.options = agent, name, options
        self.membership = Membership(agent, name, self._on_state, self._on_return)
        self._watched: Counter[str] = Counter()
        self.desktops = DesktopResources(agent, name, self._on_change)
        self.readables = Readables(agent, name)
        self.skills = OfficeSkills(agent, name, lambda: self._on_readable_change("resources"))
        self._names = GivenNames(options.names_file)
        self._listeners = Listeners[[]]()
        self._listings: WeakKeyDictionary[RemoteTool, dict[str, Any]] = WeakKeyDictionary()
        self._tools: dict[Target, RemoteTool] = {}
        self._catalogs: dict[CatalogOptions, Catalog] = {}
        self._schemas: dict[CatalogOptions, dict[str, dict[str, Any]]] = {}
        self._readable_listeners = Listeners[[ReadableChange]]()
        self._announced = AnnouncedLists(name, self._tell_unchanged)
        self._stack = ExitStack()

    async def open(self) -> None:
        self._stack.callback(self.agent.registry.on_change(self._on_change))
        self._stack.callback(self.agent.registry.on_readable_change(self._on_readable_change))
        self._stack.callback(self.agent.listen(self._announced))
        self._stack.callback(self.agent.listen(self.skills))
        self.desktops.open()
        await self.membership.open(self.options.wait)

    async def close(self) -> None:
        self._stack.close()
        self._announced.close()
        await self.desktops.close()
        await self.membership.close()

    # What is offered

    @property
    def computers(self) -> list[str]:
        prefix = f"{self.name}/"
        return sorted(seat.removeprefix(prefix) for seat in self.agent.computers if seat.startswith(prefix))

    def catalog(self, options: CatalogOptions) -> Catalog:
        if options not in self._catalogs:
            self._tools = {
                Target(tool.seat.computer, tool.tool["name"]): tool
                for _, tool in self.agent.registry.items()
                if isinstance(tool, RemoteTool) and tool.seat.office == self.name
            }
            offers = [OfferedTool(target, self._listing(tool)) for target, tool in self._tools.items()]
            reserved = (GET_DESKTOP, OFFICE_STATUS)
            self._catalogs[options] = catalog(offers, self._names, options, reserved)
        return self._catalogs[options]

    def resolve(
        self, name: str, arguments: Mapping[str, Any], options: CatalogOptions
    ) -> tuple[Target, dict[str, Any]]:
        """Return the tool of a call, and its own arguments. Raises `SMCPError`.

        A tool that is not listed now, but was before, is called where it was: its MCP server may be starting, and the
        computer knows that.
        """
        try:
            return self.catalog(options).resolve(name, arguments)
        except ToolNotFound:
            owner = self._names.owner_of(name)
            if not isinstance(owner, Target):
                raise
        if owner.computer not in self.computers:
            about = f"{owner.computer!r}, which has the tool {name!r}, is not in the office now"
            raise ComputerNotFound(about, computer=owner.computer)
        return owner, dict(arguments)

    def listings(self, options: CatalogOptions) -> list[dict[str, Any]]:
        """MCP's list of tools."""
        own = [self.desktops.tool, self._status_tool()]
        return [*self.catalog(options).listings(), *(tool for tool in own if tool)]

    def input_schema(self, name: str, options: CatalogOptions) -> dict[str, Any] | None:
        """The schema of a tool's arguments, by the name that it has here."""
        if options not in self._schemas:
            self._schemas[options] = {tool["name"]: tool["inputSchema"] for tool in self.listings(options)}
        return self._schemas[options].get(name)

    def server_of(self, target: Target) -> str | None:
        """The MCP server of a tool, if its computer names it."""
        tool: Mapping[str, Any] = self._tools[target].tool if target in self._tools else {}
        server = tool.get("mcp_server") or tool.get("bundle_id")
        return server if isinstance(server, str) else None

    def tools_of(self, computer: str, mcp_server: str, options: CatalogOptions) -> dict[str, tuple[str, str | None]]:
        """The tools of an MCP server: by the name that it gave, the name here, and the argument for the computer."""
        found = {}
        for target, name in self.catalog(options).tools_of(computer):
            if self.server_of(target) == mcp_server:
                found[self._tools[target].own_name] = name
        return found

    @property
    def has_apps(self) -> bool:
        """True if a tool has a page."""
        return any(has_page(tool.meta) for _, tool in self.agent.registry.items() if isinstance(tool, RemoteTool))

    # Its state, in words

    @property
    def trouble(self) -> str | None:
        """The reason why the office cannot be used now, and its remedy."""
        if error := self.membership.trouble:
            return f"The office {self.name!r} cannot be used now. {self.options.explain(error)}"
        if not self.computers:
            return (
                f"There is no computer in the office {self.name!r} now. "
                f"Add one with: a2c-smcp computer --office {self.name}"
            )
        return None

    def explain(self, error: SMCPError) -> str:
        """The reason why a request has failed, and its remedy."""
        return (self.trouble if self.membership.trouble else None) or self.options.explain(error)

    @property
    def instructions(self) -> str:
        """The instructions of this server for a client."""
        if trouble := self.trouble:
            return f"{trouble} This is retried without limit, and the list of tools changes when it has succeeded."
        names = self.computers
        rest = f" and {len(names) - _SHOWN_COMPUTERS} more" if len(names) > _SHOWN_COMPUTERS else ""
        return (
            f"Tools, resources and prompts of the computers in the office {self.name!r}, now: "
            f"{', '.join(names[:_SHOWN_COMPUTERS])}{rest}. A tool with an argument `computer` runs on that computer."
        )

    def status(self) -> dict[str, Any]:
        """The result of the tool that reports the state of the office."""
        text = self.trouble or f"The office can be used. {self.instructions}"
        return {"content": [{"type": "text", "text": text}], "isError": False}

    def _status_tool(self) -> dict[str, Any] | None:
        if not (trouble := self.trouble):
            return None
        return {
            "name": OFFICE_STATUS,
            "title": "Status of the office",
            "description": f"Says why there are no tools of computers here. {trouble}",
            "inputSchema": {"type": "object", "properties": {}, "additionalProperties": False},
            "annotations": {"readOnlyHint": True, "openWorldHint": False},
        }

    # Changes (`announcing.ChangingOffers`)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call the listener when the tools may have changed, or the state. Returns its unsubscribe function."""
        return self._listeners.add(listener)

    def on_readable_change(self, listener: Callable[[ReadableChange], None]) -> Callable[[], None]:
        """Call the listener with `resources` or `prompts` when these may have changed."""
        return self._readable_listeners.add(listener)

    def watch_resource(self, uri: str, listener: Callable[[str], None]) -> Callable[[], None]:
        """Calls the listener after each change of a resource, and when changes may have been missed."""
        self._watched[uri] += 1
        stop = self.agent.registry.watch_resource(uri, listener)

        def end() -> None:
            self._watched[uri] -= 1
            stop()

        return end

    async def until_watched(self, uri: str) -> None:
        await self.agent.registry.until_watched(uri)

    def _on_return(self) -> None:
        """Changes of resources while the connection was lost were not told."""
        self._watched = +self._watched
        for uri in self._watched:
            self.agent.registry.resource_updated(uri)

    def _on_state(self) -> None:
        if self.membership.trouble:
            logger.warning("%s", self.trouble)
        else:
            logger.info("office %r is joined", self.name)
        self._on_change()

    def _on_change(self) -> None:
        self._catalogs.clear()
        self._schemas.clear()
        self._announced.changed("tools")
        self._listeners.notify()

    def _on_readable_change(self, change: ReadableChange) -> None:
        self._announced.changed(change)
        self._readable_listeners.notify(change)

    def _tell_unchanged(self, name: ListName) -> None:
        if name == "tools":
            self._on_change()
        else:
            self._on_readable_change(name)

    def _listing(self, tool: RemoteTool) -> dict[str, Any]:
        """A tool as MCP lists it, without its name. It is made once for each."""
        listing = self._listings.get(tool)
        if listing is None:
            listing = {
                "description": tool.description,
                "inputSchema": in_common_form(tool.input_schema),
                **({"outputSchema": tool.output_schema} if tool.output_schema else {}),
                **tool.meta,
            }
            if server := self.server_of(Target(tool.seat.computer, tool.tool["name"])):
                listing = with_own_page(listing, tool.seat.computer, server)
            self._listings[tool] = listing
        return listing
