"""A proxy for websockets in front of a Server, which records the shapes of all messages."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any, Protocol, Self

from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType, web
from socketio import packet
from socketio.packet import Packet

from tests.golden.shapes import Shapes

__all__ = ["Conversation", "Tap"]

_OF_ONE_LINE = ("host", "connection", "upgrade", "sec-websocket")


class Records(Protocol):
    def add(self, topic: str, message: Any, place: str) -> None: ...


class Conversation:
    """The packets of one websocket. `role` is that of the first join."""

    def __init__(self, records: Records) -> None:
        self.role = "client"
        self._records = records
        self._asked: dict[tuple[bool, int], str] = {}
        self._partial: dict[bool, Packet] = {}

    def take(self, data: str | bytes, *, is_client: bool) -> None:
        if isinstance(data, bytes):
            if (waiting := self._partial.get(is_client)) and waiting.add_attachment(data):
                self._record(self._partial.pop(is_client), is_client)
        elif data.startswith("0"):
            self._records.add("open", json.loads(data[1:]), "to client")
        elif data.startswith("4"):
            read = Packet(encoded_packet=data[1:])
            if read.attachment_count:
                self._partial[is_client] = read
            else:
                self._record(read, is_client)

    def _record(self, read: Packet, is_client: bool) -> None:
        topic, told = packet.packet_names[read.packet_type].lower(), read.data
        if topic.endswith("event"):
            topic, *told = read.data
            if read.id is not None:
                self._asked[is_client, read.id] = topic
            if topic == "server:join_office" and self.role == "client":
                self.role = told[0]["role"]
        elif topic.endswith("ack"):
            topic = f"{self._asked[not is_client, read.id]} answer"
        if "tell_state" in topic:  # how long a state lasts, and so if it is told, is up to the machine
            return
        if isinstance(told, list):
            told = told[0] if len(told) == 1 else {str(place): each for place, each in enumerate(told)}
        self._records.add(topic, told, f"{'from' if is_client else 'to'} {self.role}")


class Tap:
    """Use as a context manager, and set the URL of the `server`. `/closed` is an MCP server that wants a sign-in."""

    def __init__(self) -> None:
        self.shapes = Shapes()
        self.server = ""
        self._open: dict[Conversation, web.Request] = {}

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/socket.io/", self._relay)
        app.router.add_route("*", "/closed", self._refuse)
        self._http = ClientSession()
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._http.close()

    def cut(self, role: str) -> None:
        """Drop all connections of a role, without a word."""
        for conversation, request in self._open.items():
            if conversation.role == role and request.transport:
                request.transport.abort()

    async def _relay(self, request: web.Request) -> web.WebSocketResponse:
        client = web.WebSocketResponse(max_msg_size=0)
        await client.prepare(request)
        headers = {name: text for name, text in request.headers.items() if not name.lower().startswith(_OF_ONE_LINE)}
        async with self._http.ws_connect(f"{self.server}{request.path_qs}", headers=headers, max_msg_size=0) as server:
            talk = Conversation(self.shapes)
            self._open[talk] = request
            pumps = [asyncio.create_task(_pump(*ends, talk)) for ends in ((client, server), (server, client))]
            ended, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            del self._open[talk]
            for pump in pumps:
                pump.cancel()
            await asyncio.wait(pumps)
            await client.close()
            for pump in ended:
                with suppress(ConnectionError, asyncio.CancelledError):
                    pump.result()
        return client

    async def _refuse(self, request: web.Request) -> web.Response:
        return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"})


async def _pump(source: Any, target: Any, conversation: Conversation) -> None:
    async for message in source:
        conversation.take(message.data, is_client=not isinstance(source, ClientWebSocketResponse))
        await (target.send_str if message.type is WSMsgType.TEXT else target.send_bytes)(message.data)
