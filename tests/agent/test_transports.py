"""Where a proxy or a Server forbids websockets, clients poll instead."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer.computer import Computer
from a2c_smcp.connection import Connection
from a2c_smcp.endpoint import Endpoint
from tests.agent.test_endpoint import pump
from tests.agent.twins import at_work
from tests.computer.hosted import hosted
from tests.peer import Peer
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


class Obstacle:
    """A proxy that passes on everything but websockets."""

    def __init__(self, url: str, kind: str) -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)
        self._kind = kind
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.refused = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._enter, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for writer in self._writers:
                writer.transport.abort()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return
        if b"transport=websocket" in head:
            self.refused += 1
            if self._kind in REFUSALS:
                writer.write(REFUSALS[self._kind])
                writer.close()
            if self._kind != SWALLOWS:
                return
        there, back = await asyncio.open_connection(self._host, self._port)
        self._writers.append(back)
        back.write(head)
        if b"transport=websocket" in head:
            writer.write(await there.readuntil(b"\r\n\r\n"))
        else:
            self._tasks |= {asyncio.create_task(pump(reader, back)), asyncio.create_task(pump(there, writer))}


@pytest.mark.covers("agent-asks")
@pytest.mark.parametrize("kind", OBSTACLES)
async def test_where_websockets_are_forbidden_an_agent_polls_without_delay(
    kind: str, shared_hub: Any, office: str, computer: Peer
) -> None:
    computer.answers("client:get_tools", {"tools": [], "req_id": "x"})
    computer.answers("client:tool_call", lambda data: {"content": [{"type": "text", "text": data["params"]["text"]}]})
    computer.answers("client:put_blob", lambda data: {"got": data["blob"][::-1]})
    obstacle = Obstacle(shared_hub.url, kind)
    async with obstacle.open() as url, at_work(AsyncSMCPAgentClient, url=url, office=office) as agent:
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
async def test_where_websockets_are_forbidden_a_computer_polls(
    shared_hub: Any, office: str, tmp_path: Path, agent: Peer
) -> None:
    computer = Computer("tower")
    computer.tool(lambda: "here", name="look", auto_apply=True)
    async with (
        Obstacle(shared_hub.url, "answers 403").open() as url,
        hosted(computer, url, office, tmp_path),
    ):
        for _ in range(3):
            assert (await agent.call_tool("tower", "look"))["content"][0]["text"] == "here"


async def test_a_connection_that_polls_is_lost_when_its_server_goes_away(serve: Any) -> None:
    hub = await serve(limits={"ping_interval": 0.2, "ping_timeout": 0.2})
    obstacle = Obstacle(hub.url, "answers 403")
    async with obstacle.open() as url, Connection(Endpoint(url=url), lambda *_: None) as connection:

        def is_lost() -> bool:
            for task in obstacle._tasks:  # a poll may be on its way there just now
                task.cancel()
            return connection.lost.is_set()

        await until(is_lost)


async def test_leaving_while_polling_ends_the_session_at_the_server_at_once(shared_hub: Any, office: str) -> None:
    async with at_work(AsyncSMCPAgentClient, "other", url=shared_hub.url, office=office):
        pass
    async with Obstacle(shared_hub.url, "answers 403").open() as url:
        for _ in range(2):  # the office holds one agent at a time: the first has left when the second comes
            async with Connection(Endpoint(url=url), lambda *_: None) as connection:
                joining = {"role": "agent", "name": "planner", "office_id": office}
                assert await connection.ask("server:join_office", joining, 30) == (True, None)


def test_agent_and_computer_do_without_python_socketio() -> None:
    program = """
import sys
sys.modules["socketio"] = sys.modules["engineio"] = None
import a2c_smcp.agent.client, a2c_smcp.computer.computer, a2c_smcp.computer.socketio, a2c_smcp.connection
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
