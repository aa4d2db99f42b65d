"""Sessions of clients of older revisions, which go on after a restart.

Up to 2025-11-25 a client has a session, and most clients never begin another one when the server has forgotten theirs:
they would have to be restarted whenever the bridge is. So what a session consists of is kept on disk
(`session_files.py`). A request with the id of a session that does not run, but is kept, has the session begun again:
its handshake, log level and subscriptions are sent to the SDK in the place of the client, and then the request itself.
The SDK gives the session another id, which the client never sees (`_ids`). A session that the SDK has ended because it
was idle for long returns in the same way.

A request that was being answered when the process ended has no answer yet. Its client asks for the rest of the stream
with the id of the last event, which names the session and the stream (`KeptEvents`), and gets an error: so each request
has one answer. The stream of notices is opened anew, and the client is told that all lists and all resources that it
has subscribed to may have changed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

import mcp_types as types
from mcp.server.streamable_http import GET_STREAM_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from a2c_smcp.bridge.serving.session_files import KeptSession, SessionFiles
from a2c_smcp.bridge.serving.sessions import KeptEvents
from a2c_smcp.http.asgi import ASGIApp, Receive, Scope, Send, header

__all__ = ["LastingSessions"]

_SESSION, _VERSION, _LAST_EVENT = b"mcp-session-id", b"mcp-protocol-version", b"last-event-id"
_OF_REQUEST = {_SESSION, _LAST_EVENT, b"accept", b"content-type", b"content-length", b"transfer-encoding"}
_JSON = ((b"content-type", b"application/json"), (b"accept", b"application/json, text/event-stream"))
_NOTED = (b"logging/setLevel", b"resources/subscribe", b"resources/unsubscribe")
_RETURNS_WITHIN = 15.0
_MOST_IDS = 10_000
_UNANSWERED = (
    "The bridge was restarted before it had answered this request: it is not known whether it was carried out."
)


class LastingSessions:
    """An ASGI application around the SDK's. `on_return` is given the subscriptions of a session that hears again.

    The web server must limit the size of requests.
    """

    def __init__(
        self, app: ASGIApp, files: SessionFiles, events: KeptEvents, on_return: Callable[[Collection[str]], None]
    ) -> None:
        self._app, self._files, self._events, self._on_return = app, files, events, on_return
        self._ids: dict[str, str] = {}
        self._returning: dict[str, asyncio.Task[None]] = {}
        self._untold: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        version, session = header(scope, _VERSION), header(scope, _SESSION)
        if version and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await self._app(scope, receive, send)
        elif not session:
            await self._begin(scope, await _RequestBody.read(receive), send)
        elif scope["method"] == "DELETE":
            self._files.drop(session)
            await self._pass_on(session, scope, receive, send)
            self._ids.pop(session, None)
        else:
            await self._go_on(session, scope, await _RequestBody.read(receive), send)

    async def _begin(self, scope: Scope, body: _RequestBody, send: Send) -> None:
        """The first request of a session, which is kept if the SDK accepts it."""

        async def send_and_keep(message: Any) -> None:
            is_begun = message["type"] == "http.response.start" and message["status"] == 200
            if is_begun and (session := header(message, _SESSION)):
                self._files.keep(session, KeptSession(body.request[1]))
            await send(message)

        await self._app(scope, body.receive(), send_and_keep)

    async def _go_on(self, session: str, scope: Scope, body: _RequestBody, send: Send) -> None:
        lost = self._events.ended_stream(header(scope, _LAST_EVENT))
        if lost is not None:
            if lost != GET_STREAM_KEY and self._files.find(session):
                await _tell_of_restart(session, lost, send)
                return
            scope = _with_headers(scope, without={_LAST_EVENT})
        self._note(session, body)
        if not await self._pass_on(session, scope, body.receive(), send, is_last=False):
            await self._return_once(session, scope)
            await self._pass_on(session, scope, body.receive(), send)

    def _note(self, session: str, body: _RequestBody) -> None:
        """Keep what the client wants from now on."""
        if any(method in body.content for method in _NOTED) and (kept := self._files.find(session)):
            changed = kept.after(*body.request)
            if changed != kept:
                self._files.keep(session, changed)

    async def _pass_on(self, session: str, scope: Scope, receive: Receive, send: Send, *, is_last: bool = True) -> bool:
        """Have the SDK answer, which knows the session by another id.

        Returns whether it has. That it knows no such session is not sent to the client unless this `is_last`.
        """
        inner = self._ids.get(session, session).encode("latin-1")
        is_held = False

        async def send_renamed(message: Any) -> None:
            nonlocal is_held
            if message["type"] == "http.response.start":
                is_held = message["status"] == 404 and not is_last
                if header(message, _SESSION):
                    message = _with_headers(message, (_SESSION, session.encode("latin-1")), without={_SESSION})
                self._tell_of_return(session, scope, message["status"])
            if not is_held:
                await send(message)

        await self._app(_with_headers(scope, (_SESSION, inner), without={_SESSION}), receive, send_renamed)
        return not is_held

    def _tell_of_return(self, session: str, scope: Scope, status: int) -> None:
        """Once its client hears notices again: it has missed those of the time between."""
        if session in self._untold and scope["method"] == "GET" and status == 200:
            self._untold.discard(session)
            kept = self._files.find(session)
            asyncio.get_running_loop().call_soon(self._on_return, kept.subscriptions if kept else ())

    # A session returns

    async def _return_once(self, session: str, scope: Scope) -> None:
        """Begin a session again if it is kept. Requests that come meanwhile wait for the same attempt."""
        if session not in self._returning:
            if (kept := self._files.find(session)) is None:
                return
            self._returning[session] = task = asyncio.create_task(self._return(session, kept, scope))
            task.add_done_callback(lambda _: self._returning.pop(session, None))
        await asyncio.shield(self._returning[session])

    async def _return(self, session: str, kept: KeptSession, scope: Scope) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_RETURNS_WITHIN):
                inner = await self._say(scope, None, "initialize", kept.initialize, 0)
                if inner is None:
                    return
                for number, (method, params) in enumerate(_later(kept), 1):
                    await self._say(scope, inner, method, params, number)
                self._files.returned(session)
                self._untold.add(session)
                self._ids[session] = inner
        while len(self._ids) > _MOST_IDS:  # one that is dropped returns once more
            self._ids.pop(next(iter(self._ids)))

    async def _say(
        self, scope: Scope, session: str | None, method: str, params: Mapping[str, Any] | None, number: int
    ) -> str | None:
        """Send a message in the place of the client. Returns the id that its session has now."""
        message = {"jsonrpc": "2.0", "method": method, **({} if params is None else {"id": number, "params": params})}
        body = _RequestBody({"type": "http.request", "body": json.dumps(message).encode(), "more_body": False}, _never)
        found: str | None = None

        async def send(part: Any) -> None:
            nonlocal found
            if part["type"] == "http.response.start" and part["status"] < 300:
                found = header(part, _SESSION)

        own = [(_SESSION, session.encode("latin-1"))] if session else []
        asked = _with_headers({**scope, "method": "POST"}, *_JSON, *own, without=_OF_REQUEST)
        await self._app(asked, body.receive(), send)
        return found


class _RequestBody:
    """The body of a request, which the web server hands over in one piece. It can be read several times."""

    def __init__(self, first: Any, receive: Receive) -> None:
        self._first, self._receive = first, receive
        self.content: bytes = first.get("body", b"")

    @classmethod
    async def read(cls, receive: Receive) -> _RequestBody:
        return cls(await receive(), receive)

    @property
    def request(self) -> tuple[str, Mapping[str, Any]]:
        """The method and params of a request; empty if it is not one."""
        try:
            message = json.loads(self.content)
        except (ValueError, RecursionError):
            return "", {}
        method, params = (message.get("method"), message.get("params")) if isinstance(message, dict) else ("", {})
        return method if isinstance(method, str) else "", params if isinstance(params, dict) else {}

    def receive(self) -> Receive:
        unread = [self._first]

        async def receive() -> Any:
            return unread.pop() if unread else await self._receive()

        return receive


def _later(kept: KeptSession) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    """What a client has said after `initialize`: methods with their params. A notification has none."""
    yield "notifications/initialized", None
    if kept.level is not None:
        yield "logging/setLevel", kept.level
    yield from (("resources/subscribe", {"uri": uri}) for uri in kept.subscriptions)


async def _tell_of_restart(session: str, stream: str, send: Send) -> None:
    """Answers the request whose stream this was. Its id was a number, if it looks like one."""
    number = int(stream) if stream.isdecimal() and len(stream) < 20 else stream
    error = {"code": types.INTERNAL_ERROR, "message": _UNANSWERED, "data": {"outcome": "unknown"}}
    event = f"event: message\ndata: {json.dumps({'jsonrpc': '2.0', 'id': number, 'error': error})}\n\n"
    headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
    headers.append((_SESSION, session.encode("latin-1")))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": event.encode()})


async def _never() -> Any:
    await asyncio.Event().wait()


def _with_headers(message: Any, *added: tuple[bytes, bytes], without: Collection[bytes]) -> Any:
    """A request or the head of a response, with other headers."""
    return {**message, "headers": [*(field for field in message["headers"] if field[0] not in without), *added]}
