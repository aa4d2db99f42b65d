"""The requests by which an agent reads what MCP servers offer, with a cache, and what it does when that changes.

Answers are in MCP's own shape (`answers.py`). Those that say how long they may be kept are kept (`cache.py`) until a
notice of their computer, or the loss of the connection, makes them doubtful.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from a2c_smcp import mcp_events
from a2c_smcp.agent.blobs import complete_items
from a2c_smcp.agent.events import EventDispatcher
from a2c_smcp.agent.reading import answers
from a2c_smcp.agent.reading.answers import ListKind, MCPResult, WholeList
from a2c_smcp.agent.reading.cache import AnswerCache, CacheKey
from a2c_smcp.agent.reading.registered import RegisteredReadables
from a2c_smcp.agent.reading.rounds import ReadOptions
from a2c_smcp.agent.reading.subscriptions import OnUpdate, ResourceSubscriptions, is_part_of
from a2c_smcp.agent.requests import Requests
from a2c_smcp.agent.standing_requests import Subscription
from a2c_smcp.agent.toolbox import Toolbox
from a2c_smcp.agent.types import Seat
from a2c_smcp.endpoint import Reconnect
from a2c_smcp.errors import BadRequest, CallTimeout, ToolNotFound
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.results import CallToolResult

__all__ = ["ReadOptions", "Reading"]

_LIST_LIMIT = 120.0
"""Seconds for all pages of a list. Each page has the limit of a request."""


class Reading:
    """What MCP servers offer to read. Methods that ask raise the error that the answer carries."""

    def __init__(self, ask: Requests, events: EventDispatcher, toolbox: Toolbox, pauses: Reconnect) -> None:
        self._ask = ask
        self._events = events
        self._toolbox = toolbox
        self.cache = AnswerCache()
        self.subscriptions = ResourceSubscriptions(ask, events, pauses)
        self.registered = RegisteredReadables(toolbox.registry, self, pauses)
        self.notices: dict[str, Callable[[dict[str, Any]], None]] = {
            mcp_events.TELL_RESOURCE_NOTIFICATION: self._on_resource_told,
            mcp_events.UPDATE_RESOURCE_LIST_NOTIFICATION: self._on_resources_changed,
            mcp_events.UPDATE_PROMPTS_NOTIFICATION: self._on_prompts_changed,
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
        return answers.servers_in(await self._ask.ask_newer(mcp_events.GET_SERVERS_EVENT, computer, {}, office))

    async def whole_list(self, kind: ListKind, computer: str, mcp_server: str | None, office: str | None) -> MCPResult:
        """A list with all its pages."""
        key, generation = CacheKey(office, computer, kind.event, mcp_server), self.cache.generation
        if kept := self.cache.get(key):
            return kept
        try:
            async with asyncio.timeout(_LIST_LIMIT):
                found = await self._fetch_list(kind, key)
        except TimeoutError:
            raise CallTimeout(f"the list of {kind.field} was not complete within {_LIST_LIMIT:g} s") from None
        self.cache.put(key, found, generation)
        return found

    async def _fetch_list(self, kind: ListKind, key: CacheKey) -> MCPResult:
        pages = WholeList(kind)
        about: dict[str, Any] = {} if key.mcp_server is None else {"mcp_server": key.mcp_server}
        if kind is answers.RESOURCES:
            about["titles"] = True
        while True:
            cursor = {} if pages.cursor is None else {"cursor": pages.cursor}
            if not pages.add(await self._ask.ask_newer(kind.event, key.computer, about | cursor, key.office)):
                return pages.result()

    async def resource(
        self, computer: str, mcp_server: str, uri: str, office: str | None, options: ReadOptions
    ) -> MCPResult:
        """What a resource contains."""
        more = _fields(options, "read_resource")
        asks = {field: more[field] for field in ("questions", "client_capabilities") if field in more}
        key = CacheKey(office, computer, mcp_events.READ_RESOURCE_EVENT, mcp_server, uri, dumps(asks))
        generation = self.cache.generation
        is_first = more.keys().isdisjoint(("input_responses", "request_state"))  # answers of a person are not kept
        if is_first and (kept := self.cache.get(key)):
            return kept
        data = {"mcp_server": mcp_server, "uri": uri, "blobs": True, **more}
        found = answers.contents_in(await self._ask.ask_newer(key.event, computer, data, office))
        if "contents" in found:
            found["contents"] = await self._whole(found["contents"], computer, office, options)
            if is_first:
                self.cache.put(key, found, generation)
        return found

    async def prompt(
        self,
        computer: str,
        mcp_server: str,
        name: str,
        arguments: Mapping[str, str] | None,
        office: str | None,
        options: ReadOptions,
    ) -> MCPResult:
        """A prompt with its arguments filled in."""
        more = _fields(options, "get_prompt")
        data: dict[str, Any] = {"mcp_server": mcp_server, "name": name, "blobs": True, **more}
        if arguments is not None:
            data["arguments"] = dict(arguments)
        found = answers.messages_in(await self._ask.ask_newer(mcp_events.GET_PROMPT_EVENT, computer, data, office))
        messages = found.get("messages", [])
        contents = [message.get("content") for message in messages]
        whole = await self._whole(contents, computer, office, options)
        for message, content in zip(messages, whole, strict=True):
            message["content"] = content
        return found

    async def _whole(self, items: list[Any], computer: str, office: str | None, options: ReadOptions) -> list[Any]:
        """The items with their large contents."""
        transfers = self._ask.transfers
        async with transfers.reporting(options.get("on_transfer")) as on_bytes:
            return await complete_items(transfers.downloads, items, computer, office, on_bytes)

    async def completion(
        self, computer: str, about: Mapping[str, Any], context: Mapping[str, Any] | None, office: str | None
    ) -> MCPResult:
        """Values that begin like the argument. `about` has `mcp_server`, `ref` and `argument`."""
        data = dict(about) if context is None else {**about, "context": dict(context)}
        return answers.completion_in(await self._ask.ask_newer(mcp_events.COMPLETE_EVENT, computer, data, office))

    async def subscribe(
        self, computer: str, mcp_server: str, uri: str, on_update: OnUpdate | None, office: str | None
    ) -> None:
        wanted = Subscription(self._office_of(computer, office), computer, mcp_server, uri)
        await self.subscriptions.subscribe(wanted, on_update)

    async def unsubscribe(self, computer: str, mcp_server: str, uri: str, office: str | None) -> None:
        await self.subscriptions.unsubscribe(Subscription(office, computer, mcp_server, uri))

    async def link(
        self, result: CallToolResult, link: Mapping[str, Any] | str | None, mcp_server: str | None, options: ReadOptions
    ) -> MCPResult:
        """What a link in a tool's result leads to: a resource of the tool's MCP server."""
        origin = result.origin
        if origin is None:
            raise BadRequest("the result does not say which computer it is from: use read_resource")
        uri = _uri_of(link) if link is not None else _only_link(result)
        server = mcp_server or await self._server_of(origin.computer, origin.tool, origin.office)
        return await self.resource(origin.computer, server, uri, origin.office, options)

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

    def _office_of(self, computer: str, office: str | None) -> str | None:
        """The office of a computer, if it is the only one of its name: a subscription belongs to a seat."""
        seats = self._toolbox.seats_of(computer, office)
        return seats[0].office if len(seats) == 1 else office

    # What the entries of the registry use (`registered.ReadsSeats`)

    async def request(
        self, seat: Seat, kind: ListKind, mcp_server: str, wanted: Mapping[str, Any], options: ReadOptions
    ) -> MCPResult:
        computer, office = seat.computer, seat.office
        if kind is answers.PROMPTS:
            return await self.prompt(computer, mcp_server, wanted["name"], wanted["arguments"], office, options)
        return await self.resource(computer, mcp_server, wanted["uri"], office, options)

    async def complete(self, seat: Seat, about: Mapping[str, Any], known: Mapping[str, str]) -> MCPResult:
        return await self.completion(seat.computer, about, {"arguments": known} if known else None, seat.office)

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

    def _on_resources_changed(self, data: dict[str, Any]) -> None:
        kinds = (answers.RESOURCES, answers.TEMPLATES)
        self._on_list_changed(data, kinds, "on_resources_changed", {mcp_events.READ_RESOURCE_EVENT})

    def _on_prompts_changed(self, data: dict[str, Any]) -> None:
        self._on_list_changed(data, (answers.PROMPTS,), "on_prompts_changed", set())

    def _on_list_changed(
        self, data: dict[str, Any], kinds: Iterable[ListKind], method: str, more_events: set[str]
    ) -> None:
        """Answers of all servers of the computer are dropped: a server may be known by its name or its bundle id."""
        events = {kind.event for kind in kinds} | more_events
        server = data.get("mcp_server")
        named = server if isinstance(server, str) else None
        for seat in self._seats_in(data):
            self._drop(seat, lambda key: key.event in events)
            self.subscriptions.standing.on_change(seat)
            self.registered.on_list_changed(seat, named, kinds)
            self._events.dispatch_once(method, (seat.computer, named, seat.office))

    def _seats_in(self, data: dict[str, Any]) -> list[Seat]:
        computer, office = data.get("computer"), data.get("office_id")
        if not isinstance(computer, str):
            return []
        return self._toolbox.seats_of(computer, office if isinstance(office, str) else None)


def _fields(options: ReadOptions, method: str) -> dict[str, Any]:
    """The fields of the request that say what is wanted. Raises `BadRequest`, or `TypeError` for unknown options."""
    if unknown := options.keys() - ReadOptions.__annotations__.keys():
        raise TypeError(f"{method}() got an unexpected keyword argument {min(unknown)!r}")
    fields = {field: value for field, value in options.items() if value is not None and field != "on_transfer"}
    if fields.get("questions", "result") != "result":
        raise BadRequest('questions: must be "result"', field="questions")
    return {"questions": "result", **fields} if fields.keys() & {"input_responses", "request_state"} else fields


def _uri_of(link: Mapping[str, Any] | str) -> str:
    uri = link if isinstance(link, str) else link.get("uri")
    if not isinstance(uri, str):
        raise BadRequest("link: must be a URI, or a resource_link of a result", field="link")
    return uri


def _only_link(result: CallToolResult) -> str:
    if len(result.links) != 1:
        raise BadRequest(f"the result has {len(result.links)} links: say which, such as result.links[0]", field="link")
    return _uri_of(result.links[0])
