"""Calls on the wire (WIRE §5): deadlines, duplicates, cancels, and members who leave in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.conftest import Seat
from tests.peer import Peer
from tests.stage.calls import RESULT, Gate, both, call_and_forget, running_call
from tests.waiting import until


@pytest.mark.covers("calls-deadline", "always-an-ack")
async def test_a_call_without_an_answer_ends_a_second_after_its_timeout(agent: Peer, computer: Peer) -> None:
    computer.answers("client:tool_call", Gate())
    started = asyncio.get_running_loop().time()
    answer = await agent.call_tool("laptop", timeout=1)
    assert answer["code"] == 408
    assert answer["isError"] is True
    assert answer["content"][0]["text"] == answer["message"]
    assert asyncio.get_running_loop().time() - started >= 2


@pytest.mark.covers("calls-deadline")
async def test_requests_without_a_timeout_have_a_deadline_of_their_own(serve: Any, connect: Any, office: str) -> None:
    hub = await serve(limits={"request_timeout": 0.2})
    agent, computer = await both(connect, hub, office)
    for event in ("client:get_tools", "client:newer"):
        computer.answers(event, Gate())
        assert (await agent.request(event, "laptop"))["code"] == 408


LEAVING: dict[str, Callable[[Peer, str], Awaitable[Any]]] = {
    "leave": lambda computer, office: computer.ask("server:leave_office", {"office_id": office}),
    "drop": lambda computer, office: computer.drop(),
    "switch": lambda computer, office: computer.join("computer", "laptop", f"{office}-2"),
    "rename": lambda computer, office: computer.join("computer", "desktop", office),
}


@pytest.mark.covers("calls-computer-left")
@pytest.mark.parametrize("leave", LEAVING.values(), ids=LEAVING)
async def test_calls_in_flight_fail_when_their_computer_leaves(
    agent: Peer, computer: Peer, office: str, leave: Callable[[Peer, str], Awaitable[Any]]
) -> None:
    call = await running_call(agent, computer, Gate(), timeout=60)
    await leave(computer, office)
    answer = await call
    assert (answer["code"], answer["message"][:13]) == (404, "Computer left")


@pytest.mark.covers("calls-duplicates")
async def test_a_duplicate_in_flight_joins_the_first_and_the_tool_runs_once(agent: Peer, computer: Peer) -> None:
    gate = Gate()
    computer.answers("client:tool_call", gate)
    calls = [asyncio.create_task(agent.call_tool("laptop", req_id="same", timeout=10 + n)) for n in range(3)]
    await computer.was_asked("client:tool_call")
    await agent.heard_until_now()
    gate.open()
    assert await asyncio.gather(*calls) == [RESULT] * 3
    assert len(computer.asked) == 1


@pytest.mark.covers("calls-duplicates")
@pytest.mark.parametrize("other", [{"tool": "subtract"}, {"params": {"a": 2}}])
async def test_a_req_id_in_flight_serves_no_other_call(agent: Peer, computer: Peer, other: dict[str, Any]) -> None:
    gate = Gate()
    call = await running_call(agent, computer, gate, req_id="same")
    answer = await agent.call_tool("laptop", req_id="same", **other)
    assert answer["code"] == 400
    assert answer["details"]["field"] == "req_id"
    gate.open()
    assert await call == RESULT


@pytest.mark.covers("calls-duplicates")
async def test_equal_req_ids_of_different_agents_or_offices_are_different_calls(
    connect: Any, agent: Peer, computer: Peer, office: str
) -> None:
    first, second = Gate("first"), Gate("second")
    here = await running_call(agent, computer, first, req_id="same")
    there = await running_call(*await both(connect, None, f"{office}-2"), second, req_id="same")
    first.open()
    second.open()
    assert await asyncio.gather(here, there) == ["first", "second"]


@pytest.mark.covers("calls-duplicates")
async def test_only_tool_calls_are_deduplicated(agent: Peer, computer: Peer) -> None:
    computer.answers("client:get_tools", {"tools": [], "req_id": "same"})
    for _ in range(2):
        await agent.request("client:get_tools", "laptop", req_id="same")
    assert len(computer.asked) == 2


@pytest.mark.covers("002-tool_call_cancel", "002-tool_call_cancel-notice", "calls-cancel")
async def test_a_cancel_is_told_in_the_office_of_the_call_and_the_computer_answers(
    seat: Seat, agent: Peer, computer: Peer, office: str
) -> None:
    await agent.join("agent", "planner", f"{office}-2")
    elsewhere = await seat("computer", "tablet", f"{office}-2")
    gate = Gate({"isError": True, "content": [], "code": 499, "_meta": {"a2c_cancelled": True}})
    call = await running_call(agent, computer, gate, req_id="r1", timeout=60)
    cancel = {"agent": "planner", "req_id": "r1", "why": "enough"}
    assert await agent.ask("server:tool_call_cancel", cancel) is None
    assert await computer.hears("notify:tool_call_cancel") == cancel
    gate.open()
    assert (await call)["_meta"] == {"a2c_cancelled": True}
    assert await elsewhere.heard_until_now() == []


@pytest.mark.covers("calls-cancel")
async def test_a_call_whose_computer_ignores_the_cancel_ends(agent: Peer, computer: Peer) -> None:
    call = await running_call(agent, computer, Gate(), req_id="r1", timeout=60)
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "r1"})
    answer = await call
    assert answer["code"] == answer["error"]["code"] == 499
    assert answer["isError"] is True
    assert answer["_meta"] == {"a2c_cancelled": True, "a2c_cancel_reason": "agent_requested"}


@pytest.mark.covers("calls-cancel")
async def test_a_cancel_of_an_unknown_call_is_told_in_every_office_of_the_agent(
    seat: Seat, agent: Peer, computer: Peer, office: str
) -> None:
    await agent.join("agent", "planner", f"{office}-2")
    elsewhere = await seat("computer", "tablet", f"{office}-2")
    stranger = await seat("computer", "stranger", f"{office}-3")
    assert await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "unknown"}) is None
    for peer in (computer, elsewhere):
        assert await peer.hears("notify:tool_call_cancel") == {"agent": "planner", "req_id": "unknown"}
    assert await stranger.heard_until_now() == []


@pytest.mark.covers("calls-cancel", "office-several")
async def test_a_cancel_reaches_all_offices_of_its_req_id(seat: Seat, agent: Peer, computer: Peer, office: str) -> None:
    await agent.join("agent", "planner", f"{office}-2")
    elsewhere = await seat("computer", "tablet", f"{office}-2")
    calls = [await running_call(agent, peer, Gate(), req_id="same", timeout=30) for peer in (computer, elsewhere)]
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "same"})
    for peer in (computer, elsewhere):
        assert await peer.hears("notify:tool_call_cancel", req_id="same")
    assert [(await call)["code"] for call in calls] == [499, 499]


@pytest.mark.covers("calls-duplicates", "calls-deadline")
async def test_a_duplicate_has_a_deadline_of_its_own(agent: Peer, computer: Peer) -> None:
    first = await running_call(agent, computer, Gate(), req_id="same", timeout=60)
    assert (await agent.call_tool("laptop", req_id="same", timeout=1))["code"] == 408
    assert not first.done()
    first.cancel()


@pytest.mark.covers("calls-duplicates", "calls-one-hurts-no-other")
@pytest.mark.one_process
async def test_nothing_is_left_behind_when_all_clients_are_gone(serve: Any, seat: Seat, office: str) -> None:
    hub = await serve(limits={"keep_time": 0.1})
    computer, gate = await seat("computer", "laptop", office, hub=hub), Gate()
    for _ in range(3):
        agent = await seat("agent", "planner", office, hub=hub)
        call = await running_call(agent, computer, gate, req_id="same", timeout=30)
        await agent.heard_until_now()
        call.cancel()
        await agent.drop()
        await computer.hears("notify:leave_office", agent="planner")
        computer.heard.clear()
    gate.open()
    await computer.heard_until_now()
    await computer.drop()
    server = hub.app.hub
    calls, directory, connections = server.calls, server.directory, server.connections
    held = [calls, calls._by_key, calls.by_connection, calls._deadlines, calls._unheard, connections]
    held += [connections._offices, server._seating._absent, directory._seats, directory._offices, directory._holders]
    await until(lambda: not any(map(len, held)))


@pytest.mark.covers("calls-cancel", "office-isolation")
async def test_an_agent_cannot_cancel_the_call_of_another(seat: Seat, agent: Peer, computer: Peer, office: str) -> None:
    gate = Gate()
    call = await running_call(agent, computer, gate, req_id="r1", timeout=60)
    stranger = await seat("agent", "planner", f"{office}-2")
    await stranger.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "r1"})
    assert await computer.heard_until_now() == []
    gate.open()
    assert await call == RESULT


@pytest.mark.covers("calls-kept-answer")
async def test_an_answer_is_kept_for_an_agents_return(seat: Seat, agent: Peer, computer: Peer, office: str) -> None:
    gate = Gate()
    await call_and_forget(agent, computer, answer=gate)
    await agent.drop()
    await computer.hears("notify:leave_office", agent="planner")
    gate.open()
    await computer.heard_until_now()
    back = await seat("agent", "planner", office)
    assert await back.call_tool("laptop", req_id="r1") == RESULT
    assert len(computer.asked) == 1


@pytest.mark.covers("calls-kept-answer", "office-isolation")
async def test_nothing_is_kept_for_an_agent_that_left(seat: Seat, agent: Peer, computer: Peer, office: str) -> None:
    gate = Gate()
    await call_and_forget(agent, computer, answer=gate)
    await agent.ask("server:leave_office", {"office_id": office})
    gate.open()
    successor = await seat("agent", "planner", office)
    assert await successor.call_tool("laptop", req_id="r1") == RESULT
    assert len(computer.asked) == 2, "the successor's call is a new one"


@pytest.mark.covers("calls-one-hurts-no-other")
async def test_a_stuck_call_does_not_delay_others(agent: Peer, computer: Peer) -> None:
    computer.answers("client:tool_call", Gate())
    stuck = [asyncio.create_task(agent.call_tool("laptop", timeout=60)) for _ in range(20)]
    await computer.was_asked("client:tool_call", times=20)
    computer.answers("client:get_tools", {"tools": [], "req_id": "r"})
    for _ in range(50):
        assert (await agent.request("client:get_tools", "laptop"))["tools"] == []
    for call in stuck:
        call.cancel()
