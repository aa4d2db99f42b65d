"""The resources and prompts of computers in the agent's registry, beside those of the program.

**What is listed.** When a computer has entered or says that something has changed, it is asked for its MCP servers, and
each of them that is ready for the lists that it offers, unless they are known. One that is asleep is asked as well: its
computer knows its lists. Computers that do not know these requests offer nothing.

**Names.** A resource has its own URI, or `a2c://computer/server/URI` if another one has that already (pages of apps
always have such a URI, see `qualified`); a prompt has the
first of `prompt`, `computer__prompt` and `office__computer__prompt` that was free when it came. What was once given to
an MCP server of a computer is given to no other for as long as the agent runs, so nothing that a program has noted down
becomes that of another computer.

All of this runs in the agent's event loop. The registry belongs to the program, which may change it in any thread: what
is taken out there is put back only when its computer lists it again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from a2c_smcp.agent.desktops import Seat
from a2c_smcp.agent.reading.answers import (
    APP_SCHEME,
    MCPResult,
    ReadOptions,
    answered,
    options_for,
    qualified,
    with_prefix,
)
from a2c_smcp.agent.standing_requests import Refresher
from a2c_smcp.agent.toolbox import AgentLoop
from a2c_smcp.endpoint import Reconnect
from a2c_smcp.errors import SMCPError, Unavailable
from a2c_smcp.mcp_events import ServerInfo
from a2c_smcp.protocol.operations import COMPLETE, MCPList, MCPOperation
from a2c_smcp.registry import MCPRegistry
from a2c_smcp.registry.calls.context import ToolCaller, tool_caller
from a2c_smcp.registry.content import RawResult
from a2c_smcp.registry.sources import (
    ENTRIES,
    IN_A_LOOP,
    MAX_LISTED,
    BothWays,
    Entry,
    Follow,
    Following,
    PromptEntry,
    remote_entry,
)

logger = logging.getLogger(__name__)

_MOST_GIVEN = 100_000

Request: TypeAlias = Callable[[dict[str, Any], ToolCaller | None], Coroutine[Any, Any, MCPResult]]


class ReadsSeats(Protocol):
    """The requests that are made of a computer, and how changes of a resource are followed."""

    async def servers(self, computer: str, office: str | None) -> list[ServerInfo]: ...
    async def whole_list(
        self, kind: MCPList, computer: str, mcp_server: str | None, office: str | None
    ) -> MCPResult: ...
    async def ask(
        self,
        operation: MCPOperation,
        computer: str,
        wanted: Mapping[str, Any],
        office: str | None,
        options: ReadOptions,
    ) -> MCPResult: ...
    async def follow(self, seat: Seat, mcp_server: str, uri: str, listener: Callable[[str], None]) -> None: ...
    async def unfollow(self, seat: Seat, mcp_server: str, uri: str, listener: Callable[[str], None]) -> None: ...


class ReadablePlace(NamedTuple):
    """Where an entry of the registry is from: the computer, its MCP server, and the URI or name that it has there.

    `prefix` is what its URI in the registry begins with, before that.
    """

    seat: Seat
    mcp_server: str
    key: str
    prefix: str = ""


_LISTED = ("ready", "asleep")


class _ServerList(NamedTuple):
    """One list of one MCP server."""

    server: str
    kind: MCPList


@dataclass(slots=True)
class _ComputerListings:
    """The lists of a computer, and the entries that the registry has of it, by list and own name."""

    lists: dict[_ServerList, list[dict[str, Any]]] = field(default_factory=dict)
    outdated: set[_ServerList] = field(default_factory=set)
    completing: set[str] = field(default_factory=set)
    entries: dict[tuple[_ServerList, str], Entry] = field(default_factory=dict)
    left_out: bool = False

    def knows(self, wanted: _ServerList) -> bool:
        return wanted in self.lists and wanted not in self.outdated

    def keep(self, servers: Mapping[str, ServerInfo]) -> None:
        """Keep the lists of servers that still have them. On older computers one that is asleep is `stopped`."""
        usable = {name: server for name, server in servers.items() if server.get("state") in (*_LISTED, "stopped")}
        lists = self.lists.items()
        self.lists = {each: found for each, found in lists if _has_list(usable.get(each.server), each.kind)}
        self.outdated &= self.lists.keys()
        self.completing = {name for name, server in usable.items() if _declares(server, "completions")}


class RegisteredReadables:
    """Keeps the registry equal to what the computers list, if that `is_wanted`."""

    def __init__(self, registry: MCPRegistry, source: ReadsSeats, pauses: Reconnect) -> None:
        self.is_wanted = True
        self._registry = registry
        self._source = source
        self._offers: dict[Seat, _ComputerListings] = {}
        self._given: dict[tuple[type[Entry], str], tuple[Seat, str]] = {}
        self._refreshes = Refresher(self._fetch, pauses)

    def open(self) -> None:
        self._loop = AgentLoop(asyncio.get_running_loop())
        self._refreshes.open()

    async def close(self) -> None:
        await self._refreshes.close()
        for seat in [*self._offers]:
            self.forget(seat)

    async def settle(self, seats: Iterable[Seat], timeout: float) -> None:
        """Wait until each of these computers was asked once, at most `timeout` seconds."""
        await self._refreshes.settle(seats, timeout)

    def request(self, seat: Seat) -> None:
        """Something may have changed on a computer."""
        if self.is_wanted:
            self._refreshes.request(seat)

    def on_list_changed(self, seat: Seat, server: str | None, kinds: Iterable[MCPList]) -> None:
        """These lists of a server have changed. If the server is not known by this name, those of all have."""
        if offers := self._offers.get(seat):
            named = {each for each in offers.lists if each.kind in kinds and each.server == server}
            offers.outdated |= named or {each for each in offers.lists if each.kind in kinds}
        self.request(seat)

    def doubt_all(self) -> None:
        """Changes may have been missed. What is listed stays until the computers have answered."""
        for offers in self._offers.values():
            offers.outdated |= offers.lists.keys()

    def forget(self, seat: Seat) -> None:
        """A computer has left."""
        self._refreshes.drop(seat)
        if offers := self._offers.pop(seat, None):
            self._registry.update_readable(remove=offers.entries.values())
            self._give_others_their_place()

    async def _fetch(self, seat: Seat) -> None:
        offers = self._offers.setdefault(seat, _ComputerListings())
        known = {server["name"]: server for server in await self._servers_of(seat)}
        offers.keep(known)
        for name, server in known.items():
            for wanted in (_ServerList(name, kind) for kind in ENTRIES):
                if server.get("state") in _LISTED and _has_list(server, wanted.kind) and not offers.knows(wanted):
                    await self._read_list(seat, wanted, offers)
        if self._offers.get(seat) is offers:
            self._register(seat, offers)

    async def _servers_of(self, seat: Seat) -> list[ServerInfo]:
        try:
            return await self._source.servers(seat.computer, seat.office)
        except Unavailable:
            raise
        except SMCPError as error:
            logger.info("%s: its resources and prompts are not listed: %s", seat, error)
            return []

    async def _read_list(self, seat: Seat, wanted: _ServerList, offers: _ComputerListings) -> None:
        """A list that cannot be read is empty, until the computer announces another change."""
        offers.outdated.discard(wanted)
        try:
            found = await self._source.whole_list(wanted.kind, seat.computer, wanted.server, seat.office)
        except SMCPError as error:
            logger.info("%s: the %s of %s are not listed: %s", seat, wanted.kind.listed, wanted.server, error)
            offers.lists[wanted] = []
        else:
            offers.lists[wanted] = found[wanted.kind.mcp_field][:MAX_LISTED]

    def _register(self, seat: Seat, offers: _ComputerListings) -> None:
        """Have exactly what is listed in the registry. An entry whose listing has not changed stays as it is."""
        before, offers.entries, offers.left_out = offers.entries, {}, False
        new: dict[tuple[type[Entry], str], Entry] = {}
        for wanted, listing in [(wanted, each) for wanted, listed in offers.lists.items() for each in listed]:
            own = wanted, str(listing[wanted.kind.key])
            mine = before.get(own)
            if mine and mine.listing == _shown(listing, wanted.kind, mine.key):
                offers.entries[own] = mine
            elif key := self._key(seat, *own, mine, new):
                entry = self._entry(seat, wanted, listing, key, can_complete=wanted.server in offers.completing)
                offers.entries[own] = new[type(entry), key] = entry
            else:
                offers.left_out = True
        keys = {(type(each), each.key) for each in offers.entries.values()}
        gone = [each for each in before.values() if (type(each), each.key) not in keys]
        self._registry.update_readable(add=new.values(), remove=gone)
        if gone:
            self._give_others_their_place()

    def _give_others_their_place(self) -> None:
        """URIs of entries that are gone may be those of resources that were left out."""
        for seat, offers in self._offers.items():
            if offers.left_out:
                offers.left_out = False
                self._refreshes.request(seat)

    def _key(
        self,
        seat: Seat,
        wanted: _ServerList,
        own: str,
        mine: Entry | None,
        new: Mapping[tuple[type[Entry], str], Entry],
    ) -> str | None:
        """The URI or name under which it is registered: the one that it has, or the first that is free."""
        cls, place = ENTRIES[wanted.kind], (seat, wanted.server)
        names = _names(seat, wanted, own)
        for name in [mine.key, *names] if mine else names:
            other = self._registry.entry(cls, name) or new.get((cls, name))
            if (other is None or other is mine) and self._given.get((cls, name), place) == place:
                self._given[cls, name] = place
                if len(self._given) > _MOST_GIVEN:
                    del self._given[next(iter(self._given))]
                return name
        return None

    # Entries

    def _entry(
        self, seat: Seat, wanted: _ServerList, listing: dict[str, Any], key: str, *, can_complete: bool
    ) -> Entry:
        kind, own = wanted.kind, str(listing[wanted.kind.key])
        prefix = "" if ENTRIES[kind] is PromptEntry else key.removesuffix(own)
        place = ReadablePlace(seat, wanted.server, own, prefix)
        request, follow, shown = partial(self._request, place), self._follow(place), _shown(listing, kind, key)
        return remote_entry(kind, shown, own, request, follow, str(seat), place, can_complete=can_complete)

    def _request(
        self, place: ReadablePlace, operation: MCPOperation, params: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> BothWays:
        """A request whose caller answers the questions of the MCP server. A completion asks none."""

        async def request(given: dict[str, Any], caller: ToolCaller | None) -> MCPResult:
            def send(options: ReadOptions) -> Coroutine[Any, Any, MCPResult]:
                wanted = {"mcp_server": place.mcp_server, **params(given)}
                return self._source.ask(operation, place.seat.computer, wanted, place.seat.office, options)

            if caller is None or operation is COMPLETE:
                return with_prefix(place.prefix, await send({}))
            options = options_for(caller.client, caller.capabilities)
            return with_prefix(place.prefix, await answered(send, options, caller.request))

        return self._both_ways(request)

    def _both_ways(self, request: Request) -> BothWays:
        """A request as functions to be blocked on in any thread, and to be awaited in any event loop.

        Who calls them is known only there, not in the loop in which the request is made.
        """
        loop = self._loop

        async def raw(given: dict[str, Any], caller: ToolCaller | None) -> RawResult:
            return RawResult(await request(given, caller))

        async def acall(given: dict[str, Any]) -> Any:
            return await loop.done(raw(given, tool_caller()))

        return BothWays(lambda given: loop.wait(raw(given, tool_caller()), IN_A_LOOP), acall)

    def _follow(self, place: ReadablePlace) -> Follow:
        """Subscribe for as long as the resource is watched in the registry. Called in any thread."""

        def follow(uri: str) -> Following:
            followed = place.seat, place.mcp_server, uri.removeprefix(place.prefix)

            def listener(_: str) -> None:
                self._registry.resource_updated(uri)

            def stop() -> None:
                with suppress(Unavailable):
                    self._loop.begin(self._quietly(self._source.unfollow(*followed, listener)))

            begun = None
            with suppress(Unavailable):
                begun = self._loop.begin(self._quietly(self._source.follow(*followed, listener)))
            return Following(stop, begun)

        return follow

    async def _quietly(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except SMCPError as error:
            logger.warning("changes of a resource are not announced: %s", error)


def _declares(server: ServerInfo, capability: str) -> bool:
    capabilities: Any = server.get("capabilities")
    return isinstance(capabilities, Mapping) and capability in capabilities


def _has_list(server: ServerInfo | None, kind: MCPList) -> bool:
    return server is not None and _declares(server, kind.capability)


def _names(seat: Seat, wanted: _ServerList, own: str) -> list[str]:
    """The URIs or names that a listing may have in the registry, the best first."""
    if ENTRIES[wanted.kind] is PromptEntry:
        return [own, f"{seat.computer}__{own}", f"{seat.office}__{seat.computer}__{own}"]
    places = (seat.computer, wanted.server)
    unique = [qualified(own, *each) for each in (places, (seat.office, *places))]
    return unique if own.startswith(APP_SCHEME) else [own, *unique]


def _shown(listing: Mapping[str, Any], kind: MCPList, key: str) -> dict[str, Any]:
    """The listing in the registry: as MCP has it, under its name there."""
    return {**{name: value for name, value in listing.items() if name != "mcp_server"}, kind.key: key}
