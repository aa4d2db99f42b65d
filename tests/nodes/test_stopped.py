"""A node that stands still for longer than its lease, and wakes up in a world that has gone on."""

from __future__ import annotations

import asyncio
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest

from tests.nodes.conftest import SECRET, Start
from tests.peer import Peer
from tests.stage.calls import RESULT
from tests.waiting import until, until_it_goes

pytestmark = pytest.mark.covers("nodes-stopped")


async def list_of(agent: Peer) -> set[tuple[str, str]]:
    answer = await ask_for_list(agent)
    assert "sessions" in answer, answer
    return {(member["role"], member["name"]) for member in answer["sessions"]}


async def ask_for_list(agent: Peer) -> Any:
    return await agent.ask("server:list_room", {"agent": agent.name, "req_id": "r", "office_id": agent.office})


@pytest.mark.covers("office-one-agent")
async def test_a_node_that_wakes_up_delivers_no_stale_call_and_seats_no_second_agent(start: Start, office: str) -> None:
    """Older members have their seats back, and whoever has taken one meanwhile is told why it is no longer his."""
    one, two, three = nodes = await start(3)
    watcher = await nodes.connect(three, "computer", "watcher", office)
    laptop = await nodes.connect(two, "computer", "laptop", office)
    laptop.answers("client:tool_call", RESULT)
    planner = await nodes.connect(two, "agent", "planner", office)
    two.signal(SIGSTOP)
    asked_of_the_stopped = asyncio.create_task(ask_for_list(planner))
    await watcher.hears("notify:leave_office", agent="planner")
    rival = await nodes.connect(one, "agent", "rival", office)
    assert (await rival.call_tool("laptop"))["error"]["code"] == 404, "its computer was freed with its node"
    assert await list_of(rival) == {("agent", "rival"), ("computer", "watcher")}
    two.signal(SIGCONT)
    answer = await asked_of_the_stopped
    assert answer["error"]["code"] == 503, "it speaks for nobody before it has its seats back"
    await until(lambda: not rival.client.connected)
    await watcher.hears("notify:leave_office", agent="rival")
    again = await nodes.connect(one)
    refusal = await again.ask("server:join_office", {"role": "agent", "name": "rival", "office_id": office})
    assert (refusal[0], refusal[1][:42]) == (False, "403 Agent sid should be equal to office_id")
    everybody = {("agent", "planner"), ("computer", "watcher"), ("computer", "laptop")}
    assert await until_it_goes(lambda: list_of(planner)) == everybody
    assert laptop.asked == []
    assert (await planner.call_tool("laptop")) == RESULT
    for each in (watcher, laptop):
        check_that_agents_came_and_went_in_turn(await each.heard_until_now())


def check_that_agents_came_and_went_in_turn(heard: list[tuple[str, Any]]) -> None:
    there: set[str] = set()
    for event, data in heard:
        if "agent" in data and event in ENTER_LEAVE_ENTER:
            (there.add if event == "notify:enter_office" else there.discard)(data["agent"])
        assert len(there) <= 1, heard


async def test_calls_to_a_stopped_node_are_not_delivered_after_its_lease(start: Start, office: str) -> None:
    one, two = nodes = await start(2)
    agent = await nodes.connect(one, "agent", "planner", office)
    laptop = await nodes.connect(two, "computer", "laptop", office)
    two.signal(SIGSTOP)
    calls = [asyncio.create_task(agent.call_tool("laptop", timeout=20, req_id=f"r{i}")) for i in range(20)]
    for call in calls:
        assert (await call)["error"]["code"] == 404
    two.signal(SIGCONT)
    await agent.hears("notify:leave_office", computer="laptop")
    await until(lambda: [event for event, _ in agent.heard] == ENTER_LEAVE_ENTER)
    await two.until_it_is("ready")
    assert laptop.asked == []
    laptop.answers("client:tool_call", RESULT)
    assert await agent.call_tool("laptop", req_id="r0") == RESULT, "it is back, and what is asked now is delivered"
    assert len(laptop.asked) == 1


ENTER_LEAVE_ENTER = ["notify:enter_office", "notify:leave_office", "notify:enter_office"]


async def test_a_client_that_resumed_while_its_node_stood_still_keeps_its_seat(start: Start, office: str) -> None:
    one, two = nodes = await start(2)
    watcher = await nodes.connect(one, "computer", "watcher", office)
    ghost = await nodes.connect(two, "agent", "planner", office, instance=SECRET)
    two.signal(SIGSTOP)
    resumed = await nodes.connect(one, "agent", "planner", office, instance=SECRET)
    two.signal(SIGCONT)
    await until(lambda: not ghost.client.connected)
    two.signal(SIGSTOP)
    await until(lambda: f"node {two.name} is gone" in one.said)
    two.signal(SIGCONT)
    await two.until_it_is("ready")
    watcher.answers("client:tool_call", RESULT)
    assert await resumed.call_tool("watcher") == RESULT
    told = [(event, data.get("agent")) for event, data in await watcher.heard_until_now()]
    assert told == [("notify:enter_office", "planner")]


async def test_a_member_that_left_while_its_node_stood_still_is_not_seated_again(start: Start, office: str) -> None:
    one, two = nodes = await start(2)
    watcher = await nodes.connect(one, "computer", "watcher", office)
    planner = await nodes.connect(two, "agent", "planner", office)
    two.signal(SIGSTOP)
    await watcher.hears("notify:leave_office", agent="planner")
    await planner.drop()
    rival = await nodes.connect(one, "agent", "rival", office)
    two.signal(SIGCONT)
    await until(lambda: "is back" in two.said)
    assert await list_of(rival) == {("agent", "rival"), ("computer", "watcher")}
    await nodes.connect(two, "computer", "laptop", office)
    await rival.hears("notify:enter_office", computer="laptop")
    check_that_agents_came_and_went_in_turn(await watcher.heard_until_now())


async def test_a_call_to_a_node_that_stood_still_for_a_moment_is_only_late(start: Start, office: str) -> None:
    one, two = nodes = await start(2)
    agent = await nodes.connect(one, "agent", "planner", office)
    laptop = await nodes.connect(two, "computer", "laptop", office)
    laptop.answers("client:tool_call", RESULT)
    two.signal(SIGSTOP)
    call = asyncio.create_task(agent.call_tool("laptop", timeout=20))
    await asyncio.sleep(0.5)  # how long it stands still
    two.signal(SIGCONT)
    assert await call == RESULT
    assert len(laptop.asked) == 1
    assert len(agent.heard) == 1
