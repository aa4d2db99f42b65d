"""The hub without sockets: clients whose channels keep what is written."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from a2c_smcp.engine.events import Ack, Event
from a2c_smcp.errors import RateLimited
from a2c_smcp.server.auth.authentication import AuthenticationProvider, Handshake
from a2c_smcp.server.connections import Connection
from a2c_smcp.server.hub import Hub
from tests.waiting import until

CALL = {"agent": "planner", "computer": "laptop", "tool_name": "add", "params": {}, "timeout": 30}


class KnowsToken(AuthenticationProvider):
    """Admits everybody but those who say `no`."""

    async def authenticate(self, sio: Any, environ: Any, auth: Any, headers: Any) -> bool:
        return auth != {"token": "no"}


class Client:
    """A channel that keeps what is written to it, and a client at its end."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.packets: list[bytes] = []
        self.attachments: list[Sequence[bytes]] = []
        self.room = 16 * 1024 * 1024
        self.is_dismissed = False
        self.is_aborted = False
        self._connection: Connection | None = None

    @property
    def connection(self) -> Connection:
        assert self._connection
        return self._connection

    async def connect(self, auth: bytes = b"") -> Client:
        self._connection = await self.hub.connect(self, Handshake(), auth)
        return self

    @classmethod
    async def joined(cls, hub: Hub, role: str, name: str, office: str = "desk", **more: Any) -> Client:
        client = await cls(hub).connect()
        await client.join(role, name, office, **more)
        return client

    # For the hub

    def send(self, *parts: Any) -> None:
        self.packets.append(b"".join(parts))

    def send_all(self, packets: Sequence[bytes]) -> None:
        self.packets += packets

    def send_attached(self, packet: bytes, attachments: Sequence[bytes]) -> None:
        self.packets.append(packet)
        self.attachments.append(attachments)

    def check_room(self, size: int) -> None:
        if size > self.room:
            raise RateLimited("full")

    def dismiss(self) -> None:
        self.is_dismissed = True

    def abort(self) -> None:
        self.is_aborted = True

    # For the test

    def say(self, number: int | None, name: str, data: Any, attachments: tuple[bytes, ...] = ()) -> None:
        self.hub.receive(self.connection, Event(b"/smcp", number, json.dumps([name, data]).encode(), attachments))

    def ack(self, number: int, body: bytes, attachments: tuple[bytes, ...] = ()) -> None:
        self.hub.acked(self.connection, Ack(b"/smcp", number, body, attachments))

    def call(self, number: int, req_id: str = "", **more: Any) -> None:
        self.say(number, "client:tool_call", {**CALL, "req_id": req_id or f"r{number}", **more})

    def ask_to_join(self, number: int, role: str, name: str, office: str = "desk", **more: Any) -> None:
        self.say(number, "server:join_office", {"role": role, "name": name, "office_id": office, **more})

    async def join(self, role: str, name: str, office: str = "desk", **more: Any) -> None:
        self.ask_to_join(1, role, name, office, **more)
        await until(lambda: b"43/smcp,1[true,null]" in self.packets)
        self.packets.clear()

    def answer(self, number: int) -> Any:
        """The ack with this number, if it has come."""
        head = b"43/smcp,%d[" % number
        found = [packet for packet in self.packets if packet.startswith(head)]
        return json.loads(found[0][len(head) - 1 :]) if found else None


@pytest.fixture
async def hubs() -> AsyncIterator[Callable[..., Hub]]:
    made: list[Hub] = []

    def make(**options: Any) -> Hub:
        made.append(Hub(KnowsToken(), **options))
        return made[-1]

    yield make
    for hub in made:
        await hub.close()


async def pair(hub: Hub) -> tuple[Client, Client]:
    agent, computer = await Client.joined(hub, "agent", "planner"), await Client.joined(hub, "computer", "laptop")
    agent.packets.clear()
    return agent, computer
