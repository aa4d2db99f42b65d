"""The resources and prompts of computers in the agent's registry, beside those of the program.

**What is listed.** When a computer has entered or says that something has changed, it is asked for its MCP servers, and
each of them that is ready for the lists that it offers, unless they are known. A server that is asleep keeps what it
has listed: to ask would wake it. Computers that do not know these requests offer nothing.

**Names.** A resource has its own URI, or `a2c://computer/server/URI` if another one has that already; a prompt has the
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
from typing import Any, NamedTuple, Protocol, TypeAlias

from a2c_smcp.agent.reading.answers import PROMPTS, RESOURCES, TEMPLATES, ListKind, MCPResult
from a2c_smcp.agent.reading.qualified_uris import uri_prefix, with_prefix
from a2c_smcp.agent.reading.rounds import ReadOptions, answered_by
from a2c_smcp.agent.refresh import Refresher
from a2c_smcp.agent.toolbox import AgentLoop
from a2c_smcp.agent.types import Seat
from a2c_smcp.endpoint import Reconnect
from a2c_smcp.errors import SMCPError, Unavailable
from a2c_smcp.mcp_events import ServerInfo
from a2c_smcp.registry import MCPRegistry
from a2c_smcp.registry.calls.caller import ToolCaller, tool_caller
from a2c_smcp.registry.readable.entries import (
    MAX_LISTED,
    BothWays,
    Entry,
    Follow,
    Following,
    PromptEntry,
    ResourceEntry,
    TemplateEntry,
    as_texts,
)
from a2c_smcp.registry.readable.sources import IN_A_LOOP
from a2c_smcp.registry.readable.uri_templates import loose_matcher, variables_in
from a2c_smcp.registry.results import RawResult

__all__ = ["ReadablePlace", "ReadsSeats", "RegisteredReadables"]

logger = logging.getLogger(__name__)

_CAPABILITIES = {RESOURCES: "resources", TEMPLATES: "resources", PROMPTS: "prompts"}
_MOST_GIVEN = 100_000
_ENTRIES: dict[ListKind, type[Entry]] = {RESOURCES: ResourceEntry, TEMPLATES: TemplateEntry, PROMPTS: PromptEntry}

Request: TypeAlias = Callable[[dict[str, Any], ToolCaller | None], Coroutine[Any, Any, MCPResult]]


class ReadsSeats(Protocol):
    """The requests that are made of a computer, and how changes of a resource are followed."""

    async def servers(self, computer: str, office: str | None) -> list[ServerInfo]: ...
    async def whole_list(
        self, kind: ListKind, computer: str, mcp_server: str | None, office: str | None
    ) -> MCPResult: ...
    async def request(
        self, seat: Seat, kind: ListKind, mcp_server: str, wanted: Mapping[str, Any], options: ReadOptions
    ) -> MCPResult: ...
    async def complete(self, seat: Seat, about: Mapping[str, Any], known: Mapping[str, str]) -> MCPResult: ...
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


class _ServerList(NamedTuple):
    """One list of one MCP server."""

    server: str
    kind: ListKind


@dataclass(slots=True)
class _ComputerOffers:
    """What a computer lists, and the entries that the registry has of it, by list and own name."""

    lists: dict[_ServerList, list[dict[str, Any]]] = field(default_factory=dict)
    outdated: set[_ServerList] = field(default_factory=set)
    completing: set[str] = field(default_factory=set)
    entries: dict[tuple[_ServerList, str], Entry] = field(default_factory=dict)
    left_out: bool = False

    def knows(self, wanted: _ServerList) -> bool:
        return wanted in self.lists and wanted not in self.outdated

    def keep(self, servers: Mapping[str, ServerInfo]) -> None:
        """Keep the lists of servers that still have them. One that is asleep is `stopped`."""
        usable = {name: server for name, server in servers.items() if server.get("state") in ("ready", "stopped")}
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
        self._offers: dict[Seat, _ComputerOffers] = {}
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

    def on_list_changed(self, seat: Seat, server: str | None, kinds: Iterable[ListKind]) -> None:
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
        offers = self._offers.setdefault(seat, _ComputerOffers())
        known = {server["name"]: server for server in await self._servers_of(seat)}
        offers.keep(known)
        for name, server in known.items():
            for wanted in (_ServerList(name, kind) for kind in _CAPABILITIES):
                if server.get("state") == "ready" and _has_list(server, wanted.kind) and not offers.knows(wanted):
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

    async def _read_list(self, seat: Seat, wanted: _ServerList, offers: _ComputerOffers) -> None:
        """A list that cannot be read is empty, until the computer announces another change."""
        offers.outdated.discard(wanted)
        try:
            found = await self._source.whole_list(wanted.kind, seat.computer, wanted.server, seat.office)
        except SMCPError as error:
            logger.info("%s: the %s of %s are not listed: %s", seat, wanted.kind.field, wanted.server, error)
            offers.lists[wanted] = []
        else:
            offers.lists[wanted] = found[wanted.kind.mcp_field][:MAX_LISTED]

    def _register(self, seat: Seat, offers: _ComputerOffers) -> None:
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
        cls, place = _ENTRIES[wanted.kind], (seat, wanted.server)
        names = _names(seat, wanted, own)
        for name in [mine.key, *names] if mine else names:
            other = self._registry.entry(cls, name) or new.get((cls, name))
            if (other is None or other is mine) and self._given.get((cls, name), place) == place:
                self._give(cls, name, place)
                return name
        return None

    def _give(self, cls: type[Entry], name: str, place: tuple[Seat, str]) -> None:
        self._given[cls, name] = place
        if len(self._given) > _MOST_GIVEN:
            del self._given[next(iter(self._given))]

    # Entries

    def _entry(
        self, seat: Seat, wanted: _ServerList, listing: dict[str, Any], key: str, *, can_complete: bool
    ) -> Entry:
        server, kind, shown = wanted.server, wanted.kind, _shown(listing, wanted.kind, key)
        origin, own = str(seat), str(listing[kind.key])
        if kind is PROMPTS:
            arguments = [str(each.get("name")) for each in listing.get("arguments") or () if isinstance(each, dict)]
            complete = self._completions(seat, server, {"type": "ref/prompt", "name": own}, arguments, can_complete)
            place = ReadablePlace(seat, server, own)
            read = self._read(place, kind, lambda given: {"name": own, "arguments": as_texts(given)})
            return PromptEntry(key, shown, read, complete, origin, place)
        place = ReadablePlace(seat, server, own, key.removesuffix(own))
        read = self._read(place, kind, lambda given: {"uri": str(given.get("uri", own)).removeprefix(place.prefix)})
        follow = self._follow(place)
        if kind is RESOURCES:
            return ResourceEntry(key, shown, read, origin, follow, place)
        complete = self._completions(
            seat, server, {"type": "ref/resource", "uri": own}, variables_in(own), can_complete
        )
        return TemplateEntry(key, shown, read, loose_matcher(key), complete, origin, follow, place)

    def _read(
        self, place: ReadablePlace, kind: ListKind, about: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> BothWays:
        """What the MCP server asks first is put to the caller."""

        async def read(given: dict[str, Any], caller: ToolCaller | None) -> MCPResult:
            def send(options: ReadOptions) -> Coroutine[Any, Any, MCPResult]:
                return self._source.request(place.seat, kind, place.mcp_server, about(given), options)

            return with_prefix(place.prefix, await answered_by(caller, send))

        return self._both_ways(read)

    def _completions(
        self, seat: Seat, server: str, ref: dict[str, Any], arguments: Iterable[str], can_complete: bool
    ) -> dict[str, BothWays]:
        def completing(name: str) -> BothWays:
            def complete(typed: dict[str, Any], _: ToolCaller | None) -> Coroutine[Any, Any, MCPResult]:
                argument = {"name": name, "value": typed["value"]}
                about = {"mcp_server": server, "ref": ref, "argument": argument}
                return self._source.complete(seat, about, typed["arguments"])

            return self._both_ways(complete)

        return {name: completing(name) for name in arguments} if can_complete else {}

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


def _has_list(server: ServerInfo | None, kind: ListKind) -> bool:
    return server is not None and _declares(server, _CAPABILITIES[kind])


def _names(seat: Seat, wanted: _ServerList, own: str) -> list[str]:
    """The URIs or names that a listing may have in the registry, the best first."""
    if wanted.kind is PROMPTS:
        return [own, f"{seat.computer}__{own}", f"{seat.office}__{seat.computer}__{own}"]
    places = (seat.computer, wanted.server)
    return [own, *(f"{uri_prefix(*each)}{own}" for each in (places, (seat.office, *places)))]


def _shown(listing: Mapping[str, Any], kind: ListKind, key: str) -> dict[str, Any]:
    """What the registry lists: as MCP has it, under the name that it has there."""
    return {**{name: value for name, value in listing.items() if name != "mcp_server"}, kind.key: key}
