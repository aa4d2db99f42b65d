"""The JavaScript socket.io-client as agent and as computer, over every way that it connects."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from a2c_smcp.server import DefaultAuthenticationProvider
from tests.cluster import Front
from tests.computer.hosted import Relay
from tests.conftest import Hub
from tests.interop.driver import Driver
from tests.stage.installed import installed
from tests.stage.members import without_seat

WAYS: dict[str, dict[str, Any]] = {
    "polling": {"transports": ["polling"]},
    "websocket": {"transports": ["websocket"]},
    "upgrade": {},
}
NAMES = {"agent": "planner", "computer": "laptop"}
RESULT = {"content": [{"type": "text", "text": "三 ☃"}], "isError": False, "_meta": {"x": [1, 2.5, None]}}
ACCEPTED = [True, None]

pytestmark = pytest.mark.covers("interop-javascript")


@pytest.fixture
async def relay(shared_hub: Hub) -> AsyncIterator[tuple[Relay, str]]:
    """A line to the Server that can be cut, and its URL."""
    line = Relay(shared_hub.url)
    async with line.open() as url:
        yield line, url


@pytest.fixture
async def node(drive: Callable[..., Awaitable[Driver]]) -> Driver:
    """One Node process that holds all sockets of a test."""
    home = installed("javascript", "node-client")
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
    entered = await node.hears("notify:enter_office", who="computer")
    assert without_seat(entered["data"]) == {"office_id": office, "agent": "planner"}

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
    gone = await node.hears("notify:leave_office", who="agent")
    assert without_seat(gone["data"]) == {"office_id": office, "computer": "laptop"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lost", NAMES)
async def test_a_javascript_client_with_an_instance_resumes_its_call_after_a_cut(
    node: Driver, shared_hub: Hub, relay: tuple[Relay, str], office: str, way: str, lost: str
) -> None:
    line, url = relay
    instances = {who: uuid4().hex for who in NAMES}
    for who in ("computer", "agent"):
        await connect(node, who, url if who == lost else shared_hub.url, way)
        assert await join(node, who, office, instance=instances[who]) == ACCEPTED
    await node.hears("notify:enter_office", who="computer")
    req_id = uuid4().hex
    call = begin_call(node, req_id)
    asked = await node.hears("asked", who="computer")

    line.close()
    await node.hears("disconnect", who=lost)
    await node.hears("connect_error", who=lost)  # it has tried: nothing that it sent before got through
    line.reopen()
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
