"""The store is killed and forgets everything, or stands still: what goes on, what is refused, how soon it heals."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from tests.computer.hosted import hosted
from tests.nodes.conftest import SECRET, Record, Start
from tests.nodes.processes import QUICK, Cluster, NodeProcess, seconds_since
from tests.peer import Peer
from tests.stage.agent import SOON
from tests.stage.calls import RESULT, Gate
from tests.stage.worker import Worker
from tests.valkey import Valkey, running_valkey
from tests.waiting import until, until_it_goes

pytestmark = pytest.mark.covers("nodes-store-lost")

DELIVERED = {"delivered": True}
ENTER_LEAVE = ("notify:enter_office", "notify:leave_office")
COMPUTERS = ("near", "far", "newcomer")
HEALING = 5.0
"""Seconds after the store's return."""

AT_ONCE = QUICK.patience + 0.6
"""A store that stands still is noticed when it has not answered for as long as it is given."""


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """One that the test may hurt."""
    with running_valkey() as valkey:
        yield valkey


@dataclass
class Stage:
    """On one node an agent and a computer of its office, on the other another computer of the office."""

    nodes: Cluster
    agent: Peer
    near: Peer
    far: Peer
    newcomer: Peer

    @property
    def one(self) -> NodeProcess:
        return self.nodes.nodes[0]

    async def until_they_are(self, status: str, seconds: float = 60) -> None:
        await asyncio.gather(*(node.until_it_is(status, seconds) for node in self.nodes))

    async def join(self) -> Any:
        request = {"role": "computer", "name": "newcomer", "office_id": self.agent.office}
        return await self.newcomer.ask("server:join_office", request)

    async def seat_newcomer(self) -> None:
        assert await self.join() == (True, None)

    async def until_members_are(self, *names: str) -> None:
        async def look() -> None:
            request = {"agent": self.agent.name, "req_id": "r", "office_id": self.agent.office}
            answer = await self.agent.ask("server:list_room", request)
            assert {member["name"] for member in answer.get("sessions", ())} == set(names), answer

        await until_it_goes(look)


@pytest.fixture
async def stage(start: Start, office: str) -> Stage:
    one, two = nodes = await start(2)
    agent = await nodes.connect(one, "agent", "planner", office)
    near, far = [await nodes.connect(node, "computer", name, office) for node, name in ((one, "near"), (two, "far"))]
    for computer in (near, far):
        computer.answers("client:tool_call", RESULT)
        assert await agent.call_tool(computer.name) == RESULT
    return Stage(nodes, agent, near, far, await nodes.connect(one))


def code_of(answer: Any) -> int:
    return int(answer["error"]["code"])


async def check_that_only_the_node_itself_goes_on(stage: Stage, seconds: float) -> float:
    """How long it took to refuse what needs the store."""
    begun = time.monotonic()
    joined = await stage.join()
    took = seconds_since(begun)
    assert (joined[0], joined[1][:3]) == (False, "503")
    assert took <= seconds
    assert await stage.agent.call_tool("near") == RESULT, "still under its lease"
    assert await stage.one.readiness() == (503, {"status": "degraded", "node": "n1"})
    begun = time.monotonic()
    far, joined = await asyncio.gather(stage.agent.call_tool("far"), stage.join())
    assert code_of(far) == 503
    assert joined[0] is False
    assert seconds_since(begun) <= 0.5, "it need not find out twice"
    return took


async def check_that_it_stops_with_its_lease(stage: Stage, lost: float) -> None:
    while (answer := await stage.agent.call_tool("near")) == RESULT:
        assert seconds_since(lost) <= QUICK.lease
        await asyncio.sleep(0.02)
    assert code_of(answer) == 503


async def check_that_it_heals(stage: Stage) -> float:
    """How long that took: everybody is registered again, nobody has come or gone, all can be called."""
    begun = time.monotonic()
    await stage.until_they_are("ready", HEALING)
    await until_it_goes(stage.seat_newcomer, HEALING)
    took = seconds_since(begun)
    assert took <= HEALING
    await stage.until_members_are("planner", "near", "far", "newcomer")
    for name in ("near", "far"):
        assert await stage.agent.call_tool(name) == RESULT
    told = [(event, data["computer"]) for event, data in await stage.agent.heard_until_now()]
    updated = {name for event, name in told if event.startswith("notify:update_")}
    assert [each for each in told if each[0] in ENTER_LEAVE] == [(ENTER_LEAVE[0], name) for name in COMPUTERS]
    assert updated <= {"far"}, "what may have been said on other nodes was not heard"
    return took


async def test_nodes_recover_from_a_short_outage_of_the_store(valkey: Valkey, stage: Stage) -> None:
    valkey.kill()
    valkey.start()
    await check_that_it_heals(stage)


@pytest.mark.parametrize(("how", "soon"), [("killed", 0.5), ("paused", AT_ONCE)], ids=["killed, empty", "paused"])
async def test_nodes_recover_from_a_store_that_is_away_for_longer_than_the_leases(
    valkey: Valkey, stage: Stage, how: str, soon: float, record_testsuite_property: Record
) -> None:
    lost = time.monotonic()
    (valkey.kill if how == "killed" else valkey.pause)()
    refused = await check_that_only_the_node_itself_goes_on(stage, soon)
    await check_that_it_stops_with_its_lease(stage, lost)
    if how == "paused":
        await asyncio.sleep(max(0.0, lost + QUICK.lease + QUICK.margin - time.monotonic()))  # for how long it is so
    (valkey.start if how == "killed" else valkey.resume)()
    healed = await check_that_it_heals(stage)
    record_testsuite_property(f"store {how}: refused after seconds", round(refused, 4))
    record_testsuite_property(f"store {how}, and back: healed after seconds", round(healed, 3))


@pytest.mark.covers("calls-outcome")
@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_calls_between_nodes_that_are_under_way_when_the_store_goes_are_answered_when_it_is_back(
    valkey: Valkey, stage: Stage, how: str, record_testsuite_property: Record
) -> None:
    """The computer is one that would run the tool again if it were asked again. What is asked meanwhile has not run."""
    gate = Gate()
    stage.far.answers("client:tool_call", gate)
    calls = [asyncio.create_task(stage.agent.call_tool("far", timeout=60)) for _ in range(5)]
    await stage.far.was_asked("client:tool_call", 6)
    (valkey.kill if how == "killed" else valkey.pause)()
    await stage.until_they_are("degraded")
    gate.open()
    meanwhile = await stage.agent.call_tool("far")
    assert (code_of(meanwhile), meanwhile["details"]["outcome"]) == (503, "not_run")
    assert not any(call.done() for call in calls)
    (valkey.start if how == "killed" else valkey.resume)()
    begun = time.monotonic()
    assert await asyncio.wait_for(asyncio.gather(*calls), HEALING) == [RESULT] * 5
    record_testsuite_property(f"store {how}: calls answered so many seconds after its return", seconds_since(begun))
    assert len(await stage.far.was_asked("client:tool_call")) == 6, "none was asked twice"


@pytest.mark.covers("tell-refused", "tell-routing")
async def test_a_question_between_nodes_is_refused_while_the_store_is_gone(valkey: Valkey, stage: Stage) -> None:
    progress = {"agent": "planner", "req_id": "r", "progress": 1}
    question = {"agent": "planner", "req_id": "r", "question_id": "q", "request": {}}
    valkey.kill()
    await stage.until_they_are("degraded")
    assert await stage.near.ask("server:tell_question", question) == DELIVERED, "on the node itself"
    assert await stage.agent.hears("notify:tell_question", computer="near")
    assert code_of(await stage.far.ask("server:tell_question", question)) == 503
    assert await stage.far.ask("server:tell_progress", progress) == DELIVERED, "it may be lost"
    valkey.start()

    async def tell() -> None:
        assert await stage.far.ask("server:tell_question", question) == DELIVERED

    await until_it_goes(tell, HEALING)
    assert await stage.agent.hears("notify:tell_question", computer="far")
    assert "notify:tell_progress" not in [event for event, _ in await stage.agent.heard_until_now()]


@pytest.mark.covers("agent-rejoins")
async def test_our_agent_loses_no_call_to_half_a_second_without_a_store(
    valkey: Valkey, start: Start, office: str, tmp_path: Path, record_testsuite_property: Record
) -> None:
    """Neither those in flight nor those asked meanwhile."""
    one, two = await start(2)
    worker = Worker()
    async with (
        hosted(worker.computer, two.url, office, tmp_path),
        AsyncSMCPAgentClient("planner", url=one.url, office=office, reconnect=SOON) as agent,
    ):

        def call(number: int) -> asyncio.Task[Any]:
            return asyncio.create_task(agent.emit_tool_call("laptop", "work", {"number": number}, 30))

        calls = [call(number) for number in range(10)]
        await until(lambda: len(worker.runs) == 10)
        valkey.kill()
        await one.until_it_is("degraded")
        worker.go.set()
        calls += [call(number) for number in range(10, 20)]
        await asyncio.sleep(0.5)  # for how long it is away
        valkey.start()
        begun = time.monotonic()
        results = await asyncio.wait_for(asyncio.gather(*calls), HEALING)
        record_testsuite_property("store killed: an agent's calls answered after seconds", seconds_since(begun))
        assert [result.text for result in results] == [str(number) for number in range(20)]
        assert set(worker.runs.values()) == {1}


@pytest.mark.covers("office-one-agent")
async def test_the_older_of_two_members_with_one_seat_keeps_it(valkey: Valkey, start: Start, office: str) -> None:
    """The store forgets while one node cannot say who sits there."""
    one, two = nodes = await start(2)
    older = await nodes.connect(two, "agent", "older", office)
    laptop = await nodes.connect(two, "computer", "laptop", office)
    laptop.answers("client:tool_call", RESULT)
    two.signal(SIGSTOP)
    valkey.kill()
    valkey.start()
    newer = await nodes.connect(one)
    request = {"role": "agent", "name": "newer", "office_id": office}
    refusals = []
    async with asyncio.timeout(30):
        while (answer := await newer.ask("server:join_office", request)) != (True, None):
            refusals.append(answer[1][:3])
            await asyncio.sleep(0.02)
    assert set(refusals) == {"503"}, "the store waits for its nodes until they must have stopped"
    two.signal(SIGCONT)
    await until(lambda: not newer.client.connected)
    again = await nodes.connect(one)
    accepted, reason = await again.ask("server:join_office", request)
    assert (accepted, reason.startswith("403 Agent sid should be equal to office_id")) == (False, True)

    async def call() -> None:
        assert await older.call_tool("laptop") == RESULT

    await until_it_goes(call)


async def test_a_member_that_disconnects_in_an_outage_has_left_after_it(valkey: Valkey, stage: Stage) -> None:
    valkey.kill()
    await stage.one.until_it_is("degraded")
    await stage.near.drop()
    valkey.start()
    await stage.until_members_are("planner", "far")
    await stage.agent.hears("notify:leave_office", computer="near")


def connections(valkey: Valkey) -> set[str]:
    return {line.split()[0].removeprefix("id=") for line in valkey.ask("CLIENT", "LIST").splitlines()}


async def test_a_node_that_loses_its_store_briefly_loses_no_call(valkey: Valkey, start: Start, office: str) -> None:
    """As when the store cuts off a reader that is too slow: what was on its way is asked again."""
    nodes = await start(1)
    others = connections(valkey)
    (two,) = await nodes.start(1)
    agent = await nodes.connect(nodes.nodes[0], "agent", "planner", office)
    laptop = await nodes.connect(two, "computer", "laptop", office, instance=SECRET)
    gate = Gate()
    laptop.answers("client:tool_call", gate)
    calls = [asyncio.create_task(agent.call_tool("laptop", timeout=20)) for _ in range(5)]
    await laptop.was_asked("client:tool_call", 5)
    for connection in connections(valkey) - others:
        valkey.ask("CLIENT", "KILL", "ID", connection)
    gate.open()
    assert await asyncio.gather(*calls) == [RESULT] * 5
    assert len(laptop.asked) == 5
    assert len(agent.heard) == 1


@pytest.mark.parametrize("who", ["speaker", "listener"])
async def test_updates_missed_in_an_outage_are_repeated(valkey: Valkey, start: Start, office: str, who: str) -> None:
    nodes = await start(1)
    firsts = connections(valkey)
    await nodes.start(1)
    of_the_first, of_the_second = firsts, connections(valkey) - firsts
    agent = await nodes.connect(nodes.nodes[0], "agent", "planner", office)
    laptop = await nodes.connect(nodes.nodes[1], "computer", "laptop", office)
    for connection in of_the_second if who == "speaker" else of_the_first:
        valkey.ask("CLIENT", "KILL", "ID", connection)
    await laptop.ask("server:update_tool_list", {"computer": "laptop"})
    assert await agent.hears("notify:update_tool_list") == {"computer": "laptop", "office_id": office}
