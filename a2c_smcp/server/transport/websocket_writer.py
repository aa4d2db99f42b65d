"""How a websocket of the program's own web server is written to: small messages of one turn of the loop leave together.

The first message in a turn of the event loop is written at once, later ones at the end of the turn. If these were more
than one, the first of the next turn waits too: a busy connection costs one write a turn.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from struct import Struct

from picows import WSListener, WSMsgType, WSTransport

from a2c_smcp.engine.packets import Attachment, Json, Outgoing

__all__ = ["Turns", "WebSocketWriter"]

logger = logging.getLogger(__name__)

_TEXT, _BINARY = WSMsgType.TEXT, WSMsgType.BINARY
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
            self._write_parts([_head(_TEXT, size), *parts])
        elif late:
            late.append(_head(_TEXT, size))
            late.extend(parts)
        elif self._is_busy or self._wrote_in == self._turns.current() or self._turns.before_writes is not None:
            late.append(_head(_TEXT, size))
            late.extend(parts)
            self._turns.write_at_end(self)
        else:
            self._wrote_in = self._turns.current()
            self._frames.send(_TEXT, b"".join(parts))
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
            kind, data = (_BINARY, packet.data) if isinstance(packet, Attachment) else (_TEXT, packet)
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
    if kind is _TEXT and size < 1 << 16:
        return _SHORTEST[size] if size < 126 else _short(0x81, 126, size)
    first = _FINAL | kind.value
    if size < 126:
        return bytes((first, size))
    return _short(first, 126, size) if size < 1 << 16 else bytes((first, 127)) + size.to_bytes(8)


_SHORTEST = [bytes((0x81, size)) for size in range(126)]
_short = Struct(">BBH").pack
