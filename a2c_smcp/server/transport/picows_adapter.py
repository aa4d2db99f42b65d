"""picows' reader of frames on a connection whose upgrade request our own web server has read.

picows has no documented way to be given an accepted connection, so this file, and no other, uses its `WSProtocol`: it
is told an upgrade request of our own making and then sees the connection's bytes. `check` finds out, when a Server
starts, whether the installed picows can still be used like that.

A `FrameReader` stands between the transport and picows, for two reasons. picows doubles its buffer whenever a read has
filled it and never shrinks it, so one peer could make a single read, and all the frames in it, as large as it likes:
the reader offers at most `_MOST_AT_ONCE` bytes to a read. And a peer that is not authenticated may not make us hold a
large frame at all: until `trust` is called the reader counts what is held, and calls
`holds_too_much` of its listener, which has this method beside those of picows.
"""

from __future__ import annotations

import asyncio
import logging
from importlib.metadata import version
from typing import Any

from picows import WSAutoPingStrategy, WSFrame, WSListener, WSMsgType, WSTransport
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # its stubs leave it out

from a2c_smcp.errors import ConfigError

logger = logging.getLogger(__name__)


_BUFFER = 2048
_MOST_AT_ONCE = 64 * 1024
_LITTLE = 4 * 1024
_LARGE = 2 * _MOST_AT_ONCE
_KEY = "dGhlIHNhbXBsZSBub25jZQ=="
_UPGRADE = (
    "GET / HTTP/1.1\r\nHost: -\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n\r\n"
)


class FrameReader(asyncio.BufferedProtocol):
    """The protocol of a websocket's transport. Until `trust`, `held` counts the bytes of an unfinished frame."""

    __slots__ = (
        "_key", "_listener", "_max_size", "_most", "_most_held", "_picows", "_transport", "buffer_updated", "held",
        "max_message",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport, key: str, listener: Any, *, max_size: int, most_held: int) -> None:
        self.held = 0
        self.max_message = most_held
        self._transport = transport
        self._key = key
        self._listener = listener
        self._max_size = max_size
        self._most_held = most_held
        self._most = most_held + 1

    def start(self) -> None:
        """Answers the upgrade request."""
        self._picows = _protocol(self._transport, self._key, self._max_size, self._listener)
        self.buffer_updated = self._count  # type: ignore[method-assign,assignment]  # a slot of this class
        self._transport.set_protocol(self)

    def read(self, ahead: bytes) -> None:
        """Bytes that came with the upgrade request."""
        while ahead and not self._transport.is_closing():
            buffer = self.get_buffer(-1)
            part, ahead = ahead[: len(buffer)], ahead[len(buffer) :]
            buffer[: len(part)] = part
            self.buffer_updated(len(part))

    def trust(self) -> None:
        """The peer is authenticated: messages may be as large as the transport admits."""
        self.max_message = self._max_size
        self._most_held, self._most = 0, _MOST_AT_ONCE
        self._use(self._picows)

    def read_little(self, *, is_wanted: bool) -> None:
        """Makes the next reads of a trusted peer small, or not: all frames of one read are handled in one turn."""
        if not self._most_held:
            self._most = _LITTLE if is_wanted else _MOST_AT_ONCE

    def renew(self) -> None:
        """Drops a buffer that a large message needed. All that came must have been handled."""
        if not self._most_held and len(self._picows.get_buffer(-1)) > _LARGE:
            silent = _Silent(self._transport)
            self._picows = _protocol(silent, self._key, self._max_size, self._listener)
            silent.is_silent = False
            self._use(self._picows)

    def discard(self) -> None:
        """Reads on and drops what comes: a peer that is still writing could not read why it is refused."""
        self._most_held, self._most = 0, _MOST_AT_ONCE
        self._picows = _Discarding(self._picows)
        self._use(self._picows)

    def get_buffer(self, sizehint: int) -> Any:
        buffer = self._picows.get_buffer(sizehint)
        return buffer if len(buffer) <= self._most else buffer[: self._most]

    def _count(self, size: int) -> None:
        """`buffer_updated` until `trust`. The listener resets `held` with each frame."""
        self.held += size
        self._picows.buffer_updated(size)
        if self._most_held:
            self._most = max(1, self._most_held + 1 - self.held)
            if self.held > self._most_held:
                self._listener.holds_too_much()

    def _use(self, protocol: Any) -> None:
        """Event loops keep the methods of a protocol, so it has to be set again when one of them changes."""
        self.buffer_updated = protocol.buffer_updated  # type: ignore[method-assign]
        self._transport.set_protocol(self)

    def pause_writing(self) -> None:
        self._picows.pause_writing()

    def resume_writing(self) -> None:
        self._picows.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._picows.connection_lost(error)


class _Discarding:
    """Takes the place of picows, which is still told of the end."""

    def __init__(self, picows: Any) -> None:
        self._picows = picows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._picows, name)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _SCRATCH

    def buffer_updated(self, size: int) -> None: ...


_SCRATCH = memoryview(bytearray(_MOST_AT_ONCE))


class _Quiet:
    """The log of picows, which would log every connection, and every mistake of a peer."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802, named by the standard library
        return False

    def log(self, *args: Any) -> None: ...

    debug = info = warning = error = log

    def exception(self, what: str, *args: Any) -> None:
        """An exception of our own listener: picows has ended the connection."""
        logger.exception("serving a websocket failed")


class _Silent:
    """A transport that drops what is written at first: an answer that its peer already has."""

    def __init__(self, bare: asyncio.Transport) -> None:
        self.is_silent = True
        self._bare = bare

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bare, name)

    def write(self, data: bytes) -> None:
        if not self.is_silent:
            self._bare.write(data)


def _protocol(transport: Any, key: str, max_size: int, listener: WSListener) -> Any:
    """picows, after an upgrade request with this key."""
    protocol: Any = WSProtocol(
        None, None, False, lambda request: listener, _QUIET, True, None,
        False, 0, 0, WSAutoPingStrategy.PING_WHEN_IDLE, False, max_size, None, _BUFFER,
    )  # fmt: skip
    request = _UPGRADE.format(key).encode()
    protocol.connection_made(transport)
    protocol.get_buffer(-1)[: len(request)] = request
    protocol.buffer_updated(len(request))
    return protocol


_QUIET = _Quiet()


def check() -> None:
    """Echoes a frame through a fake transport. Raises `ConfigError` if the installed picows does not fit."""
    wanted = b"\x81\x02ok"
    try:
        transport: Any = _Fake()
        reader = FrameReader(transport, _KEY, _Echo(), max_size=1024, most_held=1024)
        reader.start()
        reader.read(b"\x81\x82\0\0\0\0ok")
        is_good = bool(transport.written) and transport.written.endswith(b"\r\n\r\n" + wanted)
    except Exception:
        logger.debug("picows failed", exc_info=True)
        is_good = False
    if not is_good:
        raise ConfigError(
            f"picows {version('picows')} cannot be used: install a version that this program knows, "
            "picows>=2.3,<3, such as 2.3.1"
        )


class _Echo(WSListener):
    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        transport.send(WSMsgType.TEXT, frame.get_payload_as_bytes())

    def holds_too_much(self) -> None: ...


class _Fake:
    """A fake transport, and its socket. It claims TLS, so that picows writes to it."""

    def __init__(self) -> None:
        self.written = b""

    def get_extra_info(self, name: str) -> Any:
        return self if name in ("socket", "ssl_object") else None

    def fileno(self) -> int:
        return -1

    def getsockopt(self, *args: Any) -> int:
        return 0

    def setsockopt(self, *args: Any) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def set_protocol(self, protocol: Any) -> None: ...

    def write(self, data: bytes) -> None:
        self.written += bytes(data)
