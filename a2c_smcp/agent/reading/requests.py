"""The requests by which an agent reads what MCP servers offer, with a cache, and what it does when that changes.

Answers are in MCP's own shape (`answers.py`). Those that say how long they may be kept are kept (`AnswerCache`) until a
notice of their computer, or the loss of the connection, makes them doubtful.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from time import monotonic
from typing import Any, NamedTuple, TypeAlias, cast

from a2c_smcp import mcp_events
from a2c_smcp.agent.blobs.downloads import complete_items
from a2c_smcp.agent.desktops import Seat
from a2c_smcp.agent.events import EventDispatcher
from a2c_smcp.agent.reading import answers
from a2c_smcp.agent.reading.answers import MCPResult, ReadOptions, WholeList, ttl_of
from a2c_smcp.agent.reading.registry_sync import RegisteredReadables
from a2c_smcp.agent.requests import Requests
from a2c_smcp.agent.standing_requests import SeatOf, StandingRequests, Subscription
from a2c_smcp.agent.toolbox import Toolbox
from a2c_smcp.endpoint import Reconnect
from a2c_smcp.errors import BadRequest, CallTimeout, NotFound, ToolNotFound
from a2c_smcp.protocol import operations
from a2c_smcp.protocol.codec import dumps, loads_exactly
from a2c_smcp.protocol.operations import MCPList, MCPOperation
from a2c_smcp.protocol.results import CallToolResult

# Answers that are kept for as long as their MCP server allows (`ttlMs`), unless the computer announces a change.
#
# Each is kept as JSON: its size is known, and a caller that changes what it was given changes nothing here. What may be
# out of date is dropped rather than compared: a notice drops all that it may be about. An answer to a request that was
# sent before the last drop may be older than the change, and is not kept (`generation`).

MAX_ENTRIES = 256
MAX_BYTES = 16 * 1024 * 1024
MAX_ENTRY_BYTES = 4 * 1024 * 1024
MAX_TTL = 24 * 3600.0  # seconds


class CacheKey(NamedTuple):
    """A request. Without an office, it was sent to the computer of this name in any office.

    `asks` is what the MCP server was told about questions, as JSON: what it answers may depend on that.
    """

    office: str | None
    computer: str
    event: str
    mcp_server: str | None
    uri: str | None = None
    asks: str = "{}"

    def is_at(self, seat: Seat) -> bool:
        return self.computer == seat.computer and self.office in (None, seat.office)


class _CachedAnswer(NamedTuple):
    until: float
    json: bytes


class AnswerCache:
    """Bounded in number and bytes; of too many, those that were asked for least recently go first."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.generation = 0
        self._clock = clock
        self._kept: dict[CacheKey, _CachedAnswer] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: CacheKey) -> MCPResult | None:
        """The kept answer. Its `ttlMs` is what is left of it."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        left = int((kept.until - self._clock()) * 1000)
        if left <= 0:
            self._remove(key)
            return None
        self._kept[key] = self._kept.pop(key)
        answer: MCPResult = loads_exactly(kept.json)
        return answer | {"ttlMs": left}

    def put(self, key: CacheKey, answer: MCPResult, generation: int) -> None:
        """Keep an answer, if it may be kept. `generation` is the one in which the request was sent."""
        ttl = min(ttl_of(answer) / 1000, MAX_TTL)
        if ttl <= 0 or generation != self.generation or _least_size(answer) > MAX_ENTRY_BYTES:
            return
        json = dumps(answer).encode()
        if len(json) > MAX_ENTRY_BYTES:
            return
        self._remove(key)
        self._kept[key] = _CachedAnswer(self._clock() + ttl, json)
        self._size += len(json)
        while len(self._kept) > MAX_ENTRIES or self._size > MAX_BYTES:
            self._remove(next(iter(self._kept)))

    def drop(self, is_outdated: Callable[[CacheKey], bool] = lambda key: True) -> None:
        """Drop these answers, or all."""
        self.generation += 1
        for key in [key for key in self._kept if is_outdated(key)]:
            self._remove(key)

    def _remove(self, key: CacheKey) -> None:
        if kept := self._kept.pop(key, None):
            self._size -= len(kept.json)


def _least_size(answer: Mapping[str, Any]) -> int:
    """The size of its contents. To write a file of 100 MB as JSON only to count it would take too long."""
    contents = answer.get("contents")
    parts = contents if isinstance(contents, list) else ()
    values = (part.get(field) for part in parts for field in ("text", "blob"))
    return sum(len(value) for value in values if isinstance(value, str))


# Subscriptions to resources: kept in force, and who is told when a resource has changed.
#
# A notice names the MCP server as its computer does, by name or by bundle id, which need not be the word of the
# subscription; and its URI may be that of a part of the resource (MCP: a "sub-resource"). So a notice is for the
# subscriptions to that server, or if there are none, for those to the same resource of any server of that computer.

OnUpdate: TypeAlias = Callable[[str], Any]
"""Called with the URI of a resource that has changed. It may be async."""

Listeners: TypeAlias = tuple[OnUpdate, ...]


class ResourceSubscriptions:
    """The resources that an agent is told about."""

    def __init__(self, ask: Requests, events: EventDispatcher, seat_of: SeatOf, pauses: Reconnect) -> None:
        self._ask = ask
        self._events = events
        self.standing: StandingRequests[Subscription, Listeners] = StandingRequests(self._send, seat_of, pauses)

    async def subscribe(self, wanted: Subscription, on_update: OnUpdate | None) -> None:
        """Subscribe, or add a listener to a subscription. Raises the computer's refusal."""
        before = next((listeners for each, listeners in self._same(wanted) if each == wanted), ())
        listener = on_update or _for_events_only
        await self.standing.set(wanted, before if listener in before else (*before, listener))

    async def unsubscribe(self, unwanted: Subscription) -> None:
        """End a subscription with all its listeners. One that cannot be ended on the computer lapses there."""
        for each, _ in self._same(unwanted):
            self.standing.stop(each)
        data = {"mcp_server": unwanted.mcp_server, "uri": unwanted.uri}
        try:
            await self._ask.ask(operations.UNSUBSCRIBE_RESOURCE, unwanted.computer, data, unwanted.office)
        except NotFound:
            return

    async def remove(self, wanted: Subscription, listener: OnUpdate) -> None:
        """Remove a listener, and end the subscription if it was the last."""
        before = next((listeners for each, listeners in self._same(wanted) if each == wanted), ())
        if left := tuple(each for each in before if each is not listener):
            self.standing.change(wanted, left)
        elif before:
            await self.unsubscribe(wanted)

    def on_told(self, seat: Seat, mcp_server: str, uri: str) -> None:
        """A computer tells that a resource has changed."""
        all_of_uri = [(each, listeners) for each, listeners in self.standing.at(seat) if is_part_of(uri, each.uri)]
        of_server = [(each, listeners) for each, listeners in all_of_uri if each.mcp_server == mcp_server]
        for each, listeners in of_server or all_of_uri:
            about = (seat.computer, each.mcp_server, uri, seat.office)
            self._events.dispatch_once("on_resource_updated", about)
            for listener in listeners:
                if listener is not _for_events_only:
                    self._events.dispatch_once(listener, (uri,))

    def _same(self, wanted: Subscription) -> Iterable[tuple[Subscription, Listeners]]:
        """The subscriptions to this resource, also those that name the office or do not."""
        for each, listeners in self.standing.all():
            is_same_office = each.office == wanted.office or None in (each.office, wanted.office)
            if each[1:] == wanted[1:] and is_same_office:
                yield each, listeners

    async def _send(self, wanted: Subscription, listeners: Listeners, seat: Mapping[str, str]) -> None:
        data = {"mcp_server": wanted.mcp_server, "uri": wanted.uri, **seat}
        await self._ask.ask(operations.SUBSCRIBE_RESOURCE, wanted.computer, data, wanted.office)


def _for_events_only(uri: str) -> None:
    """The listener of a subscription that is told to `on_resource_updated` alone."""


def is_part_of(uri: str, whole: str) -> bool:
    """True if a URI is that of a resource, or of a part of it."""
    return uri == whole or uri.startswith(whole if whole.endswith("/") else (f"{whole}/", f"{whole}#", f"{whole}?"))


_LIST_LIMIT = 120.0
"""Seconds for all pages of a list. Each page has the limit of a request."""


class Reading:
    """Reads what MCP servers offer. Methods that send a request raise the error of the answer."""

    def __init__(
        self, ask: Requests, events: EventDispatcher, toolbox: Toolbox, seat_of: SeatOf, pauses: Reconnect
    ) -> None:
        self._ask = ask
        self._events = events
        self._toolbox = toolbox
        self.cache = AnswerCache()
        self.subscriptions = ResourceSubscriptions(ask, events, seat_of, pauses)
        self.registered = RegisteredReadables(toolbox.registry, self, pauses)
        self.notices: dict[str, Callable[[dict[str, Any]], None]] = {
            mcp_events.TELL_RESOURCE_NOTIFICATION: self._on_resource_told,
            **{each.changed: partial(self._on_list_changed, each.changed) for each in operations.MCP_LISTS},
        }

    def open(self) -> None:
        self.subscriptions.standing.open()
        self.registered.open()

    async def close(self) -> None:
        self.cache.drop()
        await self.registered.close()
        await self.subscriptions.standing.close()

    # Requests

    async def servers(self, computer: str, office: str | None) -> list[mcp_events.ServerInfo]:
        servers = await self._ask.listed(operations.GET_SERVERS, computer, {}, office)
        named = [server for server in servers if isinstance(server, dict) and isinstance(server.get("name"), str)]
        return cast(list[mcp_events.ServerInfo], named)  # their other fields are as they came

    async def whole_list(self, kind: MCPList, computer: str, mcp_server: str | None, office: str | None) -> MCPResult:
        """A list with all its pages."""
        key, generation = CacheKey(office, computer, kind.event, mcp_server), self.cache.generation
        if kept := self.cache.get(key):
            return kept
        try:
            async with asyncio.timeout(_LIST_LIMIT):
                found = await self._fetch_list(kind, key)
        except TimeoutError:
            raise CallTimeout(f"the list of {kind.listed} was not complete within {_LIST_LIMIT:g} s") from None
        self.cache.put(key, found, generation)
        return found

    async def _fetch_list(self, kind: MCPList, key: CacheKey) -> MCPResult:
        pages = WholeList(kind)
        server = {} if key.mcp_server is None else {"mcp_server": key.mcp_server}
        while True:
            cursor = {} if pages.cursor is None else {"cursor": pages.cursor}
            data = {**server, **kind.asks_for, **cursor}
            if not pages.add(await self._ask.ask(kind, key.computer, data, key.office)):
                return pages.result()

    async def ask(
        self,
        operation: MCPOperation,
        computer: str,
        wanted: Mapping[str, Any],
        office: str | None,
        options: ReadOptions,
    ) -> MCPResult:
        """Send a request, and return the MCP server's whole result. Fields that are `None` are not sent."""
        more = _fields(options, operation) | ({"blobs": True} if operation.contents else {})
        data = {name: value for name, value in wanted.items() if value is not None} | more
        is_kept = operation.is_kept and not _is_answer(more)
        asked = (*operation.params, "questions", "client_capabilities")
        asks = {field: data[field] for field in asked if field in data}
        key = CacheKey(office, computer, operation.event, wanted["mcp_server"], wanted.get("uri"), dumps(asks))
        generation = self.cache.generation
        if is_kept and (kept := self.cache.get(key)):
            return kept
        found = answers.result_in(operation, await self._ask.ask(operation, computer, data, office))
        if answers.is_input_required(found):
            return found
        if operation.contents:
            whole = await self._whole(operation.contents.of(found), computer, office, options)
            found = operation.contents.replaced(found, whole)
        if is_kept:
            self.cache.put(key, found, generation)
        return found

    async def _whole(self, items: list[Any], computer: str, office: str | None, options: ReadOptions) -> list[Any]:
        """The items with their large contents."""
        transfers = self._ask.transfers
        async with transfers.reporting(options.get("on_transfer")) as on_bytes:
            return await complete_items(transfers.downloads, items, computer, office, on_bytes)

    async def subscribe(
        self, computer: str, mcp_server: str, uri: str, on_update: OnUpdate | None, office: str | None
    ) -> None:
        seats = self._toolbox.seats_of(computer, office)
        if len(seats) == 1:  # a subscription belongs to a seat
            office = seats[0].office
        wanted = Subscription(office, computer, mcp_server, uri)
        await self.subscriptions.subscribe(wanted, on_update)

    async def unsubscribe(self, computer: str, mcp_server: str, uri: str, office: str | None) -> None:
        await self.subscriptions.unsubscribe(Subscription(office, computer, mcp_server, uri))

    async def linked(
        self, result: CallToolResult, link: Mapping[str, Any] | str | None, mcp_server: str | None
    ) -> Subscription:
        """The resource that a tool's result links to: one of the tool's MCP server, unless another is given."""
        origin = result.origin
        if origin is None:
            raise BadRequest("the result does not say which computer it is from: use read_resource")
        if link is None and len(result.links) != 1:
            about = f"the result has {len(result.links)} links: say which, such as result.links[0]"
            raise BadRequest(about, field="link")
        uri = _uri_of(result.links[0] if link is None else link)
        server = mcp_server or await self._server_of(origin.computer, origin.tool, origin.office)
        return Subscription(origin.office, origin.computer, server, uri)

    async def _server_of(self, computer: str, tool: str, office: str | None) -> str:
        """The MCP server that a tool belongs to, by its bundle id."""
        seats = self._toolbox.seats_of(computer, office)
        known = self._toolbox.tool(seats[0], tool) if len(seats) == 1 else None
        listed = [known] if known else await self._ask.tools(computer, office)
        found = next((each for each in listed if isinstance(each, dict) and each.get("name") == tool), None)
        if found is None:
            raise ToolNotFound(repr(tool), toolId=tool)
        server = found.get("bundle_id")
        if not isinstance(server, str) or not server:
            raise BadRequest(f"computer {computer!r} does not say which MCP server {tool!r} is of: give server=")
        return server

    # What the entries of the registry use (`registered.ReadsSeats`)

    async def follow(self, seat: Seat, mcp_server: str, uri: str, listener: OnUpdate) -> None:
        await self.subscriptions.subscribe(Subscription(seat.office, seat.computer, mcp_server, uri), listener)

    async def unfollow(self, seat: Seat, mcp_server: str, uri: str, listener: OnUpdate) -> None:
        await self.subscriptions.remove(Subscription(seat.office, seat.computer, mcp_server, uri), listener)

    # Notices and other events

    def on_enter(self, seat: Seat, *, is_new: bool) -> None:
        """A computer has entered, or is still there after a reconnect."""
        if is_new:
            self._drop(seat, lambda key: True)
            self.subscriptions.standing.on_enter(seat)
        self.registered.request(seat)

    def on_change(self, seat: Seat) -> None:
        """The servers of a computer may be others now."""
        self._drop(seat, lambda key: True)
        self.subscriptions.standing.on_change(seat)
        self.registered.request(seat)

    def on_connection_lost(self) -> None:
        """Changes are not announced."""
        self.cache.drop()
        self.registered.doubt_all()

    def on_seated(self, office: str) -> None:
        self.subscriptions.standing.on_seated(office)

    def forget(self, seat: Seat) -> None:
        """A computer has left."""
        self._drop(seat, lambda key: True)
        self.registered.forget(seat)

    def _drop(self, seat: Seat, is_outdated: Callable[[CacheKey], bool]) -> None:
        self.cache.drop(lambda key: key.is_at(seat) and is_outdated(key))

    def leave(self, office: str) -> None:
        """The office was left."""
        self.cache.drop(lambda key: key.office in (None, office))
        self.subscriptions.standing.leave(office)

    def _on_resource_told(self, data: dict[str, Any]) -> None:
        server, uri = data.get("mcp_server"), data.get("uri")
        if not isinstance(server, str) or not isinstance(uri, str):
            return

        def is_outdated(key: CacheKey) -> bool:
            return key.uri is not None and (is_part_of(uri, key.uri) or is_part_of(key.uri, uri))

        for seat in self._seats_in(data):
            self._drop(seat, is_outdated)
            self.subscriptions.on_told(seat, server, uri)

    def _on_list_changed(self, notice: str, data: dict[str, Any]) -> None:
        """Answers of all servers of the computer are dropped: a server may be known by its name or its bundle id."""
        lists = [each for each in operations.MCP_LISTS if each.changed == notice]
        read = [each for each in operations.MCP_OPERATIONS if each.capability == lists[0].capability]
        events = {each.event for each in (*lists, *read)}
        server = data.get("mcp_server")
        named = server if isinstance(server, str) else None
        for seat in self._seats_in(data):
            self._drop(seat, lambda key: key.event in events)
            self.subscriptions.standing.on_change(seat)
            self.registered.on_list_changed(seat, named, lists)
            self._events.dispatch_once(f"on_{lists[0].capability}_changed", (seat.computer, named, seat.office))

    def _seats_in(self, data: dict[str, Any]) -> list[Seat]:
        computer, office = data.get("computer"), data.get("office_id")
        if not isinstance(computer, str):
            return []
        return self._toolbox.seats_of(computer, office if isinstance(office, str) else None)


def _fields(options: ReadOptions, operation: MCPOperation) -> dict[str, Any]:
    """The fields of the request that say what is wanted. Raises `BadRequest`, or `TypeError` for unknown options."""
    if unknown := options.keys() - ReadOptions.__annotations__.keys():
        name = operation.event.removeprefix("client:")
        raise TypeError(f"{name}() got an unexpected keyword argument {min(unknown)!r}")
    fields = {field: value for field, value in options.items() if value is not None and field != "on_transfer"}
    if fields.get("questions", "result") != "result":
        raise BadRequest('questions: must be "result"', field="questions")
    return {"questions": "result", **fields} if _is_answer(fields) else fields


def _is_answer(fields: Mapping[str, Any]) -> bool:
    """True if a request answers questions of the MCP server. Its result depends on a person and is not cached."""
    return not fields.keys().isdisjoint(("input_responses", "request_state"))


def _uri_of(link: Mapping[str, Any] | str) -> str:
    uri = link if isinstance(link, str) else link.get("uri")
    if not isinstance(uri, str):
        raise BadRequest("link: must be a URI, or a resource_link of a result", field="link")
    return uri
