"""Nodes that are killed: who is told, how soon, and that nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.server.cluster.memory import Pace
from tests.computer.hosted import hosted
from tests.nodes.conftest import SECRET, Record, Start
from tests.nodes.front import Front
from tests.nodes.processes import seconds_since
from tests.stage.agent import SOON
from tests.stage.calls import RESULT, Gate, running_call
from tests.stage.worker import Worker
from tests.waiting import until

pytestmark = pytest.mark.covers("nodes-killed")


def code_of(answer: Any) -> int:
    return int(answer["error"]["code"])


async def test_callers_of_members_that_died_with_their_node_are_told_at_once_and_the_office_once(
    start: Start, office: str, record_testsuite_property: Record
) -> None:
    """At the pace that nodes have by default."""
    one, two, three = nodes = await start(3, pace=Pace())
    agent = await nodes.connect(one, "agent", "planner", office)
    others = [await nodes.connect(node, "computer", f"watcher-{node.name}", office) for node in (one, three)]
    computer = await nodes.connect(two, "computer", "laptop", office)
    running = await running_call(agent, computer, Gate(), timeout=30)
    await two.kill()
    killed = time.monotonic()
    asked = time.monotonic()
    assert code_of(await agent.call_tool("laptop")) == 404
    new = seconds_since(asked)
    assert code_of(await running) == 404
    in_flight = seconds_since(killed)
    for each in (agent, *others):
        await each.hears("notify:leave_office", computer="laptop")
    freed = seconds_since(killed)
    for name, seconds in (("new call", new), ("call in flight", in_flight), ("members freed", freed)):
        record_testsuite_property(f"{name}, seconds after the node was killed", round(seconds, 4))
    assert new <= 1
    assert in_flight <= 1
    assert freed <= 10
    await nodes.connect(three, "computer", "laptop", office)
    for each in (agent, *others):
        told = [event for event, data in await each.heard_until_now() if data.get("computer") == "laptop"]
        assert told[-2:] == ["notify:leave_office", "notify:enter_office"]
        assert told.count("notify:leave_office") == 1


@pytest.mark.covers("agent-rejoins")
async def test_a_computer_whose_node_is_killed_resumes_on_another_and_does_nothing_twice(
    start: Start, office: str, tmp_path: Path, record_testsuite_property: Record
) -> None:
    one, two, three = nodes = await start(3)
    worker = Worker()
    agent = await nodes.connect(one, "agent", "planner", office)

    def call(number: int) -> asyncio.Task[Any]:
        return asyncio.create_task(agent.call_tool("laptop", "work", params={"number": number}, timeout=20))

    async with Front([two, three]) as front, hosted(worker.computer, front.url, office, tmp_path, reconnect=SOON):
        assert front.carries(two) == 1
        calls = [call(number) for number in range(20)]
        await until(lambda: len(worker.runs) == 20)
        await two.kill()
        killed = time.monotonic()
        calls.append(call(20))
        await until(lambda: worker.runs[20])
        record_testsuite_property("seconds until the computer is called again", round(seconds_since(killed), 3))
        worker.go.set()
        answers = await asyncio.gather(*calls)
        assert [answer["content"][0]["text"] for answer in answers] == [str(number) for number in range(21)]
        assert worker.runs == dict.fromkeys(range(21), 1)
        heard = [event for event, data in await agent.heard_until_now() if "office" in event]
        assert heard == ["notify:enter_office"], "nobody has seen it leave"


async def test_a_python_socketio_computer_that_resumes_is_sent_the_calls_in_flight(start: Start, office: str) -> None:
    one, two, three = nodes = await start(3)
    agent = await nodes.connect(one, "agent", "planner", office)
    computer = await nodes.connect(two, "computer", "laptop", office, instance=SECRET)
    running = await running_call(agent, computer, Gate(), timeout=30)
    await two.kill()
    waiting = asyncio.create_task(agent.call_tool("laptop"))
    again = await nodes.connect(three)
    again.answers("client:tool_call", RESULT)
    await again.join("computer", "laptop", office, instance=SECRET)
    assert await asyncio.gather(running, waiting) == [RESULT, RESULT]
    assert len(await again.was_asked("client:tool_call", 2)) == 2
    assert agent.heard[1:] == []


async def test_a_computer_that_resumes_on_another_node_hears_of_a_missed_cancel(start: Start, office: str) -> None:
    one, two, three = nodes = await start(3, limits={"cancel_grace": 2})
    agent = await nodes.connect(one, "agent", "planner", office)
    computer = await nodes.connect(two, "computer", "laptop", office, instance=SECRET)
    running = await running_call(agent, computer, Gate(), timeout=30)
    req_id = computer.asked[0][1]["req_id"]
    await two.kill()
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": req_id})
    again = await nodes.connect(three, "computer", "laptop", office, instance=SECRET)
    assert await again.hears("notify:tool_call_cancel") == {"agent": "planner", "req_id": req_id}
    assert again.asked == []
    assert code_of(await running) == 499


async def test_calls_to_a_lost_computer_are_answered_when_its_node_is_buried(start: Start, office: str) -> None:
    one, two = nodes = await start(2)
    agent = await nodes.connect(one, "agent", "planner", office)
    computer = await nodes.connect(two, "computer", "laptop", office, instance=SECRET)
    running = await running_call(agent, computer, Gate(), timeout=30)
    await two.kill()
    waiting = asyncio.create_task(agent.call_tool("laptop", timeout=30))
    for call in (running, waiting):
        assert code_of(await call) == 404
    await agent.hears("notify:leave_office", computer="laptop")


@pytest.mark.covers("agent-rejoins")
async def test_an_agent_whose_node_is_killed_asks_again_on_another_and_the_tool_has_run_once(
    start: Start, office: str, tmp_path: Path
) -> None:
    one, two, three = await start(3)
    worker = Worker()
    async with (
        hosted(worker.computer, one.url, office, tmp_path, reconnect=SOON),
        Front([two, three]) as front,
        AsyncSMCPAgentClient("planner", url=front.url, office=office, reconnect=SOON) as agent,
    ):
        assert front.carries(two) == 1
        asked = [agent.emit_tool_call("laptop", "work", {"number": number}, timeout=20) for number in range(20)]
        calls = [asyncio.create_task(each) for each in asked]
        await until(lambda: len(worker.runs) == 20)
        await two.kill()
        await until(lambda: front.carries(three) == 1)
        worker.go.set()
        assert [(await call).text for call in calls] == [str(number) for number in range(20)]
        assert worker.runs == dict.fromkeys(range(20), 1)


async def test_an_answer_to_a_dead_node_is_kept_for_the_same_request(start: Start, office: str) -> None:
    """A computer of another make does not know a request again: the node of the computer does."""
    one, two, three = nodes = await start(3)
    computer = await nodes.connect(one, "computer", "laptop", office)
    agent = await nodes.connect(two, "agent", "planner", office, instance=SECRET)
    gate = Gate()
    call = await running_call(agent, computer, gate, req_id="r1", timeout=20)
    await two.kill()
    gate.open()
    again = await nodes.connect(three, "agent", "planner", office, instance=SECRET)
    assert await again.call_tool("laptop", req_id="r1", timeout=20) == RESULT
    assert len(computer.asked) == 1
    call.cancel()


async def test_seats_of_a_killed_node_are_freed_and_its_name_is_for_a_successor(start: Start, office: str) -> None:
    one, two = nodes = await start(2)
    watcher = await nodes.connect(one, "computer", "watcher", office)
    await nodes.connect(two, "agent", "planner", office)
    await two.kill()
    rival = await nodes.connect(one)
    refused = await rival.ask("server:join_office", {"role": "agent", "name": "rival", "office_id": office})
    assert refused[0] is False
    await watcher.hears("notify:leave_office", agent="planner")
    await rival.join("agent", "rival", office)
    await two.start()
    await nodes.connect(two, "computer", "laptop", office)
    await watcher.hears("notify:enter_office", computer="laptop")
