"""Sessions of clients of older revisions over HTTP, and the messages that are kept to resume a stream that was cut.

A stream is named by the id of a request, which only its own session makes unique. So each session has an event store of
its own (`_SessionEvents`), and can never be sent the messages of another. All of them share one budget of bytes: the
oldest messages are dropped first, whosever they are. The id of an event is `SESSION.NUMBER.STREAM`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import count
from secrets import token_hex
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCMessage

__all__ = ["KeptEvents", "SessionManager"]

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
        self._events: OrderedDict[int, _KeptEvent] = OrderedDict()
        self._numbers = count(1)
        self._sessions: WeakValueDictionary[str, _SessionEvents] = WeakValueDictionary()

    def session(self) -> EventStore:
        """The store of a new session."""
        name = token_hex(8)
        self._sessions[name] = store = _SessionEvents(self, name)
        return store

    def add(self, session: str, stream: StreamId, message: JSONRPCMessage | None) -> EventId:
        number, size = next(self._numbers), _LEAST + _weight(_content(message))
        self._events[number] = _KeptEvent(session, stream, message, size)
        self._size += size
        while self._size > self._most:
            _, oldest = self._events.popitem(last=False)
            self._size -= oldest.size
        return _id(session, number, stream)

    def ended_stream(self, event_id: EventId) -> StreamId | None:
        """The stream of an event, if that is of a session which has ended, perhaps with another process."""
        session, number, stream = _parts(event_id)
        return stream if number and session not in self._sessions else None

    def after(self, session: str, event_id: EventId) -> tuple[StreamId, list[tuple[EventId, JSONRPCMessage]]] | None:
        """The stream of an event, and what followed in it; `None` if it is not kept, or of another session."""
        _, number, _ = _parts(event_id)
        known = self._events.get(number)
        if known is None or known.session != session:
            return None
        later = [
            (_id(session, other, event.stream), event.message)
            for other, event in self._events.items()
            if other > number and (event.session, event.stream) == (session, known.stream) and event.message
        ]
        return known.stream, later


class _SessionEvents(EventStore):
    def __init__(self, kept: KeptEvents, session: str) -> None:
        self._kept, self._session = kept, session

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        return self._kept.add(self._session, stream_id, message)

    async def replay_events_after(self, last_event_id: EventId, send_callback: EventCallback) -> StreamId | None:
        found = self._kept.after(self._session, last_event_id)
        if found is None:
            return None
        stream, later = found
        for event_id, message in later:
            await send_callback(EventMessage(message, event_id))
        return stream


class SessionManager(StreamableHTTPSessionManager):
    """The SDK's, which reads `event_store` once for each session."""

    def __init__(self, *arguments: Any, kept: KeptEvents, **options: Any) -> None:
        self._kept = kept
        super().__init__(*arguments, **options)

    @property
    def event_store(self) -> EventStore | None:
        return self._kept.session()

    @event_store.setter
    def event_store(self, _: EventStore | None) -> None:
        """The SDK's constructor sets it."""


def _content(message: JSONRPCMessage | None) -> Any:
    return getattr(message, "result", None) or getattr(message, "params", None)


def _weight(value: Any) -> int:
    """About how many bytes a JSON value has."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(key) + _weight(each) for key, each in value.items())
    return sum(map(_weight, value)) if isinstance(value, list) else 8


def _id(session: str, number: int, stream: StreamId) -> EventId:
    return f"{session}.{number}.{quote(stream, safe='')}"


def _parts(event_id: EventId) -> tuple[str, int, StreamId]:
    """Session, number and stream of an event. The number is 0 if this is no such id."""
    session, _, rest = event_id.partition(".")
    digits, _, stream = rest.partition(".")
    return session, int(digits) if digits.isdecimal() and len(digits) < 20 else 0, unquote(stream)
