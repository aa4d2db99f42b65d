"""uvicorn's protocols, mended: responses leave in one piece, and what a peer can make the Server hold is bounded."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import unquote_to_bytes

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from a2c_smcp.server.websocket import WebSocket, upgrade_key

__all__ = ["http_protocol"]

_MAX_HEADERS = 64 * 1024


def http_protocol(patience: float) -> Any:
    """The HTTP protocol class for a Server that waits this long for the headers of a request."""
    return type("Http", (_Http,), {"patience": patience})


class _Http(HttpToolsProtocol):
    """Ends a connection whose request does not come in time, or has endless headers."""

    patience: float
    _waiting: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._header_bytes += len(data)
        if self._waiting and self._header_bytes > _MAX_HEADERS:
            self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(_Joined(transport, self.loop))  # type: ignore[arg-type]  # a transport by delegation
        self._wait()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self) -> None:
        """The connection is a websocket's from here on."""
        self.connections.discard(self)
        key = upgrade_key(self.scope["headers"])
        if key is None or (self.cycle and not self.cycle.response_complete):
            self.send_400_response("not a websocket upgrade that is understood here")
            return
        state = self.server_state
        websocket = WebSocket(
            self.transport.bare,  # type: ignore[attr-defined]
            key,
            self.config.ws_max_size,
            lambda: state.connections.discard(websocket),
        )
        state.connections.add(websocket)  # type: ignore[arg-type]  # it can be shut down, as the others can
        raw_path, _, query = self.url.partition(b"?")
        scope = {
            **self.scope,
            "type": "websocket",
            "scheme": {"http": "ws", "https": "wss"}[self.scope["scheme"]],
            "path": self.root_path + unquote_to_bytes(raw_path).decode(errors="replace"),
            "raw_path": self.root_path.encode() + raw_path,
            "query_string": query,
            "subprotocols": [],
        }
        task = self.loop.create_task(websocket.serve(self.app, scope))
        state.tasks.add(task)
        task.add_done_callback(state.tasks.discard)

    def _wait(self) -> None:
        self._stop_waiting()
        self._header_bytes = 0
        self._waiting = self.loop.call_later(self.patience, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting.cancel()
            self._waiting = None


class _Joined:
    """A transport that joins what is written in one step of the event loop.

    uvicorn writes the head and the body of a response one after the other, and a published client that is refused
    closes its connection as soon as it has the head.
    """

    def __init__(self, bare: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self.bare = bare
        self._loop = loop
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bare, name)

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self.bare.close()

    def _flush(self) -> None:
        if self._parts:
            joined = b"".join(self._parts)
            self._parts.clear()
            self.bare.write(joined)
