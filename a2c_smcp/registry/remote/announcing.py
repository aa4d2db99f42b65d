"""Tells MCP clients of changes: of the lists of tools, resources and prompts, and of resources that they subscribed to.

Changes come from any thread (`Announcer.announce`) and wait in `_waiting`, where equal ones are one. One task takes
them from there. Clients of 2026-07-28 listen on a bus of the SDK. Each client of an older revision (`_OlderClient`,
from its handshake until its connection ends) has a task and a set of waiting changes of its own, so that no client
waits for one that does not read. A resource is watched while a client subscribes to it, and only then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any, Protocol, TypeAlias, get_args

import mcp_types as types
from mcp.server.connection import Connection
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_events import LogLevel
from a2c_smcp.registry.readable_registry import ReadableChange

__all__ = ["Announcer", "ChangingOffers", "Request", "is_modern"]

WATCHED_WITHIN = 10.0  # seconds, for a computer or an MCP server that does not answer
MAX_SUBSCRIPTIONS = 1024
"""Resources that one client may subscribe to."""

Request: TypeAlias = ServerRequestContext[Any, Any]

_LEVELS = get_args(LogLevel)
_FIRST_LEVEL = "info"  # for a client that has not said which messages it wants
_LISTS: Mapping[str, ServerEvent] = {"resources": ResourcesListChanged(), "prompts": PromptsListChanged()}


def is_modern(context: Request) -> bool:
    """Whether the client speaks a revision without a handshake: 2026-07-28 or later."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


class ChangingOffers(Protocol):
    """What is announced: a registry. The methods that take a listener return how to stop that."""

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]: ...
    def on_readable_change(self, listener: Callable[[ReadableChange], None]) -> Callable[[], None]: ...
    def watch_resource(self, uri: str, listener: Callable[[str], None]) -> Callable[[], None]: ...
    async def until_watched(self, uri: str) -> None: ...


class _OlderClient:
    """A connection that began with a handshake. `session` is any of it: it can send what belongs to no request."""

    def __init__(self, session: ServerSession) -> None:
        self.session = session
        self.level = _FIRST_LEVEL
        self.subscriptions: dict[str, Callable[[], None]] = {}
        self._waiting: dict[ServerEvent, None] = {}
        self._telling: asyncio.Task[None] | None = None

    def hear(self, event: ServerEvent) -> None:
        if isinstance(event, ResourceUpdated) and event.uri not in self.subscriptions:
            return
        self._waiting[event] = None
        if self._telling is None or self._telling.done():
            self._telling = asyncio.get_running_loop().create_task(self._tell_all())

    def close(self) -> None:
        for stop in self.subscriptions.values():
            stop()
        self.subscriptions.clear()
        if self._telling is not None:
            self._telling.cancel()

    async def _tell_all(self) -> None:
        while self._waiting:
            event = next(iter(self._waiting))
            del self._waiting[event]
            await self._tell(event)

    async def _tell(self, event: ServerEvent) -> None:
        if isinstance(event, ToolsListChanged):
            await self.session.send_tool_list_changed()
        elif isinstance(event, ResourcesListChanged):
            await self.session.send_resource_list_changed()
        elif isinstance(event, PromptsListChanged):
            await self.session.send_prompt_list_changed()
        elif event.uri in self.subscriptions:
            await self.session.send_resource_updated(event.uri)


class Announcer:
    """The clients of one server, and what they want to be told."""

    def __init__(self, offers: ChangingOffers) -> None:
        self._offers = offers
        self._bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(self._bus)
        self._older: dict[Connection, _OlderClient] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[ServerEvent, None] = {}
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None, None]:
        """Tells clients of changes in this block."""
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        task = self._loop.create_task(self._publish())
        with ExitStack() as stack:
            stack.callback(self._offers.on_change(lambda: self.announce(ToolsListChanged())))
            stack.callback(self._offers.on_readable_change(lambda change: self.announce(_LISTS[change])))
            try:
                yield
            finally:
                await cancel_and_wait(task)

    def announce(self, event: ServerEvent) -> None:
        """Tell the clients that want to know. May be called in any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._put, event)

    async def on_initialized(self, context: Request, params: types.NotificationParams) -> None:
        """A client of an older revision has finished its handshake."""
        self._client(context)

    async def listen(
        self, context: Request, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serves one stream of changes, until the client ends it."""
        uris = {*(params.notifications.resource_subscriptions or ())}
        _require_few(len(uris))
        with ExitStack() as stack:
            for uri in uris:
                stack.callback(self._watch(uri))
            await self._until_watched(uris)
            return await self._listen(context, params)

    async def subscribe(self, context: Request, params: types.SubscribeRequestParams) -> types.EmptyResult:
        subscriptions = self._client(context).subscriptions
        if params.uri not in subscriptions:
            _require_few(len(subscriptions) + 1)
            subscriptions[params.uri] = self._watch(params.uri)
        await self._until_watched({params.uri})
        return types.EmptyResult()

    async def unsubscribe(self, context: Request, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        if stop := self._client(context).subscriptions.pop(params.uri, None):
            stop()
        return types.EmptyResult()

    async def set_level(self, context: Request, params: types.SetLevelRequestParams) -> types.EmptyResult:
        self._client(context).level = params.level
        return types.EmptyResult()

    def log_level(self, context: Request) -> LogLevel | None:
        """The lowest level of messages that the client of a request wants. On 2026-07-28 each request says that."""
        asked: Any = (
            (context.meta or {}).get(types.LOG_LEVEL_META_KEY) if is_modern(context) else self._client(context).level
        )
        return asked if asked in _LEVELS else None

    def wants_log(self, context: Request, level: LogLevel) -> bool:
        """Whether the client of a request wants messages of this level."""
        asked = self.log_level(context)
        return asked is not None and _LEVELS.index(level) >= _LEVELS.index(asked)

    def identity(self, context: Request) -> Hashable:
        """Whose request it is. On 2026-07-28 requests over HTTP have no session: each counts as a client of its own."""
        if not is_modern(context):
            return self._client(context)
        return None if context.request is None else context.session

    def _client(self, context: Request) -> _OlderClient:
        # What lives as long as a connection: the SDK has no public way to that yet.
        connection = context.session._connection
        client = self._older.get(connection)
        if client is None:
            client = self._older[connection] = _OlderClient(context.session)
            connection.exit_stack.callback(self._forget, connection)
        return client

    def _forget(self, connection: Connection) -> None:
        self._older.pop(connection).close()

    def _watch(self, uri: str) -> Callable[[], None]:
        return self._offers.watch_resource(uri, lambda uri: self.announce(ResourceUpdated(uri)))

    async def _until_watched(self, uris: Collection[str]) -> None:
        """A client that is told that it has subscribed may cause a change at once."""
        with suppress(TimeoutError):
            async with asyncio.timeout(WATCHED_WITHIN):
                await asyncio.gather(*map(self._offers.until_watched, uris))

    def _put(self, event: ServerEvent) -> None:
        self._waiting[event] = None
        self._changed.set()

    async def _publish(self) -> None:
        while await self._changed.wait():
            self._changed.clear()
            events, self._waiting = [*self._waiting], {}
            for event in events:
                for client in self._older.values():
                    client.hear(event)
                await self._bus.publish(event)


def _require_few(count: int) -> None:
    if count > MAX_SUBSCRIPTIONS:
        raise MCPError(types.INVALID_PARAMS, f"at most {MAX_SUBSCRIPTIONS} resources can be subscribed to")
