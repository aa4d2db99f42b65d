"""WebSockets for the Server's own program: uvicorn reads the upgrade request, picows the frames that follow.

An ASGI application is served as by any other web server. It may also listen to text directly, and post it at once.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Any

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSProtocolError, WSTransport

from a2c_smcp.server.fields import Json
from a2c_smcp.server.reader import read_afresh, read_frames, room_in_reader
from a2c_smcp.server.wires import DIRECT, ASGIApp, Message, Scope

__all__ = ["WebSocket", "upgrade_key"]

logger = logging.getLogger(__name__)

_TEXT, _BINARY, _CONTINUATION = WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION
_CLOSE, _PING = WSMsgType.CLOSE, WSMsgType.PING
_MAX_PONGS = 256 * 1024
_MAX_WAITING = 16
_CLOSE_TIMEOUT = 10.0
_SMALL = 8 * 1024
_LARGE = 64 * 1024
_FINAL = 0x80
_PAUSES_AFTER_WRITELINES = not ((3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2))
"""asyncio's own transports did not tell in these versions that a peer has stopped reading (CVE-2024-12254)."""
_CLOSE_CODES = {*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)}


def upgrade_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The key of a sound upgrade request."""
    named = [(name, value.strip()) for name, value in headers if name.startswith(b"sec-websocket-")]
    keys = [value for name, value in named if name == b"sec-websocket-key"]
    versions = [value for name, value in named if name == b"sec-websocket-version"]
    try:
        key = base64.b64decode(b"".join(keys), validate=True)
    except binascii.Error:
        return None
    is_sound = versions == [b"13"] and len(keys) == 1 and len(key) == 16
    return base64.b64encode(key).decode() if is_sound else None


class WebSocket(WSListener):
    """One websocket from its upgrade request to its end.

    While `hear` is set, text is offered to it first, when it is the application's turn to receive it.
    """

    def __init__(self, transport: asyncio.Transport, key: str, max_size: int, on_end: Callable[[], None]) -> None:
        self.hear: Callable[[bytes], bool] | None = None
        self._transport = transport
        self._key = key
        self._max_size = max_size
        self._on_end = on_end
        self._frames: WSTransport | None = None
        self._response: list[bytes] = []
        self._messages: deque[Message | bytes] = deque([{"type": "websocket.connect"}])
        self._waiter: asyncio.Future[None] | None = None
        self._unblocked: asyncio.Future[None] | None = None
        self._parts = bytearray()
        self._unfinished: Any = None
        self._closing: asyncio.TimerHandle | None = None
        self._is_paused = True
        self._is_sated = False
        self._is_over = False
        self._is_handed_over = False
        transport.pause_reading()
        transport.set_protocol(_Opening(self))

    async def serve(self, app: ASGIApp, scope: Scope) -> None:
        scope["extensions"] = {"websocket.http.response": {}, DIRECT: self}
        try:
            await app(scope, self.receive, self.send)
        except Exception:
            logger.exception("serving a websocket failed")
        finally:
            if self._unblocked or _is_cut_short():
                self._transport.abort()
            self.shutdown()

    def shutdown(self) -> None:
        """Ends it, whatever state it is in."""
        if self._is_handed_over:
            self._transport.close()
            self._on_end()
            return
        if self._frames is None and not self._response:
            self._respond(500, [])
        self._close(1012, "")

    # For the application

    async def receive(self) -> Message:
        while isinstance(message := await self._next(), bytes):
            if not (self.hear and self.hear(message)):
                return _received(message)
            if len(message) > _LARGE:
                await asyncio.sleep(0)  # others come first, before another one that may take as long
        return message

    async def send(self, message: Message) -> None:
        if self._is_over:
            raise OSError("this websocket has ended")
        match message["type"]:
            case "websocket.send":
                while self._unblocked:
                    await asyncio.wait([self._unblocked])
                self._write(message)
            case "websocket.accept":
                self._accept()
            case "websocket.close" if self._frames:
                self._close(message.get("code", 1000), message.get("reason") or "")
            case "websocket.close":
                self._respond(403, [])
            case "websocket.http.response.start":
                self._respond(message["status"], message["headers"])
            case "websocket.http.response.body":
                self._transport.write(message.get("body", b""))
                self._close(1000, "")

    def hand_over(self, protocol: asyncio.Protocol) -> asyncio.Transport:
        """Gives the connection away, with an upgrade request that is still to be answered. Raises `OSError`."""
        if self._is_over:
            raise OSError("this websocket has ended")
        self._is_handed_over = True
        self._transport.set_protocol(protocol)
        self._transport.resume_reading()
        return self._transport

    @property
    def is_blocked(self) -> bool:
        """Whether the transport has enough to write already."""
        return self._unblocked is not None or self._is_over or bool(self._frames and self._frames.is_close_frame_sent)

    def post(self, parts: Sequence[Json]) -> bool:
        if self.is_blocked:
            return False
        self._put(_TEXT, parts)
        return True

    def post_all(self, messages: Iterable[Json]) -> bool:
        if self.is_blocked:
            return False
        self._write_parts([part for text in messages for part in (_head(_TEXT, len(text)), text)])
        return True

    # For picows

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._frames = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind is not _CLOSE and transport.is_close_frame_sent:
            return
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, "no extension was agreed on")
        if kind is _TEXT and frame.fin and not self._unfinished:
            self._take_text(frame)
        elif kind in (_TEXT, _BINARY, _CONTINUATION):
            self._take_part(kind, frame)
        elif kind is _PING:
            self._pong(frame)
        elif kind is _CLOSE:
            self._take_close(transport, frame)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self.ended()

    def pause_writing(self) -> None:
        self._unblocked = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        if self._unblocked:
            self._unblocked.set_result(None)
            self._unblocked = None

    def ended(self) -> None:
        """The transport is gone."""
        self._is_over = True
        if self._closing:
            self._closing.cancel()
        self._queue({"type": "websocket.disconnect", "code": 1006})
        self.resume_writing()
        self._on_end()

    # What follows

    async def _next(self) -> Message | bytes:
        """A message, or text that `hear` was not offered yet."""
        while not self._messages:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self._messages.popleft()
        if self._is_paused and self._frames and not self._messages:
            self._is_paused = False
            self._transport.resume_reading()
        return message

    def _take_text(self, frame: WSFrame) -> None:
        """A message in one frame. With one for the application, such as its pong, a large buffer is left behind."""
        is_heard = self._is_heard(frame.get_payload_as_bytes())
        if not (is_heard or frame.tail_size or self.is_blocked) and room_in_reader(self._transport) > _LARGE:
            read_afresh(self._transport, self._key, self._max_size, self)

    def _is_heard(self, text: bytes) -> bool:
        """Whether this was heard at once. If not, the application receives it, or `hear` is offered it in its turn."""
        if not text.isascii():
            _check_text(text)
        if self._messages or not self._waiter or (len(text) > _LARGE and self._is_late_for_more()):
            self._queue(text)
        elif self.hear and self.hear(text):
            return True
        else:
            self._queue(_received(text))
        return False

    def _is_late_for_more(self) -> bool:
        """Whether a large message was heard in this turn of the loop. Others come first, before the next one.

        Several may have been read at once, and uvloop would go on reading for as long as there is something to read.
        """
        is_late, self._is_sated = self._is_sated, True
        if not is_late:
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on_reading)
        return is_late

    def _go_on_reading(self) -> None:
        self._is_sated = False
        if not (self._is_paused or self._is_over):
            self._transport.resume_reading()

    def _take_part(self, kind: WSMsgType, frame: WSFrame) -> None:
        """A binary message, or a part of one that comes in several frames."""
        if (kind is _CONTINUATION) is (self._unfinished is None):
            raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, "a message within a message")
        if kind is not _CONTINUATION:
            self._unfinished = kind
        self._parts += frame.get_payload_as_memoryview()
        if len(self._parts) > self._max_size:
            raise WSProtocolError(WSCloseCode.MESSAGE_TOO_BIG, "too large")
        if frame.fin:
            kind, self._unfinished = self._unfinished, None
            whole, self._parts = bytes(self._parts), bytearray()
            if kind is _TEXT:
                self._is_heard(whole)
            else:
                self._queue({"type": "websocket.receive", "bytes": whole})

    def _take_close(self, transport: WSTransport, frame: WSFrame) -> None:
        said = frame.get_payload_as_bytes()[:2]
        code = int.from_bytes(said) if said else 1005
        if said and code not in _CLOSE_CODES:
            raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, "no such close code")
        self._queue({"type": "websocket.disconnect", "code": code})
        self._close(1000, "")
        transport.disconnect()

    def _queue(self, message: Message | bytes) -> None:
        self._messages.append(message)
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)
        if len(self._messages) >= _MAX_WAITING and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def _pong(self, frame: WSFrame) -> None:
        """A peer that pings has to read the pongs too."""
        if self._transport.get_write_buffer_size() > _MAX_PONGS:
            self._transport.abort()
        elif self._frames:
            self._frames.send_pong(frame.get_payload_as_bytes())

    def _accept(self) -> None:
        read_frames(self._transport, self._key, self._max_size, self)
        self._is_paused = False
        self._transport.resume_reading()

    def _write(self, message: Message) -> None:
        text = message.get("text")
        if not self._is_over:
            self._put(_BINARY if text is None else _TEXT, [message["bytes"] if text is None else text.encode()])

    def _put(self, kind: WSMsgType, parts: Sequence[Json]) -> None:
        """picows writes small ones at once. The head of a large one it would leave in a buffer that it uses again."""
        size = sum(map(len, parts))
        if self._frames and size <= _SMALL:
            self._frames.send(kind, b"".join(parts))
        elif self._frames:
            self._write_parts([_head(kind, size), *parts])

    def _write_parts(self, parts: Sequence[Json]) -> None:
        """Without a copy, where what the peer does not read is noticed all the same."""
        if _PAUSES_AFTER_WRITELINES:
            self._transport.writelines(parts)
        else:
            self._transport.write(b"".join(parts))

    def _respond(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Refuses the upgrade."""
        self._response = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nconnection: close\r\n".encode()]
        self._response += [b"%s: %s\r\n" % field for field in headers]
        self._transport.write(b"".join([*self._response, b"\r\n"]))

    def _close(self, code: int, reason: str) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._frames is None:
            self._transport.close()
            return
        self._frames.send_close(WSCloseCode(code), reason)
        self._closing = asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT, self._transport.abort)


class _Opening(asyncio.Protocol):
    """The protocol of a transport between the upgrade request and the first frame."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    def connection_lost(self, error: Exception | None) -> None:
        self._websocket.ended()


def _is_cut_short() -> bool:
    """Whether this task was cancelled, even if what runs in it ends as if it were not."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _head(kind: WSMsgType, size: int) -> bytes:
    """Of a whole message from a server."""
    first = _FINAL | kind.value
    if size < 126:
        return bytes((first, size))
    return bytes((first, 126)) + size.to_bytes(2) if size < 1 << 16 else bytes((first, 127)) + size.to_bytes(8)


def _check_text(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError:
        raise WSProtocolError(WSCloseCode.INVALID_TEXT, "not UTF-8") from None


def _received(text: bytes) -> Message:
    return {"type": "websocket.receive", "text": text.decode()}
