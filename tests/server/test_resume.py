"""Seats and resume (WIRE §4): a client with an instance comes back on another connection as if nothing had happened."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from a2c_smcp.server import Principal
from tests.conftest import Seat
from tests.peer import Peer
from tests.stage.calls import MINE, OTHER, RESULT, Gate, call_and_forget, running_call, sessions
from tests.stage.keys import Judged

pytestmark = pytest.mark.covers("office-resume")


@pytest.fixture
async def hub(serve: Any) -> Any:
    return await serve(limits={"resume_grace": 1.0})


@pytest.fixture
async def agent(hub: Any, seat: Seat, office: str) -> Peer:
    return await seat("agent", "planner", office, hub=hub, instance=MINE)


@pytest.fixture
async def computer(hub: Any, seat: Seat, office: str) -> Peer:
    return await seat("computer", "laptop", office, hub=hub, instance=MINE)


@pytest.fixture
def back(hub: Any, connect: Any, office: str) -> Callable[..., Any]:
    """The same client, on a new connection, with its answers: calls that wait come right after the ack of its join."""

    async def start(
        role: str, name: str, instance: str = MINE, where: str = office, answers: Mapping[str, Any] | None = None
    ) -> Peer:
        peer: Peer = await connect(hub)
        for event, answer in (answers or {}).items():
            peer.answers(event, answer)
        await peer.join(role, name, where, instance=instance)
        return peer

    return start


@pytest.mark.covers("calls-resume")
async def test_calls_to_a_computer_that_is_away_wait_for_its_return(agent: Peer, computer: Peer, back: Any) -> None:
    await computer.drop()
    call = asyncio.create_task(agent.request("client:where", "laptop"))
    assert [session["name"] for session in await sessions(agent)] == ["planner", "laptop"], "its seat is kept"
    again = await back("computer", "laptop", answers={"client:where": "here again"})
    assert await call == "here again"
    assert [event for event, _ in await agent.heard_until_now()] == ["notify:enter_office"], "nobody was told"
    assert [session["sid"] for session in await sessions(agent)] == [agent.sid, again.sid]


@pytest.mark.covers("calls-resume")
async def test_a_call_in_flight_is_sent_again_to_a_returned_computer(agent: Peer, computer: Peer, back: Any) -> None:
    call = await running_call(agent, computer, Gate(), req_id="r1", timeout=30)
    await computer.drop()
    again = await back("computer", "laptop", answers={"client:tool_call": RESULT})
    assert await call == RESULT
    (request,) = await again.was_asked("client:tool_call")
    assert request["req_id"] == "r1"


@pytest.mark.covers("calls-computer-left", "office-leave-on-disconnect")
async def test_when_the_grace_ends_the_seat_is_released_and_calls_fail(agent: Peer, computer: Peer) -> None:
    running = await running_call(agent, computer, Gate(), timeout=30)
    await computer.drop()
    waiting = asyncio.create_task(agent.call_tool("laptop", timeout=30))
    assert await agent.hears("notify:leave_office", computer="laptop", lost=True)
    for answer in await asyncio.gather(running, waiting):
        assert (answer["code"], answer["message"][:13]) == (404, "Computer left")
    assert [session["name"] for session in await sessions(agent)] == ["planner"]


@pytest.mark.covers("calls-resume", "calls-kept-answer")
async def test_an_agent_that_is_back_finds_its_running_and_ended_calls(agent: Peer, computer: Peer, back: Any) -> None:
    gates = {"done": Gate("first"), "runs": Gate("second")}
    computer.answers("client:tool_call", lambda data: gates[data["req_id"]](data))
    for times, req_id in enumerate(gates, 1):
        await call_and_forget(agent, computer, req_id, times)
    await agent.drop()
    gates["done"].open()
    await computer.heard_until_now()
    again = await back("agent", "planner")
    calls = [asyncio.create_task(again.call_tool("laptop", req_id=req_id, timeout=20)) for req_id in gates]
    assert await calls[0] == "first"
    gates["runs"].open()
    assert await calls[1] == "second"
    assert len(computer.asked) == 2, "nothing ran twice"
    assert [event for event, _ in await computer.heard_until_now() if "leave" in event] == []


@pytest.mark.covers("calls-resume", "calls-kept-answer")
async def test_an_answer_between_return_and_repetition_is_kept(agent: Peer, computer: Peer, back: Any) -> None:
    gate = Gate("first")
    await call_and_forget(agent, computer, answer=gate)
    again = await back("agent", "planner")
    gate.open()
    await computer.heard_until_now()
    assert await again.call_tool("laptop", req_id="r1") == "first"
    assert len(computer.asked) == 1


@pytest.mark.covers("calls-resume", "calls-kept-answer")
async def test_an_answer_sent_to_a_half_open_agent_is_not_lost(
    hub: Any, connect_wire: Any, computer: Peer, office: str, back: Any
) -> None:
    wire = await connect_wire(hub)
    await wire.join("agent", "planner", office, instance=MINE)
    wire.stop_reading()
    computer.answers("client:tool_call", RESULT)
    call = {"agent": "planner", "req_id": "r1", "computer": "laptop", "tool_name": "add", "params": {}, "timeout": 30}
    await wire.send(f'42/smcp,2["client:tool_call",{json.dumps(call)}]')
    await computer.was_asked("client:tool_call")
    await computer.heard_until_now()
    again = await back("agent", "planner")
    assert await again.call_tool("laptop", req_id="r1") == RESULT
    assert len(computer.asked) == 1


@pytest.mark.covers("auth-scope", "office-isolation")
async def test_a_seat_that_a_resuming_client_may_no_longer_have_is_released(serve: Any, seat: Any, office: str) -> None:
    offices = {office, f"{office}-2"}
    hub = await serve(auth=Judged(lambda _: Principal("alice", offices=frozenset(offices))))
    before = await seat("agent", "planner", office, hub=hub, instance=MINE)
    await before.join("agent", "planner", f"{office}-2", instance=MINE)
    computer = await seat("computer", "laptop", office, hub=hub)
    offices.remove(office)
    after = await seat("agent", "planner", f"{office}-2", hub=hub, instance=MINE)
    assert (await after.request("client:get_tools", "laptop"))["code"] == 404
    assert await computer.hears("notify:leave_office", agent="planner")
    assert computer.asked == []


@pytest.mark.one_process  # of two nodes, one may not have heard yet who came later
async def test_the_later_of_two_with_an_instance_is_seated(agent: Peer, computer: Peer, back: Any, office: str) -> None:
    again = await back("computer", "laptop")
    joins = [peer.ask_to_join("computer", "laptop", office, instance=MINE) for peer in (again, computer)]
    answers = await asyncio.gather(*joins, return_exceptions=True)
    assert answers[0] == (True, None)
    assert [session["sid"] for session in await sessions(agent)] == [agent.sid, again.sid]


@pytest.mark.covers("calls-cancel")
async def test_a_call_cancelled_without_its_computer_is_not_resent(agent: Peer, computer: Peer, back: Any) -> None:
    await computer.drop()
    call = asyncio.create_task(agent.call_tool("laptop", req_id="r1", timeout=30))
    await agent.heard_until_now()
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "r1"})
    again = await back("computer", "laptop")
    assert await again.hears("notify:tool_call_cancel", req_id="r1")
    assert (await call)["code"] == 499
    assert again.asked == []


async def test_a_half_open_connection_is_replaced_silently_and_ended(agent: Peer, computer: Peer, back: Any) -> None:
    ended = asyncio.Event()
    computer.client.on("disconnect", lambda *_: ended.set(), namespace="/smcp")
    again = await back("computer", "laptop")
    again.answers("client:where", "new")
    computer.answers("client:where", "old")
    assert await agent.request("client:where", "laptop") == "new"
    await asyncio.wait_for(ended.wait(), 10)
    assert [event for event, _ in await agent.heard_until_now()] == ["notify:enter_office"]
    assert await again.heard_until_now() == []


@pytest.mark.covers("office-several")
async def test_all_seats_of_the_older_connection_are_taken_over_at_once(
    hub: Any, seat: Any, agent: Peer, computer: Peer, back: Any, office: str
) -> None:
    other = f"{office}-2"
    await agent.join("agent", "planner", other, instance=MINE)
    neighbour = await seat("computer", "tablet", other, hub=hub)
    neighbour.answers("client:where", "there")
    await agent.drop()
    again = await back("agent", "planner")
    assert await again.request("client:where", "tablet") == "there"
    assert await neighbour.heard_until_now() == []
    await neighbour.ask("server:update_config", {"computer": "tablet"})
    assert await again.hears("notify:update_config", office_id=other), "it is subscribed there too"


@pytest.mark.covers("office-isolation")
@pytest.mark.parametrize("instance", [OTHER, None])
async def test_without_the_same_instance_a_seat_that_is_kept_stays_taken(
    hub: Any, connect: Any, agent: Peer, computer: Peer, office: str, instance: str | None
) -> None:
    await agent.drop()
    await computer.drop()
    thief = await connect(hub)
    for role, name in (("agent", "planner"), ("computer", "laptop")):
        assert (await thief.ask_to_join(role, name, office, instance=instance))[0] is False
    assert thief.heard == []


async def test_another_name_or_role_does_not_resume(
    hub: Any, connect: Any, agent: Peer, computer: Peer, office: str
) -> None:
    other = await connect(hub)
    assert (await other.ask_to_join("agent", "laptop", office, instance=MINE))[1].startswith("403 Agent sid")
    await other.join("computer", "desktop", office, instance=MINE)
    assert [session["name"] for session in await sessions(agent)] == ["planner", "laptop", "desktop"]


@pytest.mark.covers("office-switch")
async def test_a_computer_back_in_another_office_has_left_the_first(
    hub: Any, connect: Any, agent: Peer, computer: Peer, back: Any, office: str
) -> None:
    call = await running_call(agent, computer, Gate(), timeout=30)
    await computer.drop()
    again = await back("computer", "laptop", where=f"{office}-2")
    assert await agent.hears("notify:leave_office", computer="laptop")
    assert (await call)["code"] == 404
    await again.heard_until_now()
    assert again.asked == [], "calls of the first office do not follow"


@pytest.mark.parametrize("how", ["leave_office", "socket.io disconnect"])
async def test_a_clean_end_releases_the_seat(hub: Any, connect_wire: Any, agent: Peer, office: str, how: str) -> None:
    wire = await connect_wire(hub)
    await wire.join("computer", "tablet", office, instance=OTHER)
    if how == "leave_office":
        await wire.ask(f'42/smcp,2["server:leave_office",{{"office_id":"{office}"}}]', 2)
    else:
        await wire.send("41/smcp,")
    started = asyncio.get_running_loop().time()
    assert "lost" not in await agent.hears("notify:leave_office", computer="tablet")
    assert asyncio.get_running_loop().time() - started < hub.app.settings.limits.resume_grace


async def test_closing_engine_io_is_not_clean(hub: Any, connect_wire: Any, agent: Peer, office: str, back: Any) -> None:
    wire = await connect_wire(hub)
    await wire.join("computer", "tablet", office, instance=OTHER)
    await wire.send("1")
    assert await wire.receive() == ""
    assert [session["name"] for session in await sessions(agent)] == ["planner", "tablet"]
    await back("computer", "tablet", OTHER)
    assert [event for event, _ in await agent.heard_until_now()] == ["notify:enter_office"]


@pytest.mark.covers("instance-secret")
async def test_the_instance_appears_nowhere(
    agent: Peer, computer: Peer, back: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await computer.drop()
    await back("computer", "laptop")
    shown = repr(await sessions(agent)) + repr(agent.heard) + caplog.text
    assert MINE not in shown
