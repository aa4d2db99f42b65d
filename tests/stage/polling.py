"""A polling session, written by hand."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from tests.peer import PATIENCE


class Poller:
    """A session at the Server of this URL, over long polling. Each request may go to another node, `at` its URL."""

    def __init__(self, http: aiohttp.ClientSession, url: str, sid: str = "") -> None:
        self.http, self.sid = http, sid
        self._home = url

    def url(self, at: str = "", transport: str = "polling") -> str:
        session = f"&sid={self.sid}" if self.sid else ""
        return f"{at or self._home}/socket.io/?EIO=4&transport={transport}{session}"

    async def begin(self, **options: Any) -> Poller:
        """Opens a session, and says nothing in it."""
        self.sid = json.loads((await self.get(**options))[1][1:])["sid"]
        return self

    async def open(self, **options: Any) -> Poller:
        """Opens a session that is connected to `/smcp`."""
        await self.begin(**options)
        assert await self.post("40/smcp,") == (200, "OK")
        assert (await self.get())[1].startswith("40/smcp,")
        return self

    async def get(self, at: str = "", **options: Any) -> tuple[int, str]:
        async with self.http.get(self.url(at), **options) as response:
            return response.status, await response.text()

    async def post(self, data: Any, at: str = "", **options: Any) -> tuple[int, str]:
        async with self.http.post(self.url(at), data=data, **options) as response:
            return response.status, await response.text()

    async def websocket(self, at: str = "") -> aiohttp.ClientWebSocketResponse:
        """A websocket that may take the session over."""
        return await self.http.ws_connect(self.url(at, "websocket"), max_msg_size=0)

    async def upgrade(self, at: str = "") -> aiohttp.ClientWebSocketResponse:
        """A websocket that has taken the session over."""
        socket = await self.websocket(at)
        await socket.send_str("2probe")
        assert await socket.receive_str(timeout=PATIENCE) == "3probe"
        await socket.send_str("5")
        return socket
