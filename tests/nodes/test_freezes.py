"""A freeze holds on every node at once, also on those that were cut off, and after the store has lost its memory."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer import Computer
from a2c_smcp.server.cluster.memory import Pace
from tests.cluster import serving_node
from tests.computer.hosted import hosted
from tests.nodes.conftest import SECRET, Record, Start
from tests.nodes.processes import QUICK, Cluster, NodeProcess
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


def acts_of(audit: Path) -> list[tuple[str, str]]:
    """What operators have done, as a node has recorded it."""
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    return [(line["action"], line["office"]) for line in lines if line.get("event") == "operator"]


async def test_each_freeze_is_one_entry_of_the_audit_of_the_node_that_was_asked(
    valkey: Valkey, prefix: str, tmp_path: Path
) -> None:
    files = [tmp_path / "n1.jsonl", tmp_path / "n2.jsonl"]
    offices = [f"office-{number}" for number in range(10)]
    async with AsyncExitStack() as stack:
        nodes = [serving_node(valkey.url, prefix, file.stem, admin_key=ADMIN, audit=file) for file in files]
        one, two = [await stack.enter_async_context(node) for node in nodes]
        for office in offices:
            await freeze(one.url, office=office)
        for office in offices:
            await freeze(two.url, office=office, reason="another")
            await thaw(two.url, office=office)
    assert acts_of(files[0]) == [("freeze", office) for office in offices]
    assert acts_of(files[1]) == [(action, office) for office in offices for action in ("freeze", "thaw")]


async def test_a_freeze_that_was_not_written_yet_outlives_its_node_and_changes_of_others(
    valkey: Valkey, prefix: str, tmp_path: Path
) -> None:
    def node(name: str) -> Any:
        options = {"admin_key": ADMIN, "freezes": tmp_path / f"{name}.json", "audit": tmp_path / f"{name}.jsonl"}
        return serving_node(valkey.url, prefix, name, pace=QUICK, **options)

    async with node("n2") as two:
        async with node("n1") as one:
            valkey.kill()
            for node_url in (one.url, two.url):
                await until_it_is_refused(node_url)
            status, _ = await operate(one.url, "POST", "freeze", json={"office": "den", "reason": "an incident"})
            assert status == 503
        valkey.start()
        for office in ("attic", "cellar"):
            await until_it_goes(lambda office=office: freeze(two.url, office=office))
        async with node("n1") as one:
            for node_url in (one.url, two.url):
                await until_it_goes(lambda node_url=node_url: all_are_frozen(node_url, {"attic", "cellar", "den"}))
            await thaw(two.url, office="den")
            await until_it_goes(lambda: all_are_frozen(one.url, {"attic", "cellar"}))
    assert ("freeze", "den") in acts_of(tmp_path / "n1.jsonl")


async def until_it_is_refused(url: str) -> None:
    """Until a node knows that its store is away."""

    async def look() -> None:
        assert (await operate(url, "POST", "thaw", json={"office": "nowhere"}))[0] == 503

    await until_it_goes(look)


async def all_are_frozen(url: str, offices: set[str]) -> None:
    _, listed = await operate(url, "GET", "freezes")
    assert {row["office"] for row in listed["freezes"]} == offices


async def test_a_thaw_whose_answer_is_lost_is_recorded_as_an_attempt(
    valkey: Valkey, prefix: str, tmp_path: Path
) -> None:
    audit = tmp_path / "n1.jsonl"
    async with serving_node(valkey.url, prefix, "n1", pace=QUICK, admin_key=ADMIN, audit=audit) as node:
        await freeze(node.url, office="desk")
        valkey.kill()
        await until_it_is_refused(node.url)
        assert (await operate(node.url, "POST", "thaw", json={"office": "desk"}))[0] == 503
    assert acts_of(audit) == [("freeze", "desk"), ("try to thaw", "desk")]


async def test_agents_of_nodes_whose_lease_has_ended_are_told_of_a_freeze(
    valkey: Valkey, prefix: str, stack: AsyncExitStack
) -> None:
    nodes = [serving_node(valkey.url, prefix, name, pace=QUICK, admin_key=ADMIN) for name in ("n1", "n2")]
    hubs = [await stack.enter_async_context(node) for node in nodes]
    peers = []
    for number, hub in enumerate(hubs):
        for role, name in (("agent", "planner"), ("computer", "laptop")):
            peers.append(await Peer.connect(hub.url))
            stack.push_async_callback(peers[-1].close)
            await peers[-1].join(role, name, f"office-{number}", instance=f"{SECRET}-{number}")
    valkey.kill()
    await until(lambda: not any(hub.app.settings.directory.is_leased for hub in hubs))
    assert (await operate(hubs[1].url, "POST", "freeze", json={"all": True}))[0] == 503
    valkey.start()
    for peer in peers:
        await peer.hears("notify:update_state", computer="laptop", frozen=True)
