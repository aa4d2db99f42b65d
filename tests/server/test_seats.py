"""Seats have an identity (WIRE §4): who is told which, and what is meant for one seat reaches no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from a2c_smcp.server.auth.api_keys import DefaultAuthenticationProvider
from tests.peer import Peer

MINE, YOURS = "an-instance-of-my-own", "an-instance-of-yours"
ALICE, BOB = "a-key-of-alice-1234", "a-key-of-bob-123456"
GRACE = {"resume_grace": 0.2}


async def never(_: Any) -> Any:
    await asyncio.Event().wait()


async def seat_told(peer: Peer, event: str) -> str:
    """The seat in the newest of these notices, which is then forgotten."""
    seat = str((await peer.hears(event))["seat"])
    peer.heard.clear()
    return seat


@pytest.mark.covers("seat-identity")
async def test_a_client_that_comes_back_has_its_seat_and_every_other_has_another(
    serve: Any, connect: Any, office: str
) -> None:
    keys = DefaultAuthenticationProvider([ALICE, BOB])
    hub = await serve(auth=keys, limits=GRACE)
    computer = await connect(hub, auth={"token": ALICE})
    await computer.join("computer", "laptop", office)
    seats = []
    for key, more in (
        (ALICE, {"instance": MINE}),
        (ALICE, {"instance": MINE}),
        (ALICE, {"instance": YOURS}),
        (BOB, {"instance": MINE}),
        (ALICE, {}),
        (ALICE, {}),
    ):
        agent = await connect(hub, auth={"token": key})
        await agent.join("agent", "planner", office, **more)
        seats.append(await seat_told(computer, "notify:enter_office"))
        assert await agent.seat() == seats[-1]
        await agent.drop()
        assert await seat_told(computer, "notify:leave_office") == seats[-1], "also when its grace is over"
    assert seats[0] == seats[1]
    assert len(set(seats)) == 5


@pytest.mark.covers("seat-identity")
async def test_a_seat_is_the_same_after_a_restart_and_another_in_each_office(
    serve: Any, connect: Any, office: str
) -> None:
    seats = []
    for name in (office, office, f"{office}-2"):
        agent = await connect(await serve())
        await agent.join("agent", "planner", name, instance=MINE)
        seats.append(await agent.seat())
    assert seats[0] == seats[1] != seats[2]


@pytest.mark.covers("seat-identity")
async def test_a_seat_that_another_instance_takes_on_the_same_connection_is_announced(
    connect: Any, agent: Peer, computer: Peer, office: str
) -> None:
    computer.heard.clear()
    await agent.join("agent", "planner", office, instance=MINE)
    come = await agent.seat()
    assert (await computer.hears("notify:enter_office"))["seat"] == come
    assert await seat_told(computer, "notify:leave_office") != come
    await agent.join("agent", "planner", office, instance=MINE)
    assert await computer.heard_until_now() == []


@pytest.mark.covers("seat-tell", "tell-routing")
async def test_what_is_told_to_a_seat_reaches_no_other_agent_of_its_name(
    connect: Any, computer: Peer, office: str
) -> None:
    first, second = await connect(), await connect()
    await first.join("agent", "planner", office, instance=MINE)
    seat = await seat_told(computer, "notify:enter_office")
    told = {"agent": "planner", "seat": seat}
    assert await computer.ask("server:tell_x", told) == {"delivered": True}
    await first.hears("notify:tell_x")
    await first.ask("server:leave_office", {"office_id": office})
    assert await computer.ask("server:tell_x", told) == {"delivered": False}, "nobody is there"
    await second.join("agent", "planner", office, instance=YOURS)
    assert await computer.ask("server:tell_x", told) == {"delivered": False}
    assert await computer.ask("server:tell_x", {**told, "agent": "other"}) == {"delivered": False}
    assert await second.heard_until_now() == []
    assert await computer.ask("server:tell_x", {"agent": "planner", "seat": None}) == {"delivered": True}
    assert (await computer.ask("server:tell_x", {"agent": "planner", "seat": [seat]}))["code"] == 400


@pytest.mark.covers("seat-present")
async def test_a_computer_that_asks_is_told_which_agent_it_finds_and_no_other_is(
    connect: Any, agent: Peer, office: str
) -> None:
    seat = await agent.seat()
    asking, silent = await connect(), await connect()
    await asking.join("computer", "asking", office, seats=True)
    assert await asking.heard_until_now() == [
        ("notify:enter_office", {"office_id": office, "agent": "planner", "seat": seat})
    ]
    await silent.join("computer", "silent", office)
    assert await silent.heard_until_now() == []
    await asking.join("computer", "asking", f"{office}-2", seats=True)
    assert len(await asking.heard_until_now()) == 2, "in an empty office there is nothing to tell"


@pytest.mark.covers("seat-present", "seat-calls")
async def test_a_computer_that_was_away_is_told_of_the_new_agent_and_gets_no_call_of_the_old_one(
    serve: Any, connect: Any, office: str
) -> None:
    hub = await serve(limits={"resume_grace": 30})
    first, second, computer, back = [await connect(hub) for _ in range(4)]
    await first.join("agent", "planner", office, instance=MINE)
    await computer.join("computer", "laptop", office, instance=YOURS, seats=True)
    computer.answers("client:tool_call", never)
    seen = asyncio.create_task(first.call_tool("laptop", req_id="seen", timeout=30))
    await computer.was_asked("client:tool_call")
    await computer.drop()
    unseen = asyncio.create_task(first.call_tool("laptop", req_id="unseen", timeout=30))
    listing = asyncio.create_task(first.request("client:get_tools", "laptop"))
    await first.heard_until_now()
    await first.ask("server:leave_office", {"office_id": office})
    await second.join("agent", "planner", office, instance="an-instance-of-theirs")
    ours = asyncio.create_task(second.call_tool("laptop", req_id="ours", timeout=30))
    await second.heard_until_now()
    back.answers("client:tool_call", {"content": []})
    await back.join("computer", "laptop", office, instance=YOURS, seats=True)
    await ours
    assert [data["req_id"] for data in await back.was_asked("client:tool_call")] == ["ours"]
    assert (await back.heard_until_now())[0][0] == "notify:enter_office"
    assert [name for name, _ in back.asked] == ["client:tool_call"]
    assert ((await seen)["code"], (await unseen)["code"], (await listing)["code"]) == (499, 499, 499)
    assert (await unseen)["details"]["outcome"] == "not_run"


@pytest.mark.covers("seat-present")
async def test_a_computer_that_comes_back_to_an_office_without_an_agent_is_told_so(
    connect: Any, agent: Peer, office: str
) -> None:
    computer, back = await connect(), await connect()
    await computer.join("computer", "laptop", office, instance=MINE, seats=True)
    await computer.drop()
    await agent.ask("server:leave_office", {"office_id": office})
    await back.join("computer", "laptop", office, instance=MINE, seats=True)
    assert await back.heard_until_now() == [("notify:leave_office", {"office_id": office, "lost": True})]


@pytest.mark.covers("seat-calls")
async def test_the_calls_of_an_agent_that_leaves_are_cancelled(agent: Peer, computer: Peer, office: str) -> None:
    other = f"{office}-2"
    await agent.join("agent", "planner", other)
    computer.answers("client:tool_call", never)
    call = asyncio.create_task(agent.call_tool("laptop", req_id="r1", timeout=30))
    await computer.was_asked("client:tool_call")
    await agent.ask("server:leave_office", {"office_id": other})
    assert not call.done(), "its calls in other offices go on"
    await agent.ask("server:leave_office", {"office_id": office})
    assert (await call)["code"] == 499
    assert await computer.hears("notify:tool_call_cancel") == {"agent": "planner", "req_id": "r1"}
