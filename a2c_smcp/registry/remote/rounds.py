"""Messages and questions of a running tool for an MCP client, in the client's own revision of MCP.

**Older revisions.** The server sends its own requests during the call, and the client answers them.

**2026-07-28.** The server cannot send requests. A call that asks something is answered with `input_required`; the
client sends the call again with the answers and with the state that it was given. Here the call is not run again: it
goes on in a task of its own (`_OpenCall.task`) and waits, *parked*, for the next request. So a tool runs once, however
often it asks, and does not notice the difference. The state names the parked call. It is sealed by the SDK with a key
of this process, and bound to the method, name and arguments of the request: `RequestStateBoundary` refuses any other.

States of a call: followed by a request (`_follow`), which waits until the call ends or has a question; or parked in
`_parked`, with a timer. Each of the two is left in one step without an await, so a call is always in exactly one, or
has ended. A request that is cancelled cancels the call that it follows; a parked call is cancelled by its timer or the
end of the server. Questions that are asked at the same moment (by `asyncio.gather`) are sent in one round: the follower
wakes up only after every task that was ready has run. Answers with unknown names are ignored; a question without an
answer is asked again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Hashable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast, get_args

import mcp_types as types
from mcp import MCPError, ServerSession
from mcp.server import ServerRequestContext
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from a2c_smcp.loops import cancel_and_wait, first_of
from a2c_smcp.mcp_events import LogLevel
from a2c_smcp.protocol.names import client_field
from a2c_smcp.protocol.questions import INPUT_METHODS, InputRequest, input_required
from a2c_smcp.registry.calls.context import CannotAsk, OnInput, OnProgress, ToolCaller, called_by
from a2c_smcp.registry.remote.sdk import Connection, ServerMessageMetadata, connection_of
from a2c_smcp.registry.tool_registry import ReadableChange

logger = logging.getLogger(__name__)

# Notices to MCP clients of changes: of the lists of tools, resources and prompts, and of subscribed resources.
#
# Changes come from any thread (`Announcer.announce`) and wait in `_waiting`, where equal ones are one. One task takes
# them from there. Clients of 2026-07-28 listen on a bus of the SDK. Each client of an older revision (`_OlderClient`,
# from its handshake until its connection ends) has a task and a set of waiting changes of its own, so that no client
# waits for one that does not read. A resource is watched while a client subscribes to it, and only then.

WATCHED_WITHIN = 10.0  # seconds, for a computer or an MCP server that does not answer
MAX_SUBSCRIPTIONS = 1024
"""Resources that one client may subscribe to."""

Request: TypeAlias = ServerRequestContext[Any, Any]

_LEVELS = get_args(LogLevel)
_FIRST_LEVEL = "info"  # for a client that has not said which messages it wants
_LISTS: Mapping[str, ServerEvent] = {"resources": ResourcesListChanged(), "prompts": PromptsListChanged()}


_LIST_NOTICES: Mapping[type[ServerEvent], Callable[[ServerSession], Awaitable[None]]] = {
    ToolsListChanged: ServerSession.send_tool_list_changed,
    ResourcesListChanged: ServerSession.send_resource_list_changed,
    PromptsListChanged: ServerSession.send_prompt_list_changed,
}


def is_modern(context: Request) -> bool:
    """True if the client speaks a revision without a handshake: 2026-07-28 or later."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


class ChangingOffers(Protocol):
    """A source of changes: a registry. The methods that take a listener return its unsubscribe function."""

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
            if not isinstance(event, ResourceUpdated):
                await _LIST_NOTICES[type(event)](self.session)
            elif event.uri in self.subscriptions:
                await self.session.send_resource_updated(event.uri)


class Announcer:
    """Notifies the clients of one server of the changes that they subscribed to."""

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
        """Notify clients of changes in this block."""
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
        """Notify the subscribers. May be called in any thread."""
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
        """The lowest level of messages that the client of a request wants. On 2026-07-28 each request names it."""
        meta = context.meta or {}
        level: Any = meta.get(types.LOG_LEVEL_META_KEY) if is_modern(context) else self._client(context).level
        return level if level in _LEVELS else None

    def wants_log(self, context: Request, level: LogLevel) -> bool:
        """True if the client of a request wants messages of this level."""
        lowest = self.log_level(context)
        return lowest is not None and _LEVELS.index(level) >= _LEVELS.index(lowest)

    def identity(self, context: Request) -> Hashable:
        """The client of a request. On 2026-07-28, over HTTP, each request counts as a client of its own."""
        if not is_modern(context):
            return self._client(context)
        return cast(Hashable, connection_of(context).outbound) if context.request is None else context.session

    def _client(self, context: Request) -> _OlderClient:
        connection = connection_of(context)
        client = self._older.get(connection)
        if client is None:
            client = self._older[connection] = _OlderClient(context.session)
            connection.exit_stack.callback(lambda: self._older.pop(connection).close())
        return client

    def _watch(self, uri: str) -> Callable[[], None]:
        return self._offers.watch_resource(uri, lambda uri: self.announce(ResourceUpdated(uri)))

    async def _until_watched(self, uris: Collection[str]) -> None:
        """Wait a while for the sources: a client that has subscribed may cause a change at once."""
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


STATE_TTL = 600.0
"""Seconds for which a call waits for the answers to its questions."""
MAX_PARKED = 256
MAX_LOGS = 1000
"""Log messages of one request that wait to be sent; further ones are dropped."""
_FLUSHED_WITHIN = 1.0  # seconds, for a client that does not read
_STEPS = 3  # of the event loop, in which a report of progress gets from the tool to the round

Work: TypeAlias = Callable[[OnProgress | None], Awaitable[dict[str, Any]]]
"""Does what a client has requested, and reports progress if it is wanted."""

_PUSHED: Mapping[str, tuple[type[Any], type[BaseModel]]] = {
    "elicitation/create": (types.ElicitRequest, types.ElicitResult),
    "sampling/createMessage": (types.CreateMessageRequest, types.CreateMessageResult),
    "roots/list": (types.ListRootsRequest, types.ListRootsResult),
}


class Round:
    """One request of a client while it is being worked on. Messages are sent in order, before the answer."""

    def __init__(self, context: Request, announcer: Announcer) -> None:
        self.context = context
        self._announcer = announcer
        self._logs: deque[types.LoggingMessageNotification] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._reports = 0
        self._reported = asyncio.Event()

    def log(self, level: LogLevel, data: Any, name: str | None) -> None:
        if not self._announcer.wants_log(self.context, level) or len(self._logs) >= MAX_LOGS:
            return
        params = types.LoggingMessageNotificationParams(level=level, data=data, logger=name)
        self._logs.append(types.LoggingMessageNotification(params=params))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        self._reports += 1
        try:
            await self.context.session.report_progress(progress, total, message)
        finally:
            self._reports -= 1
            self._reported.set()

    async def finish(self) -> None:
        """Wait until all messages so far are sent, at most `_FLUSHED_WITHIN` seconds."""
        for _ in range(_STEPS):
            await asyncio.sleep(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSHED_WITHIN):
                if self._sending is not None:
                    await asyncio.shield(self._sending)
                while self._reports:
                    self._reported.clear()
                    await self._reported.wait()

    async def _send(self) -> None:
        while self._logs:
            await self.context.session.send_notification(self._logs.popleft(), self.context.request_id)


@dataclass(slots=True, eq=False)
class _OpenCall:
    """A call that may ask questions in several rounds. `round` is the request that it belongs to now."""

    round: Round | None
    early: dict[str, Any]
    """Answers that came with the first request, before the questions."""
    task: asyncio.Task[dict[str, Any]] = field(init=False)
    questions: dict[str, tuple[InputRequest, asyncio.Future[dict[str, Any]]]] = field(default_factory=dict)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    count: int = 0
    timer: asyncio.TimerHandle | None = None

    async def ask(self, asked: InputRequest) -> dict[str, Any]:
        self.count += 1
        key = asked.key or f"question-{self.count}"
        if (answer := self.early.pop(key, None)) is not None:
            return dict(answer)
        key = key if key not in self.questions else f"{key}-{self.count}"
        answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.questions[key] = asked, answered
        self.asked.set()
        try:
            return await answered
        finally:
            self.questions.pop(key, None)

    def answer(self, responses: Mapping[str, Any]) -> None:
        for key in [key for key in self.questions if isinstance(responses.get(key), Mapping)]:
            _, answered = self.questions.pop(key)
            if not answered.done():
                answered.set_result(dict(responses[key]))

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        if self.round is not None:
            await self.round.report(progress, total, message)

    def log(self, level: LogLevel, data: Any, name: str | None) -> None:
        if self.round is not None:
            self.round.log(level, data, name)


class Rounds:
    """Runs the work of requests: tools, resources and prompts that may talk to the client."""

    def __init__(self, announcer: Announcer) -> None:
        self._announcer = announcer
        self._calls: set[_OpenCall] = set()
        self._parked: dict[str, _OpenCall] = {}

    async def answer(self, context: Request, work: Work) -> dict[str, Any]:
        """Return MCP's result of the work, or its questions. Raises what the work raises."""
        capabilities, params = input_capabilities(context), context.params or {}
        state, responses = params.get("requestState"), params.get("inputResponses") or {}
        if not is_modern(context) or (state is None and not capabilities):
            return await self._answer_at_once(context, work, capabilities)
        if state is None:
            return await self._follow(self._begin(context, work, capabilities, responses), context)
        call = self._unpark(state)
        call.answer(responses)
        return await self._follow(call, context)

    async def close(self) -> None:
        for state in [*self._parked]:
            self._unpark(state)
        await cancel_and_wait(*(call.task for call in self._calls))

    async def _answer_at_once(self, context: Request, work: Work, capabilities: Mapping[str, Any]) -> dict[str, Any]:
        round_ = Round(context, self._announcer)
        loop = asyncio.get_running_loop()
        on_input = None if is_modern(context) else push_to(context)
        client = client_of(context)
        caller = ToolCaller(on_log=round_.log, on_input=on_input, capabilities=capabilities, client=client, loop=loop)
        try:
            with called_by(caller):
                return await work(context.session.report_progress if wants_progress(context) else None)
        finally:
            await round_.finish()

    def _begin(
        self, context: Request, work: Work, capabilities: Mapping[str, Any], responses: Mapping[str, Any]
    ) -> _OpenCall:
        call = _OpenCall(None, dict(responses))
        loop = asyncio.get_running_loop()

        async def on_input(asked: InputRequest) -> dict[str, Any]:
            if len(self._parked) >= MAX_PARKED:
                raise CannotAsk("too many calls wait for answers", method=asked.method)
            return await call.ask(asked)

        client = client_of(context)
        caller = ToolCaller(on_log=call.log, on_input=on_input, capabilities=capabilities, client=client, loop=loop)

        async def run() -> dict[str, Any]:
            with called_by(caller):
                return await work(call.progress if wants_progress(context) else None)

        def ended(task: asyncio.Task[Any]) -> None:
            self._calls.discard(call)
            if not task.cancelled():
                task.exception()  # retrieved, or asyncio logs it: a parked call may end without a follower

        call.task = loop.create_task(run())
        self._calls.add(call)
        call.task.add_done_callback(ended)
        return call

    async def _follow(self, call: _OpenCall, context: Request) -> dict[str, Any]:
        """The result of a call, or the questions that it has now."""
        call.round = Round(context, self._announcer)
        try:
            while not call.task.done() and not call.questions:
                call.asked.clear()
                await first_of(call.task, call.asked)
                await call.round.finish()  # a round says what was said in it, before it is over
        except BaseException:
            call.task.cancel()
            raise
        finally:
            call.round = None
        return call.task.result() if call.task.done() else self._park(call)

    def _park(self, call: _OpenCall) -> dict[str, Any]:
        state = secrets.token_hex(16)
        self._parked[state] = call
        call.timer = asyncio.get_running_loop().call_later(STATE_TTL, lambda: self._unpark(state).task.cancel())
        return input_required({key: asked for key, (asked, _) in call.questions.items()}, state)

    def _unpark(self, state: str) -> _OpenCall:
        call = self._parked.pop(state, None)
        if call is None:
            raise MCPError(types.INVALID_PARAMS, "Invalid or expired requestState", {"reason": "invalid_request_state"})
        if call.timer is not None:
            call.timer.cancel()
        return call


def missing_capability(error: CannotAsk) -> MCPError:
    """MCP's error for a request that needs a capability which the client has not declared (2026-07-28)."""
    capability = INPUT_METHODS[error.details["method"]]
    data: dict[str, Any] = {"requiredCapabilities": {capability: {}}}
    return MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, f"Missing client capability: {capability}", data)


def input_capabilities(context: Request) -> dict[str, Any]:
    """The input capabilities that the client has declared, and its extensions beside them."""
    declared = context.session.client_capabilities
    if all(getattr(declared, name, None) is None for name in INPUT_METHODS.values()):
        return {}
    dumped = declared.model_dump(by_alias=True, mode="json", exclude_none=True) if declared else {}
    return {name: dumped[name] for name in (*INPUT_METHODS.values(), "extensions") if name in dumped}


def client_of(context: Request) -> dict[str, str] | None:
    """The client by its own name, if it gives one."""
    params = context.session.client_params
    return client_field(params.client_info.name, params.client_info.version) if params else None


def wants_progress(context: Request) -> bool:
    return (context.meta or {}).get("progress_token") is not None


def push_to(context: Request) -> OnInput:
    """Sends requests for input to a client of an older revision."""

    async def on_input(asked: InputRequest) -> dict[str, Any]:
        request_type, result_type = _PUSHED[asked.method]
        related = ServerMessageMetadata(related_request_id=context.request_id)
        try:
            request = request_type.model_validate({"method": asked.method, "params": asked.params})
            result = await context.session.send_request(request, result_type, metadata=related)
        except (MCPError, ValidationError) as error:
            reason = error.message if isinstance(error, MCPError) else "the question or its answer is not MCP's"
            raise CannotAsk(reason, method=asked.method) from None
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)

    return on_input
