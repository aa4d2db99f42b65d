"""Nodes that are asked to go: whoever was there goes on elsewhere, and no call is lost or done twice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.server.cluster.memory import Pace
from tests.computer.hosted import hosted
from tests.nodes.conftest import SECRET, Record, Start
from tests.nodes.front import Front
from tests.nodes.processes import seconds_since
from tests.stage.agent import SOON
from tests.stage.calls import RESULT, Gate
from tests.stage.web import fetch
from tests.stage.worker import Worker
from tests.waiting import until

pytestmark = pytest.mark.covers("nodes-drained")


async def test_a_draining_node_disconnects_idle_clients_and_lets_calls_finish(start: Start, office: str) -> None:
    one, two = nodes = await start(2)
    agent = await nodes.connect(one, "agent", "planner", office)
    busy = await nodes.connect(two, "computer", "busy", office, instance=SECRET)
    idle = await nodes.connect(two, "computer", "idle", office, instance=SECRET)
    polling = await nodes.connect(two, "computer", "polling", office, transports=["polling"])
    gate = Gate()
    for computer in (busy, polling):
        computer.answers("client:tool_call", gate)
    running = [asyncio.create_task(agent.call_tool(name, timeout=20)) for name in ("busy", "polling")]
    await asyncio.gather(busy.was_asked("client:tool_call"), polling.was_asked("client:tool_call"))
    draining = asyncio.create_task(two.drain())
    await until(lambda: not idle.client.connected)
    assert await two.readiness() == (503, {"status": "draining", "node": "n2"})
    assert (await fetch(f"{two.url}/socket.io/?EIO=4&transport=polling")).status == 503, "newcomers are refused"
    waiting = [asyncio.create_task(agent.call_tool(name, timeout=20)) for name in ("busy", "idle")]
    again = await nodes.connect(one)
    again.answers("client:tool_call", RESULT)
    await again.join("computer", "idle", office, instance=SECRET)
    assert await waiting[1] == RESULT
    assert busy.client.connected
    assert not waiting[0].done()
    gate.open()
    assert await asyncio.gather(*running) == [RESULT, RESULT]
    back = await nodes.connect(one)
    back.answers("client:tool_call", RESULT)
    assert await draining == 0
    await back.join("computer", "busy", office, instance=SECRET)
    assert await waiting[0] == RESULT
    assert len(busy.asked) == 1, "what came later was kept for where it is now"
    await agent.hears("notify:leave_office", computer="polling")
    told = [(event, data["computer"]) for event, data in await agent.heard_until_now()]
    assert told[3:] == [("notify:leave_office", "polling")], "only who has no instance has left"


async def test_a_call_that_outlasts_a_drain_follows_its_computer(start: Start, office: str, tmp_path: Path) -> None:
    one, two, three = nodes = await start(3, limits={"drain_timeout": 0.3})
    worker = Worker()
    agent = await nodes.connect(one, "agent", "planner", office)
    async with Front([two, three]) as front, hosted(worker.computer, front.url, office, tmp_path, reconnect=SOON):
        call = asyncio.create_task(agent.call_tool("laptop", "work", params={"number": 1}, timeout=20))
        await until(lambda: worker.runs)
        assert await two.drain() == 0
        await until(lambda: front.carries(three) == 1)
        worker.go.set()
        assert (await call)["content"][0]["text"] == "1"
        assert worker.runs == {1: 1}


async def test_a_member_that_does_not_come_back_after_a_drain_leaves_once(start: Start, office: str) -> None:
    one, two, three = nodes = await start(3)
    watchers = [await nodes.connect(node, "computer", f"watcher-{node.name}", office) for node in (one, three)]
    await nodes.connect(two, "agent", "planner", office, instance=SECRET)
    assert await two.drain() == 0
    for each in watchers:
        await each.hears("notify:leave_office", agent="planner")
    for each in watchers:
        told = [event for event, data in await each.heard_until_now() if data.get("agent") == "planner"]
        assert told == ["notify:enter_office", "notify:leave_office"]


async def test_a_restarted_node_keeps_the_seats_of_those_who_come_back(start: Start, office: str) -> None:
    """The only one there is, even: its clients have nowhere else to go."""
    (node,) = nodes = await start(1, pace=Pace(lease=30, linger=30))
    await nodes.connect(node, "agent", "planner", office, instance=SECRET)
    for name in ("laptop", "lost"):
        await nodes.connect(node, "computer", name, office, instance=SECRET)
    assert await node.drain() == 0
    begun = time.monotonic()
    await node.start()
    assert seconds_since(begun) < 15, "it has not waited for its predecessor's lease"
    agent = await nodes.connect(node, "agent", "planner", office, instance=SECRET)
    calls = [asyncio.create_task(agent.call_tool(name, timeout=20)) for name in ("laptop", "lost")]
    laptop = await nodes.connect(node)
    laptop.answers("client:tool_call", RESULT)
    await laptop.join("computer", "laptop", office, instance=SECRET)
    assert await calls[0] == RESULT
    assert (await calls[1])["error"]["code"] == 404
    told = [(event, data["computer"]) for event, data in await agent.heard_until_now()]
    assert told == [("notify:leave_office", "lost")]


class Load:
    """Calls at a steady pace, each with a number of its own."""

    def __init__(self, agent: AsyncSMCPAgentClient, rate: float) -> None:
        self.answers: dict[int, str] = {}
        self.slowest = 0.0
        self._agent = agent
        self._pause = 1 / rate
        self._calls: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Ends with an answer to every call."""
        calling = asyncio.create_task(self._call_on())
        try:
            yield
        finally:
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            await asyncio.gather(*self._calls)

    async def more_answers(self, count: int) -> None:
        wanted = len(self.answers) + count
        await until(lambda: len(self.answers) >= wanted)

    @property
    def made(self) -> int:
        return len(self._calls)

    async def _call_on(self) -> None:
        clock = asyncio.get_running_loop().time
        begun = clock()
        while True:
            self._calls.append(asyncio.create_task(self._call(self.made)))
            await asyncio.sleep(max(0.0, begun + self.made * self._pause - clock()))

    async def _call(self, number: int) -> None:
        begun = time.monotonic()
        result = await self._agent.emit_tool_call("laptop", "work", {"number": number, "seconds": 0}, timeout=30)
        self.answers[number] = result.text
        self.slowest = max(self.slowest, seconds_since(begun))


@pytest.mark.covers("agent-rejoins")
async def test_a_rolling_restart_of_three_nodes_under_a_hundred_calls_a_second_loses_none_and_doubles_none(
    start: Start, office: str, tmp_path: Path, record_testsuite_property: Record
) -> None:
    nodes = await start(3)
    worker = Worker()
    async with (
        Front(nodes.nodes) as front,
        hosted(worker.computer, front.url, office, tmp_path, reconnect=SOON),
        AsyncSMCPAgentClient("planner", url=front.url, office=office, reconnect=SOON) as agent,
    ):
        load = Load(agent, rate=100)
        async with load.going_on():
            for node in nodes.nodes:
                await load.more_answers(50)
                assert await node.drain() == 0
                await node.start()
            await load.more_answers(50)
    record_testsuite_property("calls during the rolling restart", load.made)
    record_testsuite_property("slowest of them, seconds", round(load.slowest, 3))
    assert load.answers == {number: str(number) for number in range(load.made)}, "none lost"
    assert worker.runs == dict.fromkeys(range(load.made), 1), "none doubled"
