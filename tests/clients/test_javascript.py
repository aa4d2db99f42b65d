"""The JavaScript socket.io-client as agent and as computer, over every way that it connects."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from a2c_smcp.server import DefaultAuthenticationProvider
from tests.cluster import Front
from tests.conftest import Hub
from tests.interop.conftest import CACHE
from tests.interop.driver import Driver

WAYS: dict[str, dict[str, Any]] = {
    "polling": {"transports": ["polling"]},
    "websocket": {"transports": ["websocket"]},
    "upgrade": {},
}
NAMES = {"agent": "planner", "computer": "laptop"}
RESULT = {"content": [{"type": "text", "text": "三 ☃"}], "isError": False, "_meta": {"x": [1, 2.5, None]}}
ACCEPTED = [True, None]

pytestmark = pytest.mark.covers("interop-javascript")


class Link:
    """A network between a client and the Server that can be cut."""

    def __init__(self, hub: Hub) -> None:
        self._hub = urlsplit(hub.url)
        self._ends: set[asyncio.StreamWriter] = set()
        self._is_up = True
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Link:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server
        self._server.close()
        self.cut()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Every connection ends without a word, and nobody gets through."""
        self._is_up = False
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()

    def mend(self) -> None:
        self._is_up = True

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._is_up:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(self._hub.hostname, self._hub.port)
        self._ends |= {writer, back}
        await asyncio.gather(_pump(reader, back), _pump(there, writer))


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
    except ConnectionError:
        pass
    finally:
        sink.close()


@pytest.fixture
async def link(shared_hub: Hub) -> AsyncIterator[Link]:
    async with Link(shared_hub) as link:
        yield link


@pytest.fixture
async def node(drive: Callable[..., Awaitable[Driver]]) -> Driver:
    """One Node process that holds all sockets of a test."""
    home = CACHE / "javascript"
    assert (home / ".ready").exists(), f"{home} is missing, run `make node-client`"
    program = shutil.which("node")
    assert program
    return await drive(program, Path(__file__).parent / "javascript" / "client.mjs", home / "package.json")


async def connect(node: Driver, who: str, url: str, way: str) -> None:
    await node.ask("connect", who=who, url=url, options=WAYS[way])
    connected = await node.hears("connect", who=who)
    if way == "upgrade":
        await node.hears("upgrade", who=who, transport="websocket")
    else:
        assert connected["transport"] == way


async def join(node: Driver, who: str, office: str, **more: Any) -> Any:
    seat = {"role": who, "name": NAMES[who], "office_id": office, **more}
    return await node.ask("ask", who=who, event="server:join_office", data=seat)


def begin_call(node: Driver, req_id: str) -> asyncio.Future[Any]:
    request = {"agent": "planner", "req_id": req_id, "computer": "laptop", "timeout": 15}
    data = {**request, "tool_name": "add", "params": {"a": 1, "b": 2}}
    return node.begin("ask", who="agent", event="client:tool_call", data=data)


@pytest.mark.parametrize("way", WAYS)
async def test_javascript_clients_work_together_over_every_transport(
    node: Driver, shared_hub: Hub, office: str, way: str
) -> None:
    await they_work_together(node, shared_hub.url, office, way)


@pytest.mark.covers("any-node")
@pytest.mark.parametrize("way", ["polling", "upgrade"])
async def test_javascript_clients_work_together_over_nodes_without_stickiness(
    node: Driver, front: Front, office: str, way: str
) -> None:
    await they_work_together(node, front.url, office, way)
    assert len(front.asked) > 1


async def they_work_together(node: Driver, url: str, office: str, way: str) -> None:
    for who in ("computer", "agent"):
        await connect(node, who, url, way)
        assert await join(node, who, office) == ACCEPTED
    entered = {"office_id": office, "agent": "planner"}
    assert await node.hears("notify:enter_office", who="computer", data=entered)

    call = begin_call(node, uuid4().hex)
    asked = await node.hears("asked", who="computer", event="client:tool_call")
    assert asked["data"]["params"] == {"a": 1, "b": 2}
    await node.ask("reply", number=asked["number"], answer=RESULT)
    assert await call == [RESULT]

    update = {"who": "computer", "event": "server:update_config", "data": {"computer": "laptop"}}
    assert await node.ask("ask", **update) == []
    assert await node.hears("notify:update_config", who="agent", data={"computer": "laptop", "office_id": office})

    (refusal,) = await node.ask("ask", who="agent", event="no:such_event", data={})
    assert refusal["code"] == refusal["error"]["code"] == 400

    farewell = {"who": "computer", "event": "server:leave_office", "data": {"office_id": office}}
    assert await node.ask("ask", **farewell) == ACCEPTED
    assert await node.hears("notify:leave_office", who="agent", data={"office_id": office, "computer": "laptop"})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lost", NAMES)
async def test_a_javascript_client_with_an_instance_resumes_its_call_after_a_cut(
    node: Driver, shared_hub: Hub, link: Link, office: str, way: str, lost: str
) -> None:
    instances = {who: uuid4().hex for who in NAMES}
    for who in ("computer", "agent"):
        await connect(node, who, link.url if who == lost else shared_hub.url, way)
        assert await join(node, who, office, instance=instances[who]) == ACCEPTED
    await node.hears("notify:enter_office", who="computer")
    req_id = uuid4().hex
    call = begin_call(node, req_id)
    asked = await node.hears("asked", who="computer")

    link.cut()
    await node.hears("disconnect", who=lost)
    await node.hears("connect_error", who=lost)  # it has tried: nothing that it sent before got through
    link.mend()
    await node.hears("connect", who=lost)
    assert await join(node, lost, office, instance=instances[lost]) == ACCEPTED
    if lost == "agent":
        call = begin_call(node, req_id)
        await node.ask("ask", who="agent", event="no:such_event", data={})  # packets keep their order: it is there
    else:
        asked = await node.hears("asked", who="computer")
    await node.ask("reply", number=asked["number"], answer=RESULT)
    async with asyncio.timeout(30):
        assert await call == [RESULT]
    assert not [event for event, _ in node.heard if event.startswith(("notify:", "asked"))]


async def test_a_javascript_client_is_told_why_it_is_refused(node: Driver, serve: Any) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider("the right key"))
    await node.ask("connect", who="agent", url=hub.url, options={"auth": {"token": "a wrong key"}})
    refusal = await node.hears("connect_error", who="agent")
    assert refusal["data"]["code"] == 401
    await node.ask("connect", who="agent", url=hub.url, options={"auth": {"token": "the right key"}})
    assert await node.hears("connect", who="agent")
