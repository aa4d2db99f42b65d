"""One websocket of the program's own web server: frames in, messages out.

picows calls `on_ws_frame` for every frame that a read brought, so a read full of tiny frames would be handled in one
turn of the event loop while all other connections wait. Here a connection may have a few messages handled in a turn
(`_MESSAGES` and `_BYTES`; at least one, however large). The rest of what was read waits in `_waiting`, reading is
paused, and `_go_on` takes as many again in the next turn, behind all others. Order is kept because nothing is handled
directly while something waits, and what waits is bounded by the size of one read.

Control frames and empty frames do nothing for anybody, nor do most frames of a peer that is not authenticated: they
are counted, and a peer that sends many is ended.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from struct import Struct
from time import monotonic
from typing import Any, Protocol

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSProtocolError, WSTransport

from a2c_smcp.engine.packets import Attachment, Json, Outgoing
from a2c_smcp.server.transport.picows_adapter import Reader
from a2c_smcp.server.transport.websocket_writer import Turns

__all__ = ["Owner", "WebSocket", "upgrade_key"]

_TEXT, _BINARY, _CONTINUATION = WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION
_CLOSE, _PING = WSMsgType.CLOSE, WSMsgType.PING
_MESSAGES, _BYTES = 64, 64 * 1024
_IDLE_FRAMES, _IDLE_TIME = 1000, 10.0
_MAX_PONGS = 64 * 1024
_MOST_UNHEARD = 1000
_CLOSE_TIMEOUT = 2.0
_SMALL = 8 * 1024
_PARTS_OF_ONE = 4  # at the most: a head, and what a message comes in
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


class Owner(Protocol):
    """Who hears what comes over a websocket: a channel."""

    def attach(self, socket: Any) -> None:
        """From here on the websocket is its owner's."""

    def detach(self) -> None:
        """The websocket that was to be attached is gone before it was."""

    def heard(self, socket: Any, text: bytes) -> None: ...

    def heard_binary(self, socket: Any, data: bytes) -> None: ...

    def heard_too_much(self, socket: Any) -> None:
        """Of what only costs: frames that bring nothing, or, before authentication, a message larger than it may be."""

    def blocked(self, socket: Any) -> None:
        """More is written than the peer reads."""

    def unblocked(self, socket: Any) -> None: ...

    def ended(self, socket: Any) -> None: ...


class WebSocket(WSListener):
    """Belongs to its owner from `start` to `ended`."""

    __slots__ = (
        "_bytes", "_closing", "_frames", "_idle_frames", "_idle_since", "_is_busy", "_is_closed_by_peer", "_is_lost",
        "_is_over", "_is_trusted", "_late", "_messages", "_owner", "_parts", "_reader", "_transport", "_turn",
        "_turns", "_unfinished", "_unheard", "_waiting", "_wrote_in", "is_blocked",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport, owner: Owner, turns: Turns) -> None:
        self.is_blocked = False
        self._transport = transport
        self._owner = owner
        self._turns = turns
        self._turn = -1
        self._messages = self._bytes = 0
        self._idle_frames, self._idle_since = 0, 0.0
        self._unheard = 0
        self._waiting: deque[bytes | Attachment] | None = None
        self._parts: bytearray | None = None
        self._unfinished: WSMsgType | None = None
        self._closing: asyncio.TimerHandle | None = None
        self._is_trusted = self._is_busy = False
        self._is_over = self._is_lost = self._is_closed_by_peer = False
        self._late: list[Json] = []
        self._wrote_in = -1
        self._frames: WSTransport | None = None
        self._reader: Reader | None = None

    def start(self, key: str, *, max_size: int, most_held: int) -> None:
        """Answers the upgrade request."""
        self._reader = Reader(self._transport, key, self, max_size=max_size, most_held=most_held)
        self._reader.start()

    def listen(self, ahead: bytes) -> None:
        """The owner hears of everything that follows, and of what came with the upgrade request."""
        if self._reader:
            self._reader.read(ahead)
        self._read_on()

    # For its owner

    @property
    def unwritten(self) -> int:
        return self._transport.get_write_buffer_size()

    def trust(self) -> None:
        """Its peer is authenticated."""
        if self._reader and not self._is_trusted:
            self._is_trusted = True
            self._reader.trust()

    def write(self, parts: Sequence[Json]) -> None:
        """One text message, which comes in parts.

        The first one in a turn of the loop is written at once, what follows at the end of the turn. Where that was
        more than one, the first of the next turn waits too: a busy connection costs one write a turn.
        """
        size, late = sum(map(len, parts)), self._late
        if size > _SMALL or self._frames is None:
            self._write_parts([_head(_TEXT, size), *parts])
        elif late:
            late.append(_head(_TEXT, size))
            late.extend(parts)
        elif self._is_busy or self._wrote_in == self._turns.current():
            late.append(_head(_TEXT, size))
            late.extend(parts)
            self._turns.write_at_end(self)
        else:
            self._wrote_in = self._turns.current()
            self._frames.send(_TEXT, b"".join(parts))

    def write_late(self) -> None:
        """At the end of a turn."""
        self._is_busy = len(self._late) > _PARTS_OF_ONE
        if self._late:
            self._write_parts(())

    def write_all(self, packets: Sequence[Outgoing]) -> None:
        """Several messages in one go."""
        if len(packets) == 1 and isinstance(packets[0], bytes):
            self.write(packets)  # type: ignore[arg-type]  # a sequence of one text
            return
        parts: list[Json] = []
        for packet in packets:
            kind, data = (_BINARY, packet.data) if isinstance(packet, Attachment) else (_TEXT, packet)
            parts += (_head(kind, len(data)), data)
        self._write_parts(parts)

    def close(self, code: int = 1000) -> None:
        """The peer may still read what was written. It is cut if it does not take that or does not answer."""
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
            self._unheard += 1
            if self._unheard == _MOST_UNHEARD and self._reader:
                self._reader.discard()  # not even their frames are looked for any more
            return
        if frame.rsv1 or frame.rsv2 or frame.rsv3:
            raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, "no extension was agreed on")
        if kind is _TEXT and self._unfinished is None and frame.fin:
            self._take_text(frame.get_payload_as_bytes(), frame.tail_size)
        elif kind is _TEXT or kind is _BINARY or kind is _CONTINUATION:
            self._take_part(kind, frame)
        elif kind is _CLOSE:
            self._take_close(frame)
        elif not self._is_idle_too_often():
            if self._reader:
                self._reader.held = frame.tail_size
            if kind is _PING:
                self._pong(frame)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """What came before is heard first."""
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
        """Nothing more is heard. The peer may still read why."""
        if self._reader and not self._is_over:
            self._reader.discard()
            self._owner.heard_too_much(self)

    # What follows

    def _take_text(self, text: bytes, left: int) -> None:
        """`left` are the bytes that came behind it."""
        size = len(text)
        if not text.isascii():
            _check_text(text)
        if size <= 1 or not self._is_trusted:
            if self._reader:
                self._reader.held = left
            if not (size and self._is_trusted) and self._is_idle_too_often():
                return
        if self._may_handle(size):
            self._owner.heard(self, text)
        else:
            self._wait(text)
        if size == 1 and self._reader and not (left or self.is_blocked):
            self._reader.renew()  # with a pong, a buffer that a large message needed is left behind

    def _take_part(self, kind: WSMsgType, frame: WSFrame) -> None:
        """A binary message, or a part of one that comes in several frames."""
        if (kind is _CONTINUATION) is (self._unfinished is None):
            raise WSProtocolError(WSCloseCode.PROTOCOL_ERROR, "a message within a message")
        if self._reader:
            self._reader.held = frame.tail_size
        if not (frame.payload_size and self._is_trusted) and self._is_idle_too_often():
            return
        if kind is not _CONTINUATION:
            self._unfinished = kind
        if self._parts is None:
            self._parts = bytearray()
        self._parts += frame.get_payload_as_memoryview()
        if self._reader and len(self._parts) > self._reader.max_message:
            if self._is_trusted:
                raise WSProtocolError(WSCloseCode.MESSAGE_TOO_BIG, "too large")
            self.holds_too_much()
        elif not frame.fin:
            if not self._may_handle(frame.payload_size):
                if self._reader and self._messages >= _MESSAGES:
                    self._reader.read_little(is_wanted=True)  # tiny fragments: a whole read of them takes long
                self._wait_for_turn()
        else:
            kind, self._unfinished = self._unfinished or kind, None
            if self._reader:
                self._reader.read_little(is_wanted=False)
            whole, self._parts = bytes(self._parts), None
            if kind is _TEXT:
                self._take_text(whole, frame.tail_size)
            elif self._may_handle(len(whole)):
                self._owner.heard_binary(self, whole)
            else:
                self._wait(Attachment(whole))

    def _take_close(self, frame: WSFrame) -> None:
        """It is answered after what came before it was heard."""
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
        """A peer that pings has to read the pongs too."""
        if self._transport.get_write_buffer_size() > _MAX_PONGS:
            self.abort()
        elif self._frames:
            self._frames.send_pong(frame.get_payload_as_bytes())

    def _is_idle_too_often(self) -> bool:
        """Counts a frame that brings nothing. Whether this was one too many, and its peer was cut."""
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
        """Whether this connection has a share of this turn left, for a message of this size or at all."""
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
        """In a later turn."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:  # it has ended
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
        """Lets go of what would keep all of it in memory until the next garbage collection."""
        self._is_over = True
        self._waiting = self._reader = self._frames = None
        self._owner.ended(self)

    def _read_on(self) -> None:
        if self._waiting is None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _write_parts(self, parts: Sequence[Json]) -> None:
        """Without a copy, where what the peer does not read is noticed all the same."""
        if self._is_over or self._is_lost or not self._frames or self._frames.is_close_frame_sent:
            self._late.clear()
            return
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


def _head(kind: WSMsgType, size: int) -> bytes:
    """Of a whole message from a server."""
    if kind is _TEXT and size < 1 << 16:
        return _SHORTEST[size] if size < 126 else _short(0x81, 126, size)
    first = _FINAL | kind.value
    if size < 126:
        return bytes((first, size))
    return _short(first, 126, size) if size < 1 << 16 else bytes((first, 127)) + size.to_bytes(8)


_SHORTEST = [bytes((0x81, size)) for size in range(126)]
_short = Struct(">BBH").pack


def _check_text(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError:
        raise WSProtocolError(WSCloseCode.INVALID_TEXT, "not UTF-8") from None
