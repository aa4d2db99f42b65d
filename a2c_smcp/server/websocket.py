"""WebSockets for the Server's own program: uvicorn reads the upgrade request, picows the frames that follow.

An ASGI application is served as by any other web server. It may also listen to text directly, and post it at once.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from typing import Any

from picows import WSAutoPingStrategy, WSCloseCode, WSFrame, WSListener, WSMsgType, WSProtocolError, WSTransport
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # its stubs leave it out

from a2c_smcp.server.packets import Json
from a2c_smcp.server.wires import DIRECT, ASGIApp, Message, Scope

__all__ = ["WebSocket", "upgrade_key"]

logger = logging.getLogger(__name__)

_TEXT, _BINARY, _CONTINUATION = WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION
_MAX_PONGS = 256 * 1024
_MAX_WAITING = 16
_CLOSE_TIMEOUT = 10.0
_READ_BUFFER = 2048
_LARGE = 64 * 1024
_UPGRADE = (
    "GET / HTTP/1.1\r\nHost: -\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n\r\n"
)


class _Quiet:
    """The log of picows: it would tell of every connection, and of what its peer does wrong."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802, named by the standard library
        return False

    def log(self, *args: Any) -> None: ...

    debug = info = warning = error = exception = log


_QUIET = _Quiet()


def upgrade_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The key of a sound upgrade request."""
    fields = dict(headers)
    try:
        key = base64.b64decode(fields.get(b"sec-websocket-key", b""), validate=True)
    except binascii.Error:
        return None
    is_sound = fields.get(b"sec-websocket-version") == b"13" and len(key) == 16
    return base64.b64encode(key).decode() if is_sound else None


class WebSocket(WSListener):
    """One websocket from its upgrade request to its end.

    While `hear` is set and the application waits for a message, text is offered to it first.
    """

    def __init__(self, transport: asyncio.Transport, key: str, max_size: int, on_end: Callable[[], None]) -> None:
        self.hear: Callable[[bytes], bool] | None = None
        self._transport = transport
        self._key = key
        self._max_size = max_size
        self._on_end = on_end
        self._frames: WSTransport | None = None
        self._response: list[bytes] = []
        self._messages: deque[Message] = deque([{"type": "websocket.connect"}])
        self._waiter: asyncio.Future[None] | None = None
        self._unblocked: asyncio.Future[None] | None = None
        self._parts = bytearray()
        self._unfinished: Any = None
        self._is_paused = True
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
            if self._unblocked:
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
        return self._unblocked is not None or self._is_over

    def post(self, parts: Sequence[Json]) -> None:
        """Writes the text of these parts now, or with whatever else is written in this turn of the event loop."""
        size = sum(map(len, parts))
        if size < _LARGE:
            self._transport.write(b"".join((_head(size), *parts)))
        else:
            self._transport.writelines([_head(size), *parts])

    # For picows

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._frames = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind is _TEXT and frame.fin and not (self._unfinished or frame.rsv1 or frame.rsv2 or frame.rsv3):
            self._take_text(frame)
        elif frame.rsv1 or frame.rsv2 or frame.rsv3:
            raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, "no extension was agreed on")
        elif kind in (_TEXT, _BINARY, _CONTINUATION):
            self._take_part(kind, frame)
        elif kind is WSMsgType.PING:
            self._pong(frame)
        elif kind is WSMsgType.CLOSE:
            self._queue({"type": "websocket.disconnect", "code": frame.get_close_code().value or 1005})
            self._close(1000, "")
            transport.disconnect()

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
        self._queue({"type": "websocket.disconnect", "code": 1006})
        self.resume_writing()
        self._on_end()

    # What follows

    def _take_text(self, frame: WSFrame) -> None:
        data = frame.get_payload_as_bytes()
        text = None if data.isascii() else _text_of(data)
        if self._messages or not (self._waiter and self.hear and self.hear(data)):
            self._queue({"type": "websocket.receive", "text": text or data.decode()})

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
            content = {"text": _text_of(whole)} if kind is _TEXT else {"bytes": whole}
            self._queue({"type": "websocket.receive", **content})

    def _queue(self, message: Message) -> None:
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
        reader = WSProtocol(
            None, None, False, lambda request: self, _QUIET, True, None,
            False, 0, 0, WSAutoPingStrategy.PING_WHEN_IDLE, False, self._max_size, None, _READ_BUFFER,
        )  # fmt: skip
        request = _UPGRADE.format(self._key).encode()
        reader.connection_made(self._transport)
        reader.get_buffer(-1)[: len(request)] = request
        reader.buffer_updated(len(request))
        self._transport.set_protocol(reader)
        self._is_paused = False
        self._transport.resume_reading()

    def _write(self, message: Message) -> None:
        text = message.get("text")
        if self._frames and not self._is_over:
            self._frames.send(_BINARY if text is None else _TEXT, message["bytes"] if text is None else text)

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
        asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT, self._transport.close)


class _Opening(asyncio.Protocol):
    """The protocol of a transport between the upgrade request and the first frame."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    def connection_lost(self, error: Exception | None) -> None:
        self._websocket.ended()


def _head(size: int) -> bytes:
    """Of a whole text message from a server."""
    if size < 126:
        return bytes((0x81, size))
    return b"\x81\x7e" + size.to_bytes(2) if size < 1 << 16 else b"\x81\x7f" + size.to_bytes(8)


def _text_of(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise WSProtocolError(WSCloseCode.INVALID_TEXT, "not UTF-8") from None
