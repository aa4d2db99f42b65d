"""Sessions of clients of older revisions over HTTP: clients that are gone, and messages kept to resume a cut stream.

A stream is named by the id of a request, which only its own session makes unique. So each session has an event store of
its own (`_SessionEvents`), and can never be sent the messages of another. All of them share one budget of bytes: the
oldest messages are dropped first, whosever they are. The id of an event is `SESSION.NUMBER`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count, dropwhile, islice
from secrets import token_hex
from typing import Any, NamedTuple

from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp_types import JSONRPCMessage

_LEAST = 200
"""Bytes that are counted for a message beside its texts."""


class _KeptEvent(NamedTuple):
    session: str
    stream: StreamId
    message: JSONRPCMessage | None
    size: int


class KeptEvents:
    """The last messages of all sessions, at most so many bytes of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._events: OrderedDict[EventId, _KeptEvent] = OrderedDict()
        self._numbers = count(1)

    def session(self) -> EventStore:
        """The store of a new session."""
        return _SessionEvents(self, token_hex(8))

    def add(self, session: str, stream: StreamId, message: JSONRPCMessage | None) -> EventId:
        content = getattr(message, "result", None) or getattr(message, "params", None)
        event_id, size = f"{session}.{next(self._numbers)}", _LEAST + _weight(content)
        self._events[event_id] = _KeptEvent(session, stream, message, size)
        self._size += size
        while self._size > self._most:
            _, oldest = self._events.popitem(last=False)
            self._size -= oldest.size
        return event_id

    def after(self, session: str, event_id: EventId) -> tuple[StreamId, list[tuple[EventId, JSONRPCMessage]]] | None:
        """The stream of an event, and its later events; `None` if it is not kept, or of another session."""
        known = self._events.get(event_id)
        if known is None or known.session != session:
            return None
        later = [
            (other, event.message)
            for other, event in islice(dropwhile(lambda kept: kept[0] != event_id, self._events.items()), 1, None)
            if (event.session, event.stream) == (session, known.stream) and event.message
        ]
        return known.stream, later


class _SessionEvents(EventStore):
    def __init__(self, kept: KeptEvents, session: str) -> None:
        self._kept, self._session = kept, session

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        return self._kept.add(self._session, stream_id, message)

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        events = self._kept.after(self._session, last_event_id)
        if events is None:
            return None
        stream, later = events
        for event_id, message in later:
            await send_callback(EventMessage(message, event_id))
        return stream


def _weight(value: Any) -> int:
    """About how many bytes a JSON value has."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(key) + _weight(item) for key, item in value.items())
    return sum(map(_weight, value)) if isinstance(value, list) else 8


# A client that is gone, although its session stays: many stop a call by closing its stream, or are killed.
#
# Every open HTTP request of a session is a sign of its client: that of a call, and the stream of notices. If there was
# none for a while (`pause`), what waits for a person on behalf of this session is withdrawn, and again after the same
# time until nothing of it is left, because a call that runs may ask somebody later. A client that is back in time, by
# any request, keeps everything.


class ClientPresence:
    """The open requests of each session, and how to withdraw what waits for somebody. `pause` is in seconds."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._open: Counter[str] = Counter()
        self._waiting: dict[str, set[Callable[[], None]]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @contextmanager
    def request(self, session: str) -> Iterator[None]:
        """Encloses a request of this session over HTTP, from its head to the end of its stream."""
        self._open[session] += 1
        if timer := self._timers.pop(session, None):
            timer.cancel()
        try:
            yield
        finally:
            self._open[session] -= 1
            self._watch(session)

    @contextmanager
    def watching(self, session: str, withdraw: Callable[[], None]) -> Iterator[None]:
        """Encloses a call of this session. `withdraw` is called if the client is gone."""
        self._waiting.setdefault(session, set()).add(withdraw)
        self._watch(session)
        try:
            yield
        finally:
            self._waiting[session].discard(withdraw)
            if not self._waiting[session]:
                del self._waiting[session]
                if timer := self._timers.pop(session, None):
                    timer.cancel()

    def _watch(self, session: str) -> None:
        if self._open[session] > 0:
            return
        del self._open[session]
        if session in self._waiting and session not in self._timers:
            self._timers[session] = asyncio.get_running_loop().call_later(self._pause, self._withdraw, session)

    def _withdraw(self, session: str) -> None:
        del self._timers[session]
        for withdraw in [*self._waiting[session]]:
            withdraw()
        self._watch(session)
