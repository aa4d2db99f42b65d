"""One websocket of the program's own web server: frames in, messages to its owner.

picows calls `on_ws_frame` for every frame that a read brought, so a read full of tiny frames would be handled in one
turn of the event loop while all other connections wait. Here a connection may have a few messages handled in a turn
(`_MESSAGES` and `_BYTES`; at least one, however large). The rest of what was read waits in `_waiting`, reading is
paused, and `_go_on` takes as many again in the next turn, behind all others. Order is kept because nothing is handled
directly while something waits, and what waits is bounded by the size of one read.

Control frames and empty frames carry nothing, nor do most frames of a peer that is not authenticated: they are
counted, and a peer that sends many is ended.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic

from picows import WSCloseCode, WSFrame, WSMsgType, WSProtocolError, WSTransport

from a2c_smcp.engine.packets import Attachment
from a2c_smcp.server.transport.interfaces import SocketOwner
from a2c_smcp.server.transport.picows_adapter import FrameReader
from a2c_smcp.server.transport.websocket_writer import Turns, WebSocketWriter

__all__ = ["WebSocket", "upgrade_key"]

_TEXT, _BINARY, _CONTINUATION = WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION
_CLOSE, _PING = WSMsgType.CLOSE, WSMsgType.PING
_DATA = (_TEXT, _BINARY, _CONTINUATION)
_MESSAGES, _BYTES = 64, 64 * 1024
_IDLE_FRAMES, _IDLE_TIME = 1000, 10.0
_MAX_PONGS = 64 * 1024
_MOST_IGNORED = 1000
_CLOSE_TIMEOUT = 2.0
_CLOSE_CODES = {*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)}


def upgrade_key(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The key of an upgrade request; `None` if the request is not as it must be."""
    named = [(name, value.strip()) for name, value in headers if name.startswith(b"sec-websocket-")]
    keys = [value for name, value in named if name == b"sec-websocket-key"]
    versions = [value for name, value in named if name == b"sec-websocket-version"]
    try:
        key = base64.b64decode(b"".join(keys), validate=True)
    except binascii.Error:
        return None
    is_sound = versions == [b"13"] and len(keys) == 1 and len(key) == 16
    return base64.b64encode(key).decode() if is_sound else None


class WebSocket(WebSocketWriter):
    """Belongs to its owner from `start` to `ended`."""

    __slots__ = (
        "_bytes", "_closing", "_idle_frames", "_idle_since", "_ignored", "_is_closed_by_peer", "_is_trusted",
        "_messages", "_owner", "_parts", "_reader", "_turn", "_unfinished", "_waiting",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport, owner: SocketOwner, turns: Turns) -> None:
        super().__init__(transport, turns)
        self._owner = owner
        self._turn = -1
        self._messages = self._bytes = 0
        self._idle_frames, self._idle_since = 0, 0.0
        self._ignored = 0
        self._waiting: deque[bytes | Attachment] | None = None
        self._parts: bytearray | None = None
        self._unfinished: WSMsgType | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._is_trusted = self._is_closed_by_peer = False
        self._reader: FrameReader | None = None

    def start(self, key: str, *, max_size: int, most_held: int) -> None:
        """Answers the upgrade request."""
        self._reader = FrameReader(self._transport, key, self, max_size=max_size, most_held=most_held)
        self._reader.start()

    def listen(self, ahead: bytes) -> None:
        """Begins to read. `ahead` are bytes that came with the upgrade request."""
        if self._reader:
            self._reader.read(ahead)
        self._read_on()

    # For its owner

    def trust(self) -> None:
        """Its peer is authenticated."""
        if self._reader and not self._is_trusted:
            self._is_trusted = True
            self._reader.trust()

    def close(self, code: int = 1000) -> None:
        """The peer may still read what was written. It is cut if it does not read that, or does not answer."""
        if not self._is_over and self._frames:
            self.write_late()
            self._is_over = True
            self._frames.send_close(WSCloseCode(code))
            self._closing = asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT, self.abort)
            self._read_on()

    def abort(self) -> None:
        self._is_over = True
        with suppress(RuntimeError):  # of uvloop, for one that is closed
            self._transport.abort()

    # For picows

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._frames = transport

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if self._is_closed_by_peer or ((self._is_over or transport.is_close_frame_sent) and kind is not _CLOSE):
            self._ignore_frame()
            return
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, "no extension was agreed on")
        if kind is _TEXT and self._unfinished is None and frame.fin:
            self._take_text(frame.get_payload_as_bytes(), frame.tail_size)
        elif kind in _DATA:
            self._take_data(kind, frame)
        else:
            self._take_control(kind, frame)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """Messages that came before are handled first."""
        self._is_lost = True
        if self._closing:
            self._closing.cancel()
        if self._is_over or not self._waiting:
            self._end()

    def pause_writing(self) -> None:
        self.is_blocked = True
        self._owner.blocked(self)

    def resume_writing(self) -> None:
        self.is_blocked = False
        self._owner.unblocked(self)

    def holds_too_much(self) -> None:
        """Reads no more messages. The peer may still read why."""
        if self._reader and not self._is_over:
            self._reader.discard()
            self._owner.heard_too_much(self)

    # Frames and messages

    def _take_text(self, text: bytes, left: int) -> None:
        """`left` are the bytes that came behind it."""
        size = len(text)
        if not text.isascii():
            _check_text(text)
        if (size <= 1 or not self._is_trusted) and self._is_cut(size, left):
            return
        if self._may_handle(size):
            self._owner.heard(self, text)
        else:
            self._wait(text)
        if size == 1 and self._reader and not (left or self.is_blocked):
            self._reader.renew()  # with a pong, a buffer that a large message needed is left behind

    def _take_data(self, kind: WSMsgType, frame: WSFrame) -> None:
        """A binary message, or a part of a message that comes in several frames."""
        is_whole = kind is _BINARY and self._unfinished is None and frame.fin
        if not is_whole or (self._reader and frame.payload_size > self._reader.max_message):
            self._take_part(kind, frame)
        elif not self._is_cut(frame.payload_size, frame.tail_size):
            self._take_whole(kind, frame.get_payload_as_bytes(), frame.tail_size)

    def _take_part(self, kind: WSMsgType, frame: WSFrame) -> None:
        """A part of a message that comes in several frames."""
        if (kind is _CONTINUATION) is (self._unfinished is None):
            raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, "a message within a message")
        if self._is_cut(frame.payload_size, frame.tail_size):
            return
        if kind is not _CONTINUATION:
            self._unfinished, self._parts = kind, bytearray()
        assert self._parts is not None
        self._parts += frame.get_payload_as_memoryview()
        if self._reader and len(self._parts) > self._reader.max_message:
            if self._is_trusted:
                raise WSProtocolError(WSCloseCode.MESSAGE_TOO_BIG, "too large")
            self.holds_too_much()
        elif frame.fin:
            self._take_whole(self._unfinished or kind, bytes(self._parts), frame.tail_size)
        elif not self._may_handle(frame.payload_size):
            if self._reader and self._messages >= _MESSAGES:
                self._reader.read_little(is_wanted=True)  # tiny fragments: a whole read of them takes long
            self._wait_for_turn()

    def _take_whole(self, kind: WSMsgType, message: bytes, left: int) -> None:
        """A message whose last part has come."""
        self._unfinished = self._parts = None
        if self._reader:
            self._reader.read_little(is_wanted=False)
        if kind is _TEXT:
            self._take_text(message, left)
        elif self._may_handle(len(message)):
            self._owner.heard_binary(self, message)
        else:
            self._wait(Attachment(message))

    def _take_control(self, kind: WSMsgType, frame: WSFrame) -> None:
        if kind is _CLOSE:
            self._take_close(frame)
        elif not self._is_idle_too_often():
            if self._reader:
                self._reader.held = frame.tail_size
            if kind is _PING:
                self._pong(frame)

    def _is_cut(self, size: int, left: int) -> bool:
        """Counts a frame if it is empty or its peer is not authenticated. Whether the peer was cut for too many."""
        if self._reader:
            self._reader.held = left
        return not (size and self._is_trusted) and self._is_idle_too_often()

    def _ignore_frame(self) -> None:
        """A frame after the end. After many of them, bytes are not even read as frames any more."""
        self._ignored += 1
        if self._ignored == _MOST_IGNORED and self._reader:
            self._reader.discard()

    def _take_close(self, frame: WSFrame) -> None:
        """A close is answered after the messages before it were handled."""
        said = frame.get_payload_as_bytes()[:2]
        if said and int.from_bytes(said) not in _CLOSE_CODES:
            raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, "no such close code")
        if self._waiting and not self._is_over:
            self._is_closed_by_peer = True
        else:
            self._answer_close()

    def _answer_close(self) -> None:
        self.close()
        if self._frames:
            self._frames.disconnect()

    def _pong(self, frame: WSFrame) -> None:
        """Answers a ping. A peer that does not read the pongs is cut."""
        if self._transport.get_write_buffer_size() > _MAX_PONGS:
            self.abort()
        elif self._frames:
            self._frames.send_pong(frame.get_payload_as_bytes())

    def _is_idle_too_often(self) -> bool:
        """Counts a frame that carries nothing. Whether its peer was cut for too many of them."""
        self._idle_frames += 1
        if self._idle_frames <= _IDLE_FRAMES:
            return self._is_over
        if monotonic() - self._idle_since > _IDLE_TIME:
            self._idle_frames, self._idle_since = 1, monotonic()
            return self._is_over
        self._owner.heard_too_much(self)
        self.abort()
        return True

    # Turns of the loop

    def _may_handle(self, size: int) -> bool:
        """Whether this connection may have one more message handled in this turn."""
        if self._waiting:
            return False
        turn = self._turns.current()
        if turn != self._turn:
            self._turn, self._messages, self._bytes = turn, 1, size
            return True
        if self._messages >= _MESSAGES or self._bytes >= _BYTES:
            return False
        self._messages += 1
        self._bytes += size
        return True

    def _wait(self, message: bytes | Attachment) -> None:
        self._wait_for_turn().append(message)

    def _wait_for_turn(self) -> deque[bytes | Attachment]:
        if self._waiting is None:
            self._waiting = deque()
            if not self._transport.is_closing():
                self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)
        return self._waiting

    def _go_on(self) -> None:
        """Handles messages that wait, in a later turn."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:  # the websocket has ended
            return
        while waiting and not self._is_over:
            message = waiting[0]
            is_text = isinstance(message, bytes)
            if not self._may_handle(len(message if is_text else message.data)):  # type: ignore[union-attr]
                self._waiting = waiting
                asyncio.get_running_loop().call_soon(self._go_on)
                return
            waiting.popleft()
            if is_text:
                self._owner.heard(self, message)  # type: ignore[arg-type]
            else:
                self._owner.heard_binary(self, message.data)  # type: ignore[union-attr]
        if self._is_lost:
            self._end()
        elif self._is_closed_by_peer:
            self._answer_close()
        self._read_on()

    def _end(self) -> None:
        """Breaks the references that would keep all of it in memory until the next garbage collection."""
        self._is_over = True
        self._waiting = self._reader = self._frames = None
        self._owner.ended(self)

    def _read_on(self) -> None:
        if self._waiting is None and not self._transport.is_closing():
            self._transport.resume_reading()


def _check_text(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError:
        raise WSProtocolError(WSCloseCode.INVALID_TEXT, "not UTF-8") from None
