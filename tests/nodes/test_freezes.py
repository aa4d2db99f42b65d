"""A freeze holds on every node at once, also on those that were cut off, and after the store has lost its memory."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer import Computer
from a2c_smcp.server.cluster.memory import Pace
from tests.computer.hosted import hosted
from tests.nodes.conftest import SECRET, Record, Start
from tests.nodes.processes import Cluster, NodeProcess
from tests.peer import Peer
from tests.stage.calls import RESULT, Gate, running_call, verdict
from tests.stage.operators import ADMIN, freeze, operate, thaw
from tests.valkey import Valkey, running_valkey
from tests.waiting import until, until_it_goes

pytestmark = pytest.mark.covers("freeze-nodes")

CALLS, OFFICES = 100, 6


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """One that the test may hurt."""
    with running_valkey() as valkey:
        yield valkey


class NotingComputer:
    """A computer whose tool runs until it is cancelled, and notes when it began and when it was cancelled."""

    def __init__(self) -> None:
        self.computer = Computer("laptop")
        self.began: list[int] = []
        self.cancelled: dict[int, float] = {}
        self.computer.tool(self.work, auto_apply=True)

    async def work(self) -> None:
        number = len(self.began)
        self.began.append(number)
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled[number] = time.monotonic()


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def test_every_tool_that_runs_on_three_nodes_is_cancelled_and_none_starts_later(
    start: Start, stack: AsyncExitStack, tmp_path: Path, record_property: Record
) -> None:
    """Calls go from node to node, and further ones begin in the moment of the freeze."""
    nodes = await start(3, pace=Pace(), admin_key=ADMIN)
    places, stages = list(nodes), []
    for number in range(OFFICES):
        tool, office = NotingComputer(), f"office-{number}"
        there = places[(number + number // 3) % 3].url
        await stack.enter_async_context(hosted(tool.computer, there, office, tmp_path / office))
        stages.append((await nodes.connect(places[number % 3], "agent", "planner", office), tool))

    def call(agent: Peer) -> asyncio.Task[Any]:
        return asyncio.create_task(agent.call_tool("laptop", tool="work", timeout=120))

    calls = [call(stages[number % OFFICES][0]) for number in range(CALLS)]
    await until(lambda: sum(len(tool.began) for _, tool in stages) == CALLS)

    async def begins(tool: NotingComputer, task: asyncio.Task[Any]) -> bool:
        """Waits until the tool runs once more, or the call has ended without."""
        calls.append(task)
        known = len(tool.began)
        await until(lambda: task.done() or len(tool.began) > known)
        return not task.done()

    async def go_on(agent: Peer, tool: NotingComputer) -> None:
        """Begins another call as soon as the one before runs, until one is refused."""
        while await begins(tool, call(agent)):
            pass

    going_on = [asyncio.create_task(go_on(*stage)) for stage in stages]
    await until(lambda: len(calls) >= CALLS + OFFICES)
    begun = time.monotonic()
    changed = await freeze(places[2].url, all=True, reason="an incident")
    assert (changed["missing"], changed["computers"]) == ([], OFFICES)
    await asyncio.gather(*going_on)
    answers = await asyncio.gather(*calls)
    assert {answer["code"] for answer in answers} == {423, 499}
    assert all(answer["_meta"]["a2c_cancel_reason"] == "frozen" for answer in answers if answer["code"] == 499)
    await until(lambda: all(len(tool.began) == len(tool.cancelled) for _, tool in stages))
    last = max(when for _, tool in stages for when in tool.cancelled.values())
    record_property("seconds from the freeze to the last cancel", round(last - begun, 3))
    ran = [len(tool.began) for _, tool in stages]
    later = await asyncio.gather(*(agent.call_tool("laptop", tool="work") for agent, _ in stages * 10))
    assert {verdict(answer) for answer in later} == {(423, "not_run")}
    assert [len(tool.began) for _, tool in stages] == ran


class Stage:
    """Three nodes with operators; on the first an agent and a computer, on the second another computer."""

    def __init__(self, nodes: Cluster, agent: Peer, near: Peer, far: Peer) -> None:
        self.nodes, self.agent, self.near, self.far = nodes, agent, near, far
        self.one, self.two, self.three = nodes

    async def until_it_is(self, code: int | None) -> None:
        """Until calls to both computers have this code; `None`: until they are answered."""

        async def look() -> None:
            for name in ("near", "far"):
                assert (await self.agent.call_tool(name)).get("code") == code

        await until_it_goes(look)

    async def until_they_are(self, status: str) -> None:
        await asyncio.gather(*(node.until_it_is(status) for node in self.nodes))


async def member(nodes: Cluster, node: NodeProcess, role: str, name: str) -> Peer:
    peer = await nodes.connect(node, role, name, "desk", instance=SECRET)
    peer.answers("client:tool_call", RESULT)
    return peer


@pytest.fixture
async def stage(start: Start) -> Stage:
    nodes = await start(3, pace=Pace(), admin_key=ADMIN, limits={"resume_grace": 60})
    one, two, _ = nodes
    agent, near = [await member(nodes, one, *who) for who in (("agent", "planner"), ("computer", "near"))]
    return Stage(nodes, agent, near, await member(nodes, two, "computer", "far"))


async def test_a_node_that_stood_still_is_named_and_learns_it_when_it_goes_on(stage: Stage) -> None:
    stage.one.signal(signal.SIGSTOP)
    changed = await freeze(stage.three.url, office="desk")
    assert [missing["node"] for missing in changed["missing"]] == [stage.one.name]
    stage.one.signal(signal.SIGCONT)
    await stage.one.until_it_is("ready")
    await stage.until_it_is(423)
    await thaw(stage.three.url, office="desk")
    await stage.until_it_is(None)


async def test_a_store_that_has_lost_its_memory_gets_it_back(stage: Stage, valkey: Valkey) -> None:
    await freeze(stage.three.url, office="desk", reason="an incident")
    valkey.kill()
    await stage.until_they_are("degraded")
    valkey.start()
    await stage.until_they_are("ready")
    await stage.until_it_is(423)
    (later,) = await stage.nodes.start(1)
    status, listed = await operate(later.url, "GET", "freezes")
    assert (status, [row["reason"] for row in listed["freezes"]]) == (200, ["an incident"])
    await thaw(later.url, office="desk")
    await stage.until_it_is(None)


async def test_what_is_frozen_stays_so_while_the_store_is_away_and_a_new_freeze_reaches_all_later(
    stage: Stage, valkey: Valkey
) -> None:
    await freeze(stage.one.url, office="desk", computer="near")
    gate = Gate()
    call = await running_call(stage.agent, stage.far, gate, timeout=60)
    valkey.kill()
    await stage.until_they_are("degraded")
    status, refused = await operate(stage.two.url, "POST", "freeze", json={"office": "desk"})
    assert (status, refused["code"]) == (503, 503)
    await stage.far.hears("notify:tool_call_cancel")
    status, _ = await operate(stage.two.url, "POST", "thaw", json={"office": "desk"})
    assert status == 503
    assert (await stage.agent.call_tool("near"))["code"] in (423, 503)
    valkey.start()
    await stage.until_they_are("ready")
    assert verdict(await call) in ((499, "unknown"), (423, "unknown"))
    await stage.until_it_is(423)
    gate.open()
    await until_it_goes(lambda: thaw(stage.three.url, office="desk"))
    await thaw(stage.three.url, office="desk", computer="near")
    await stage.until_it_is(None)


async def test_a_computer_that_comes_back_on_another_node_hears_of_the_cancel(stage: Stage) -> None:
    call = await running_call(stage.agent, stage.far, Gate(), timeout=60, req_id="r1")
    await stage.far.drop()
    await freeze(stage.one.url, office="desk")
    assert verdict(await call) == (499, "unknown")
    back = await member(stage.nodes, stage.three, "computer", "far")
    assert await back.hears("notify:tool_call_cancel") == {"agent": "planner", "req_id": "r1"}


async def test_a_call_is_not_sent_to_a_computer_that_comes_back_elsewhere_in_that_moment(stage: Stage) -> None:
    """The node of the agent waits for the word of the other node, and has the computer itself meanwhile."""
    call = await running_call(stage.agent, stage.far, Gate(), timeout=60, req_id="r1")
    await asyncio.gather(freeze(stage.three.url, office="desk"), stage.far.drop())
    back = await member(stage.nodes, stage.one, "computer", "far")
    assert verdict(await call) == (499, "unknown")
    assert [event for event, _ in await back.heard_until_now() if event == "client:tool_call"] == []
    assert back.asked == []


async def test_freezes_on_several_nodes_at_once_all_hold(stage: Stage) -> None:
    places = [stage.one, stage.two, stage.three] * 8
    await asyncio.gather(*(freeze(node.url, office=f"office-{number}") for number, node in enumerate(places)))
    for node in stage.nodes:
        _, listed = await operate(node.url, "GET", "freezes")
        assert len(listed["freezes"]) == len(places)
    await asyncio.gather(*(thaw(node.url, office=f"office-{number}") for number, node in enumerate(places)))
    assert (await operate(stage.two.url, "GET", "freezes"))[1] == {"freezes": []}
