"""Raw clients for tests: one that speaks Socket.IO through the library, one that sends frames of its own making."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import aiohttp
import socketio

NAMESPACE = "/smcp"
PATIENCE = 30.0
"""A bound against hanging, nothing that is measured."""

SEATINGS = ("server:join_office", "server:leave_office")


class Peer:
    """A python-socketio client that remembers what it hears and answers what it is told to."""

    def __init__(self, client: socketio.AsyncClient) -> None:
        self.client = client
        self.name = ""
        self.office = ""
        self.heard: list[tuple[str, Any]] = []
        self.asked: list[tuple[str, Any]] = []
        self._answers: dict[str, Callable[[Any], Any]] = {}
        self.agree: Callable[[str], Awaitable[None]] | None = None
        self._news = asyncio.Condition()
        client.on("*", self._on_event, namespace=NAMESPACE)

    @classmethod
    async def connect(cls, url: str, *, query: str = "", **options: Any) -> Peer:
        client = socketio.AsyncClient(reconnection=False, websocket_extra_options={"max_msg_size": 0})
        peer = cls(client)
        try:
            await client.connect(url + query, namespaces=[NAMESPACE], wait_timeout=PATIENCE, **options)
        except BaseException:
            if client.eio.http:  # engineio leaves it open after a websocket that was refused
                await client.eio.http.close()
            raise
        return peer

    @property
    def sid(self) -> str:
        return str(self.client.get_sid(NAMESPACE))

    async def ask(self, event: str, *data: Any) -> Any:
        """Emits and waits for the ack; several ack arguments come as a tuple.

        On several nodes an ack of a change of seats says that one node knows it: waits for the others.
        """
        payload = data[0] if len(data) == 1 else data
        answer = await self.client.call(event, payload, namespace=NAMESPACE, timeout=PATIENCE)
        if self.agree and event in SEATINGS and isinstance(payload, dict):
            for office in {str(payload.get("office_id")), self.office}:
                await self.agree(office)
        return answer

    async def join(self, role: str, name: str, office: str, **more: Any) -> Any:
        """Joins, and fails the test unless that is accepted."""
        answer = await self.ask_to_join(role, name, office, **more)
        assert answer == (True, None), answer
        self.name, self.office = name, office
        return answer

    async def ask_to_join(self, role: str, name: str, office: str, **more: Any) -> Any:
        return await self.ask("server:join_office", {"role": role, "name": name, "office_id": office, **more})

    async def seat(self) -> str:
        """The identity of this agent's own seat."""
        room = await self.ask("server:list_room", {"agent": self.name, "req_id": "r", "office_id": self.office})
        (seat,) = (member["seat"] for member in room["sessions"] if member["role"] == "agent")
        return str(seat)

    async def request(self, event: str, computer: str, **more: Any) -> Any:
        """A `client:*` request under this peer's own name."""
        return await self.ask(event, {"agent": self.name, "req_id": uuid4().hex, "computer": computer, **more})

    async def call_tool(self, computer: str, tool: str = "add", timeout: int = 5, **more: Any) -> Any:
        call = {"tool_name": tool, "params": {}, "timeout": timeout, **more}
        return await self.request("client:tool_call", computer, **call)

    def answers(self, event: str, answer: Any) -> None:
        """Answers an event with a value, or with what a function (async or not) makes of its payload."""
        self._answers[event] = answer if callable(answer) else lambda _: answer

    async def hears(self, event: str, **fields: Any) -> Any:
        """Waits for a notice with these fields and returns its payload."""

        def found() -> Any:
            matches = (data for name, data in self.heard if name == event and fields.items() <= data.items())
            return next(matches, None)

        async with asyncio.timeout(PATIENCE), self._news:
            await self._news.wait_for(lambda: found() is not None)
        return found()

    async def was_asked(self, event: str, times: int = 1) -> list[Any]:
        """Waits until an event has arrived this often and returns its payloads."""

        def payloads() -> list[Any]:
            return [data for name, data in self.asked if name == event]

        async with asyncio.timeout(PATIENCE), self._news:
            await self._news.wait_for(lambda: len(payloads()) >= times)
        return payloads()

    async def heard_until_now(self) -> list[tuple[str, Any]]:
        """Everything heard so far. Packets keep their order, so after a round trip nothing older is on its way."""
        await self.ask("no:such_event", {})
        return self.heard

    async def drop(self) -> None:
        """Loses the connection without a word."""
        if self.client.eio.ws:
            self.client.eio.ws._response.connection.transport.abort()
        await self.close()

    async def close(self) -> None:
        await self.client.disconnect()

    async def _on_event(self, event: str, *data: Any) -> Any:
        async with self._news:
            (self.heard if event.startswith("notify:") else self.asked).append((event, data[0] if data else None))
            self._news.notify_all()
        if event not in self._answers:
            return None
        answer = self._answers[event](*data)
        return await answer if asyncio.iscoroutine(answer) else answer


class Wire:
    """A websocket to the Server on which every frame is written by hand."""

    def __init__(self, session: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._session = session
        self.socket = socket
        self.agree: Callable[[str], Awaitable[None]] | None = None

    @classmethod
    async def open(cls, url: str, query: str = "", **options: Any) -> Wire:
        session = aiohttp.ClientSession()
        address = f"{url}/socket.io/?EIO=4&transport=websocket{query}"
        try:
            wire = cls(session, await session.ws_connect(address, max_msg_size=0, **options))
        except BaseException:
            await session.close()
            raise
        assert (await wire.receive()).startswith("0{")
        return wire

    @classmethod
    async def connect(cls, url: str, auth: Any = None) -> Wire:
        wire = await cls.open(url)
        await wire.send(f"40{NAMESPACE},{'' if auth is None else json.dumps(auth)}")
        assert (await wire.receive()).startswith(f"40{NAMESPACE},")
        return wire

    async def send(self, frame: str | bytes) -> None:
        await (self.socket.send_str(frame) if isinstance(frame, str) else self.socket.send_bytes(frame))

    async def receive(self) -> str:
        """The next frame, pings answered; `""` when the connection has ended."""
        while True:
            message = await self.socket.receive(timeout=PATIENCE)
            if message.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                return ""
            if message.data != "2":
                return str(message.data)
            await self.send("3")

    async def asked(self, event: str = "") -> int:
        """The ack id of the next request, of this event."""
        while frame := await self.receive():
            number = frame.removeprefix(f"42{NAMESPACE},").partition("[")[0]
            if number.isdecimal() and event in frame:
                return int(number)
        raise ConnectionError("the connection ended before the request")

    async def join(self, role: str, name: str, office: str, **more: Any) -> None:
        request = json.dumps({"role": role, "name": name, "office_id": office, **more})
        assert await self.ask(f'42{NAMESPACE},1["server:join_office",{request}]', 1) == [True, None]
        if self.agree:
            await self.agree(office)

    async def ask(self, frame: str, ack: int) -> Any:
        """Sends a frame and returns the arguments of the ack with this id."""
        await self.send(frame)
        head = f"43{NAMESPACE},{ack}["
        while frame := await self.receive():
            if frame.startswith(head):
                return json.loads(frame[len(head) - 1 :])
        raise ConnectionError("the connection ended before the ack")

    def stop_reading(self) -> None:
        """From now on nothing is taken from the network: a peer that hangs."""
        self._transport.pause_reading()

    def go_on_reading(self) -> None:
        self._transport.resume_reading()

    async def close(self) -> None:
        if self._transport and not self._transport.is_reading():
            self._transport.abort()
        await self.socket.close()
        await self._session.close()

    @property
    def _transport(self) -> Any:
        connection = self.socket._response.connection
        return connection.transport if connection else None
