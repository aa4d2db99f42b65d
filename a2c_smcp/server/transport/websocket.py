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
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from struct import Struct
from time import monotonic

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSProtocolError, WSTransport

from a2c_smcp.engine.packets import Attachment, Json, Outgoing
from a2c_smcp.server.transport.picows_adapter import FrameReader
from a2c_smcp.server.transport.session_channel import SocketOwner

logger = logging.getLogger(__name__)

# How a websocket of the program's own web server is written to: small messages of one turn of the loop leave
# together.
#
# The first message in a turn of the event loop is written at once, later ones at the end of the turn. If these were
# more than one, the first of the next turn waits too: a busy connection costs one write a turn.

_TEXT_FRAME, _BINARY_FRAME = WSMsgType.TEXT, WSMsgType.BINARY
_SMALL = 8 * 1024
_PARTS_OF_ONE = 4  # at the most: a head, and the parts of a message
_FINAL = 0x80
_PAUSES_AFTER_WRITELINES = not ((3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2))
"""In these versions asyncio's own transports did not report that a peer has stopped reading (CVE-2024-12254)."""


class WebSocketWriter(WSListener):
    """The writing half of a websocket."""

    __slots__ = (
        "_frames", "_is_busy", "_is_lost", "_is_over", "_late", "_transport", "_turns", "_wrote_in", "is_blocked",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport, turns: Turns) -> None:
        self.is_blocked = False
        self._transport = transport
        self._turns = turns
        self._frames: WSTransport | None = None
        self._late: list[Json] = []
        self._wrote_in = -1
        self._is_busy = self._is_over = self._is_lost = False

    @property
    def unwritten(self) -> int:
        return self._transport.get_write_buffer_size()

    def write(self, parts: Sequence[Json]) -> int:
        """Writes one text message, which comes in parts. Returns its size."""
        size, late = sum(map(len, parts)), self._late
        if size > _SMALL or self._frames is None:
            self._write_parts([_head(_TEXT_FRAME, size), *parts])
        elif late:
            late.append(_head(_TEXT_FRAME, size))
            late.extend(parts)
        elif self._is_busy or self._wrote_in == self._turns.current() or self._turns.before_writes is not None:
            late.append(_head(_TEXT_FRAME, size))
            late.extend(parts)
            self._turns.write_at_end(self)
        else:
            self._wrote_in = self._turns.current()
            self._frames.send(_TEXT_FRAME, b"".join(parts))
        return size

    def write_late(self) -> None:
        """Writes what was gathered, at the end of a turn."""
        self._is_busy = len(self._late) > _PARTS_OF_ONE
        if self._late:
            self._write_parts(())

    def write_all(self, packets: Sequence[Outgoing]) -> int:
        """Writes several messages at once. Returns their size."""
        if len(packets) == 1 and isinstance(packets[0], bytes):
            return self.write(packets)  # type: ignore[arg-type]  # a sequence of one text
        size = 0
        parts: list[Json] = []
        for packet in packets:
            kind, data = (_BINARY_FRAME, packet.data) if isinstance(packet, Attachment) else (_TEXT_FRAME, packet)
            parts += (_head(kind, len(data)), data)
            size += len(data)
        self._write_parts(parts)
        return size

    def abort(self) -> None:
        raise NotImplementedError

    def _write_parts(self, parts: Sequence[Json]) -> None:
        """Without a copy, where the event loop still reports that the peer does not read."""
        if self._is_over or self._is_lost or not self._frames or self._frames.is_close_frame_sent:
            self._late.clear()
            return
        if self._turns.before_writes is not None:
            self._turns.before_writes()
        if self._late:
            late = b"".join(self._late)
            self._late.clear()
            parts = (late, *parts)
        if len(parts) == 1:
            self._transport.write(parts[0])
        elif _PAUSES_AFTER_WRITELINES:
            self._transport.writelines(parts)
        else:
            self._transport.write(b"".join(parts))


class Turns:
    """Numbers the turns of the event loop in which a websocket is read or written, and ends each with late writes.

    With `before_writes`, which is called before anything is written, all small messages wait for the end of the turn.
    """

    __slots__ = ("_is_counted", "_late", "_number", "before_writes")

    def __init__(self, before_writes: Callable[[], None] | None) -> None:
        self.before_writes = before_writes
        self._number = 0
        self._is_counted = False
        self._late: list[WebSocketWriter] = []

    def current(self) -> int:
        if not self._is_counted:
            self._is_counted = True
            asyncio.get_running_loop().call_soon(self._next)
        return self._number

    def write_at_end(self, socket: WebSocketWriter) -> None:
        self.current()
        self._late.append(socket)

    def _next(self) -> None:
        self._number += 1
        self._is_counted = False
        late, self._late = self._late, []
        for socket in late:
            try:
                socket.write_late()
            except Exception:
                logger.exception("writing to a websocket failed")
                socket.abort()


def _head(kind: WSMsgType, size: int) -> bytes:
    """The head of the one frame of a whole message from a server."""
    if kind is _TEXT_FRAME and size < 1 << 16:
        return _SHORTEST[size] if size < 126 else _short(0x81, 126, size)
    first = _FINAL | kind.value
    if size < 126:
        return bytes((first, size))
    return _short(first, 126, size) if size < 1 << 16 else bytes((first, 127)) + size.to_bytes(8)


_SHORTEST = [bytes((0x81, size)) for size in range(126)]
_short = Struct(">BBH").pack

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
        """The peer may still read what was written. It is disconnected if it does not read that, or does not answer."""
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
            self._ignore()
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
        """Stops reading, and tells the owner. The peer can still read why it is disconnected."""
        if self._reader and not self._is_over:
            self._reader.discard()
            self._owner.heard_too_much(self)

    # Frames and messages

    def _take_text(self, text: bytes, left: int) -> None:
        """`left` are the bytes that came behind it."""
        size = len(text)
        if not text.isascii():
            _check_text(text)
        if (size <= 1 or not self._is_trusted) and self._count_frame(size, left):
            return
        if self._may_handle(size):
            self._owner.heard(self, text)
        else:
            self._wait_for_turn().append(text)
        if size == 1 and self._reader and not (left or self.is_blocked):
            self._reader.renew()  # with a pong, a buffer that a large message needed is left behind

    def _take_data(self, kind: WSMsgType, frame: WSFrame) -> None:
        """A binary message, or a part of a message that comes in several frames."""
        is_whole = kind is _BINARY and self._unfinished is None and frame.fin
        if not is_whole or (self._reader and frame.payload_size > self._reader.max_message):
            self._take_part(kind, frame)
        elif not self._count_frame(frame.payload_size, frame.tail_size):
            self._take_whole(kind, frame.get_payload_as_bytes(), frame.tail_size)

    def _take_part(self, kind: WSMsgType, frame: WSFrame) -> None:
        """A part of a message that comes in several frames."""
        if (kind is _CONTINUATION) is (self._unfinished is None):
            raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, "a message within a message")
        if self._count_frame(frame.payload_size, frame.tail_size):
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
            self._wait_for_turn().append(Attachment(message))

    def _take_control(self, kind: WSMsgType, frame: WSFrame) -> None:
        if kind is _CLOSE:
            self._take_close(frame)
        elif not self._count_idle():
            if self._reader:
                self._reader.held = frame.tail_size
            if kind is _PING:
                self._pong(frame)

    def _count_frame(self, size: int, left: int) -> bool:
        """Counts a frame that is empty or of an unauthenticated peer. True if that disconnects the peer."""
        if self._reader:
            self._reader.held = left
        return not (size and self._is_trusted) and self._count_idle()

    def _ignore(self) -> None:
        """Drops a frame after the end. After many of them, bytes are not even read as frames any more."""
        self._ignored += 1
        if self._ignored == _MOST_IGNORED and self._reader:
            self._reader.discard()

    def _take_close(self, frame: WSFrame) -> None:
        """A close is answered after the messages before it were handled."""
        code = frame.get_payload_as_bytes()[:2]
        if code and int.from_bytes(code) not in _CLOSE_CODES:
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
        """Answers a ping. A peer that does not read the pongs is disconnected."""
        if self._transport.get_write_buffer_size() > _MAX_PONGS:
            self.abort()
        elif self._frames:
            self._frames.send_pong(frame.get_payload_as_bytes())

    def _count_idle(self) -> bool:
        """Counts a frame that carries nothing, and disconnects a peer that sends too many. True if it is gone."""
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
        """True if this connection may have one more message handled in this turn."""
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
