"""Clients of the echo application whose packets the test writes: one that polls, one on a websocket."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

__all__ = ["OpenHandshake", "Polling", "Visitor", "WebSocket"]

PATIENCE = 30.0
"""A bound against hanging, nothing that is measured."""


@dataclass(frozen=True)
class Response:
    status: int
    text: str


class OpenHandshake(dict[str, Any]):
    """The fields of an OPEN packet."""

    def __init__(self, packet: str) -> None:
        assert packet[0] == "0", packet
        super().__init__(json.loads(packet[1:]))


class WebSocket:
    """Frames as they are; pings are frames like all others."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, *frames: str | bytes) -> None:
        for frame in frames:
            await (self._socket.send_str(frame) if isinstance(frame, str) else self._socket.send_bytes(frame))

    async def receive(self) -> str | bytes:
        message = await self._socket.receive(timeout=PATIENCE)
        assert message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY), message
        frame: str | bytes = message.data
        return frame

    async def receive_text(self) -> str:
        frame = await self.receive()
        assert isinstance(frame, str)
        return frame

    async def receive_besides_pings(self) -> str:
        """The next text that is no ping: on a busy machine one may come first, if they are frequent."""
        while (frame := await self.receive_text()) == "2":
            pass
        return frame

    async def is_closed_by_the_server(self) -> bool:
        """Reads until the connection has ended; fails the test if it goes on."""
        message = await self._socket.receive(timeout=PATIENCE)
        while message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            message = await self._socket.receive(timeout=PATIENCE)
        return True


class Polling:
    """One session over long polling."""

    def __init__(self, http: aiohttp.ClientSession, url: str, opened: OpenHandshake) -> None:
        self._http = http
        self.url = f"{url}&sid={opened['sid']}"
        self.sid = opened["sid"]

    async def get(self) -> Response:
        async with self._http.get(self.url) as response:
            return Response(response.status, await response.text())

    async def post(self, packets: str) -> Response:
        async with self._http.post(self.url, data=packets) as response:
            return Response(response.status, await response.text())


class Visitor:
    """Opens sessions of one application, at one path."""

    def __init__(self, http: aiohttp.ClientSession, url: str, path: str) -> None:
        self._http = http
        self._url = f"{url}{path}"

    async def request(self, method: str, query: Sequence[str]) -> Response:
        async with self._http.request(method, f"{self._url}?{'&'.join(query)}") as response:
            return Response(response.status, await response.text())

    async def websocket(self, *query: str) -> WebSocket:
        """Raises `aiohttp.WSServerHandshakeError` if it is refused before it is open."""
        url = f"{self._url}?{'&'.join(query)}"
        return WebSocket(await self._http.ws_connect(url, max_msg_size=0, autoping=False))

    async def poll(self) -> Polling:
        """A session over long polling, opened."""
        query = ["EIO=4", "transport=polling"]
        response = await self.request("GET", query)
        return Polling(self._http, f"{self._url}?{'&'.join(query)}", OpenHandshake(response.text))

    async def open(self) -> WebSocket:
        """A session that begins as a websocket, opened."""
        socket = await self.websocket("EIO=4", "transport=websocket")
        OpenHandshake(await socket.receive_text())
        return socket

    async def upgrade(self, polling: Polling) -> WebSocket:
        """A websocket for a session that polls; nothing is sent on it yet."""
        return await self.websocket("EIO=4", "transport=websocket", f"sid={polling.sid}")

    async def connect(self) -> WebSocket:
        """A websocket that is connected to the main namespace."""
        socket = await self.open()
        await socket.send("40")
        assert (await socket.receive_besides_pings()).startswith("40{")
        assert await socket.receive_besides_pings() == '42["auth",{}]'
        return socket
