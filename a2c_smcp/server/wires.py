"""WebSocket connections at the ASGI seam: each bound to its Engine.IO session, so that it can be watched and cut."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any, Protocol

from a2c_smcp.protocol.codec import loads
from a2c_smcp.server.eager import begin
from a2c_smcp.server.fields import Json

__all__ = ["DIRECT", "ASGIApp", "Bind", "Direct", "Message", "Receive", "Scope", "Send", "Take", "Wire", "Wires"]

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

DIRECT = "a2c_smcp.direct"
"""The ASGI extension under which a web server offers a `Direct`."""

_OPEN, _CLOSE = "0{", "1"
_PACKET_TYPES = tuple("0123456")


class Direct(Protocol):
    """A websocket of a web server that needs no task to be read or written."""

    hear: Callable[[bytes], bool] | None
    """Offered text when it is the application's turn to receive it. `False` leaves it to the application."""

    def post(self, parts: Sequence[Json]) -> bool:
        """Writes a text that comes in parts, unless enough is waiting to be written."""

    def post_all(self, messages: Iterable[Json]) -> bool:
        """The same for several texts at once."""


class Wire:
    """One websocket: the task that serves it, the one that is writing to it and since when, and what was posted."""

    __slots__ = ("direct", "is_cut", "posting", "send", "task", "writer", "writing_since")

    def __init__(self, send: Send, direct: Direct | None) -> None:
        self.task = asyncio.current_task()
        self.send = send
        self.direct = direct
        self.writer: asyncio.Task[Any] | None = None
        self.posting: asyncio.Task[None] | None = None
        self.writing_since = 0.0
        self.is_cut = False

    async def write(self, message: Message) -> None:
        if self.is_cut:
            raise OSError("this websocket was cut")
        self.writer, self.writing_since = asyncio.current_task(), asyncio.get_running_loop().time()
        try:
            if self.posting:
                await asyncio.wait([self.posting])
            await self.send(message)
        finally:
            self.writer = None

    def post(self, parts: Sequence[Json]) -> bool:
        """Writes now, without waiting, unless somebody is writing. What the transport does not take at once follows."""
        if self.writer or self.posting or self.is_cut:
            return False
        if self.direct:
            return self.direct.post(parts)
        try:
            rest = begin(self.send({"type": "websocket.send", "text": str(b"".join(parts), "utf-8")}))
        except Exception:  # its peer is gone: whoever writes is not to blame
            self.cut()
            return True
        if rest is not None:
            self.posting, self.writing_since = rest, asyncio.get_running_loop().time()
            rest.add_done_callback(self._posted)
        return True

    def post_all(self, messages: Iterable[Json]) -> bool:
        """Writes several texts in one go, where the web server can do that."""
        if self.writer or self.posting or self.is_cut or not self.direct:
            return False
        return self.direct.post_all(messages)

    def _posted(self, task: asyncio.Task[None]) -> None:
        self.posting = None
        if not task.cancelled() and task.exception():
            self.cut()

    def is_blocked(self, since: float) -> bool:
        return bool(self.writer or self.posting) and self.writing_since < since

    def cut(self) -> None:
        self.is_cut = True
        for task in {self.task, self.writer, self.posting}:
            if task:
                task.cancel()


Take = Callable[[bytes], bool]
Bind = Callable[[str, Wire], Take]


class Wires:
    """Every open websocket by its Engine.IO session id."""

    def __init__(self) -> None:
        self._wires: dict[str, Wire] = {}

    async def carry(
        self,
        app: ASGIApp,
        sid: str | None,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        bind: Bind | None,
        then: Callable[[str | None], Awaitable[None]],
    ) -> None:
        """Serves one websocket with `app`, and then, however it ended, tells its session.

        That is `sid`, which it upgrades, or the session that it opens. Of the text that comes, `app` hears only what
        nobody takes who was bound to it.
        """
        direct: Direct | None = scope.get("extensions", {}).get(DIRECT)
        wire, is_over = Wire(send, direct), False
        take: Take | None = None

        def belong_to(session: str) -> None:
            nonlocal take
            self._wires[session] = wire
            take = bind(session, wire) if bind else None
            if direct:
                direct.hear = take

        async def watched_send(message: Message) -> None:
            nonlocal sid
            if sid is None and (sid := _opened_by(message)):
                belong_to(sid)
            await wire.write(message)

        async def checked_receive() -> Message:
            nonlocal is_over
            if is_over:
                return {"type": "websocket.disconnect", "code": 1000}
            message = await receive()
            while take and not direct and (text := message.get("text")) and take(text.encode()):
                message = await receive()
            is_over = message.get("text") == _CLOSE
            return message if _is_sound(message) else {"type": "websocket.disconnect", "code": 1002}

        if sid:
            belong_to(sid)
        try:
            await app(scope, checked_receive, watched_send)
        finally:
            if sid and self._wires.get(sid) is wire:
                del self._wires[sid]
            await then(sid)

    def __getitem__(self, sid: str) -> Wire | None:
        return self._wires.get(sid)

    def blocked(self, longer_than: float) -> Iterator[str]:
        """The sessions of which a write has waited this long."""
        limit = asyncio.get_running_loop().time() - longer_than
        yield from [sid for sid, wire in self._wires.items() if wire.is_blocked(limit)]

    def cut(self, sid: str) -> None:
        """Ends a websocket now, whether or not its peer reads."""
        if wire := self._wires.get(sid):
            wire.cut()


def _opened_by(message: Message) -> str | None:
    """The session that this packet opens, if it opens one."""
    text = message.get("text")
    return str(loads(text[1:])["sid"]) if text and text.startswith(_OPEN) else None


def _is_sound(message: Message) -> bool:
    """Whether the library can take this: text that is no Engine.IO packet ends the connection, as in other servers."""
    text = message.get("text")
    return text is None or text.startswith(_PACKET_TYPES)
