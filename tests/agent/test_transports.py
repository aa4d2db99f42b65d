"""Ways to a Server: where websockets are forbidden clients poll; private CAs, client certificates and proxies."""

from __future__ import annotations

import asyncio
import base64
import gc
import ssl
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.connection import Connection
from a2c_smcp.endpoint import Endpoint
from a2c_smcp.errors import Unavailable
from tests.peer import Peer
from tests.stage.agent import Twin
from tests.stage.proxies import Proxy
from tests.stage.tls import certificate
from tests.waiting import until

HANGS_UP, HANGS, SWALLOWS = "hangs up", "hangs", "swallows what is sent"
REFUSALS = {
    "answers 400": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "answers 403": b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "answers 200": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno",
    "answers 502": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    HANGS_UP: b"",
}
OBSTACLES = [*REFUSALS, HANGS, SWALLOWS]
BATCH = 40  # more than the 16 packets of one payload


class Obstacle(Proxy):
    """Passes on everything but websockets."""

    def __init__(self, url: str, kind: str = "answers 403") -> None:
        super().__init__(url)
        self._kind = kind
        self.refused = 0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError), closing(writer):
            head = await reader.readuntil(b"\r\n\r\n")
            is_websocket = b"transport=websocket" in head
            self.refused += is_websocket
            if not is_websocket:
                there, back = await self.dial()
                back.write(head)
                await self.join(reader, writer, (there, back))
            elif self._kind in REFUSALS:
                writer.write(REFUSALS[self._kind])
            elif self._kind == HANGS:
                await asyncio.Event().wait()
            else:
                there, back = await self.dial()
                with closing(back):
                    back.write(head)
                    writer.write(await there.readuntil(b"\r\n\r\n"))
                    await asyncio.Event().wait()


@pytest.mark.covers("agent-asks")
@pytest.mark.parametrize("kind", OBSTACLES)
async def test_where_websockets_are_forbidden_an_agent_polls_without_delay(
    kind: str, planning: Any, shared_hub: Any, computer: Peer
) -> None:
    computer.answers("client:tool_call", lambda data: {"content": [{"type": "text", "text": data["params"]["text"]}]})
    computer.answers("client:put_blob", lambda data: {"got": data["blob"][::-1]})
    async with Obstacle(shared_hub.url, kind) as obstacle, planning(url=obstacle.url) as agent:
        # No dial was given up after its five seconds. aiohttp repeats a GET by itself whose connection was closed.
        assert obstacle.refused == (2 if kind == HANGS_UP else 1)
        large = "漢" * 500_000
        assert (await agent.emit_tool_call("laptop", "say", {"text": large})).text == large
        texts = [str(number) for number in range(BATCH)]
        said = await asyncio.gather(*(agent.emit_tool_call("laptop", "say", {"text": text}) for text in texts))
        assert [each.text for each in said] == texts
        assert await agent.request("client:put_blob", "laptop", {"blob": b"ab"}) == {"got": b"ba"}
        await computer.close()
        await until(lambda: agent.computers == [])


@pytest.mark.covers("computer-serves")
async def test_where_websockets_are_forbidden_a_computer_polls(shared_hub: Any, hosts: Any, planner: Twin) -> None:
    computer = Computer("tower")
    computer.tool(lambda: "here", name="look", auto_apply=True)
    async with Obstacle(shared_hub.url) as obstacle, hosts(computer, obstacle.url):
        for _ in range(3):
            assert (await planner.emit_tool_call("tower", "look")).text == "here"


async def test_a_connection_that_polls_is_lost_when_its_server_goes_away(serve: Any) -> None:
    hub = await serve(limits={"ping_interval": 0.2, "ping_timeout": 0.2})
    async with Obstacle(hub.url) as obstacle, Connection(Endpoint(url=obstacle.url), lambda *_: None) as connection:

        def is_lost() -> bool:
            for task in obstacle._tasks:  # a poll may be on its way there just now
                task.cancel()
            return connection.lost.is_set()

        await until(is_lost)


async def test_leaving_while_polling_ends_the_session_at_the_server_at_once(shared_hub: Any, office: str) -> None:
    async with Obstacle(shared_hub.url) as obstacle:
        for _ in range(2):  # the office holds one agent at a time: the first has left when the second comes
            async with Connection(Endpoint(url=obstacle.url), lambda *_: None) as connection:
                joining = {"role": "agent", "name": "planner", "office_id": office}
                assert await connection.ask("server:join_office", joining, 30) == (True, None)


def test_agent_and_computer_do_without_python_socketio() -> None:
    program = """
import sys
sys.modules["socketio"] = sys.modules["engineio"] = None
import a2c_smcp.agent.client, a2c_smcp.computer.computer, a2c_smcp.computer.socketio, a2c_smcp.connection
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


class Front(Proxy):
    """TLS before a Server without."""

    def __init__(self, url: str, tls: ssl.SSLContext) -> None:
        super().__init__(url)
        self.tls = tls


class Gate(Proxy):
    """A CONNECT proxy for one user."""

    def __init__(self) -> None:
        super().__init__("")
        self.asked: list[bytes] = []

    def url_for(self, password: str) -> str:
        return self.url.replace("//", f"//planner:{password}@")

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.asked.append(head.partition(b"\r\n")[0])
        if b"Proxy-Authorization: Basic " + base64.b64encode(b"planner:open sesame") not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await self.join(reader, writer, await self.dial(head.split()[1].decode()))


@pytest.fixture
async def front(shared_hub: Any, trust: Trust) -> AsyncIterator[Front]:
    async with Front(shared_hub.url, trust.of_server()) as front:
        yield front
    with warnings.catch_warnings():  # aiohttp may drop the transport of a refused client without closing it
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    async with Gate() as gate:
        yield gate


class Trust:
    """A Server that knows one client, and a client that knows one Server."""

    def __init__(self, folder: Path) -> None:
        self.server_cert, self.server_key = certificate(folder, "server")
        self.client_cert, self.client_key = certificate(folder, "client")

    def of_server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server_cert, self.server_key)
        context.load_verify_locations(self.client_cert)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def of_client(self, *, with_certificate: bool = True) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.server_cert)
        if with_certificate:
            context.load_cert_chain(self.client_cert, self.client_key)
        return context


@pytest.fixture
def trust(tmp_path: Path) -> Trust:
    return Trust(tmp_path)


@pytest.mark.covers("agent-asks")
async def test_through_a_proxy_with_a_client_certificate_to_a_server_of_a_private_authority(
    kind: Any, planning: Any, front: Front, gate: Gate, trust: Trust, computer: Peer
) -> None:
    computer.answers("client:tool_call", {"content": [{"type": "text", "text": "x" * 2_000_000}]})
    way = {"url": front.url, "ssl": trust.of_client(), "proxy": gate.url_for("open%20sesame")}
    async with planning(kind, **way) as agent:
        assert (await agent.emit_tool_call("laptop", "add")).text == "x" * 2_000_000
    assert set(gate.asked) == {f"CONNECT {front.url.removeprefix('https://')} HTTP/1.1".encode()}


@pytest.mark.covers("agent-asks")
async def test_a_refused_client_gets_a_reason_without_secrets(
    kind: Any, office: str, front: Front, gate: Gate, trust: Trust, caplog: pytest.LogCaptureFixture
) -> None:
    ways = [
        {"ssl": trust.of_client(), "proxy": gate.url_for("hunter2")},
        {"ssl": trust.of_client(with_certificate=False)},
        {"ssl": ssl.create_default_context()},
        {},
    ]
    for way in ways:
        agent = Twin(kind("planner", url=f"{front.url}?token=hunter2", office=office, **way))
        with pytest.raises(Unavailable) as refused:
            await agent.connect()
        assert "hunter2" not in f"{refused.value}{refused.value!r}{vars(agent.client)}{caplog.text}"


@pytest.mark.covers("computer-serves")
async def test_a_computer_uses_the_same_proxy_and_certificates(
    front: Front, gate: Gate, trust: Trust, hosts: Any, planner: Twin
) -> None:
    computer = Computer("tower")
    computer.tool(lambda: "here", name="look", auto_apply=True)
    async with hosts(computer, front.url, ssl=trust.of_client(), proxy=gate.url_for("open%20sesame")):
        assert (await planner.emit_tool_call("tower", "look")).text == "here"
    assert gate.asked
