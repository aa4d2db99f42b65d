"""Offices on the wire (WIRE §4): who may enter, what a refusal leaves behind, and that nothing crosses a wall."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import Seat
from tests.peer import Peer
from tests.stage.calls import sessions
from tests.stage.members import without_seat


async def names_in(agent: Peer) -> list[str]:
    return [session["name"] for session in await sessions(agent)]


@pytest.mark.covers("office-one-agent", "office-refused-unchanged")
async def test_a_second_agent_is_refused_and_hears_nothing_of_the_office(
    connect: Any, agent: Peer, computer: Peer, office: str
) -> None:
    intruder = await connect()
    refused, reason = await intruder.ask_to_join("agent", "intruder", office)
    assert (refused, reason[:42], office in reason) == (False, "403 Agent sid should be equal to office_id", True)
    await computer.ask("server:update_config", {"computer": "laptop"})
    await agent.hears("notify:update_config")
    assert await intruder.heard_until_now() == []
    assert await names_in(agent) == ["planner", "laptop"]
    answer = await intruder.ask("client:get_tools", {"agent": "intruder", "req_id": "r", "computer": "laptop"})
    assert answer["code"] == 403
    assert computer.asked == []


@pytest.mark.covers("office-names", "office-refused-unchanged")
async def test_a_computer_name_is_unique_only_in_its_office(connect: Any, computer: Peer, office: str) -> None:
    namesake = await connect()
    refused, reason = await namesake.ask_to_join("computer", "laptop", office)
    assert (refused, reason[:17]) == (False, "403 Name is taken")
    await namesake.join("computer", "laptop", f"{office}-2")
    assert [event for event, _ in await computer.heard_until_now()] == []


@pytest.mark.covers("office-idempotent")
async def test_joining_again_is_accepted_and_told_to_nobody(agent: Peer, computer: Peer, office: str) -> None:
    for _ in range(3):
        await computer.join("computer", "laptop", office)
        await agent.join("agent", "planner", office)
    told = [*await agent.heard_until_now(), *await computer.heard_until_now()]
    assert [event for event, _ in told] == ["notify:enter_office"], "only the computer's first entry"


@pytest.mark.covers("office-switch")
async def test_a_computer_leaves_its_office_for_another(seat: Seat, agent: Peer, computer: Peer, office: str) -> None:
    other = f"{office}-2"
    other_agent = await seat("agent", "planner", other)
    await computer.join("computer", "laptop", other)
    assert without_seat(await agent.hears("notify:leave_office")) == {"office_id": office, "computer": "laptop"}
    assert without_seat(await other_agent.hears("notify:enter_office")) == {"office_id": other, "computer": "laptop"}
    assert await names_in(agent) == ["planner"]
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "r"})
    assert await computer.heard_until_now() == []


@pytest.mark.covers("office-switch", "office-refused-unchanged")
async def test_a_computer_refused_elsewhere_stays_put(seat: Seat, agent: Peer, computer: Peer, office: str) -> None:
    other = f"{office}-2"
    holder = await seat("computer", "laptop", other)
    assert (await computer.ask_to_join("computer", "laptop", other))[0] is False
    computer.answers("client:get_tools", {"tools": [], "req_id": "r"})
    assert await agent.request("client:get_tools", "laptop") == {"tools": [], "req_id": "r"}
    assert "notify:leave_office" not in [event for event, _ in await agent.heard_until_now()]
    assert await holder.heard_until_now() == []


@pytest.mark.covers("office-rename")
async def test_a_new_name_in_an_office_is_told_as_leave_and_enter(agent: Peer, computer: Peer, office: str) -> None:
    await computer.join("computer", "desktop", office)
    await agent.hears("notify:enter_office", computer="desktop")
    assert [(event, without_seat(notice)) for event, notice in (await agent.heard_until_now())[-2:]] == [
        ("notify:leave_office", {"office_id": office, "computer": "laptop"}),
        ("notify:enter_office", {"office_id": office, "computer": "desktop"}),
    ]
    assert await names_in(agent) == ["planner", "desktop"]
    assert (await agent.request("client:get_tools", "laptop"))["code"] == 404
    computer.answers("client:get_tools", {"tools": [], "req_id": "r"})
    assert (await agent.request("client:get_tools", "desktop"))["tools"] == []
    assert (await computer.ask("server:update_config", {"computer": "laptop"}))["code"] == 403


@pytest.mark.covers("office-rename")
async def test_an_agent_can_be_renamed_too(agent: Peer, computer: Peer, office: str) -> None:
    await agent.join("agent", "thinker", office)
    assert await computer.hears("notify:leave_office", agent="planner")
    assert await computer.hears("notify:enter_office", agent="thinker")
    old = {"agent": "planner", "req_id": "r", "computer": "laptop"}
    assert (await agent.ask("client:get_tools", old))["message"].startswith("Not your name")


@pytest.mark.covers("office-role")
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_connection_does_not_change_its_role(agent: Peer, computer: Peer, office: str, elsewhere: bool) -> None:
    target = f"{office}-2" if elsewhere else office
    for peer, role in ((agent, "computer"), (computer, "agent")):
        refused, reason = await peer.ask_to_join(role, "janus", target)
        assert (refused, reason[:14]) == (False, "403 Wrong role")
    assert await names_in(agent) == ["planner", "laptop"]


@pytest.mark.covers("office-several", "ambiguous-computer")
async def test_an_agent_sits_in_several_offices_and_says_which_when_names_are_equal(
    seat: Seat, agent: Peer, computer: Peer, office: str
) -> None:
    other = f"{office}-2"
    await agent.join("agent", "planner", other)
    twin, only = await seat("computer", "laptop", other), await seat("computer", "tablet", other)
    for peer, where in ((computer, "here"), (twin, "there"), (only, "tablet")):
        peer.answers("client:where", where)
    assert await agent.request("client:where", "tablet") == "tablet"
    assert await agent.request("client:where", "laptop", office_id=office) == "here"
    assert await agent.request("client:where", "laptop", office_id=other) == "there"
    answer = await agent.request("client:where", "laptop")
    assert (answer["code"], answer["details"]["offices"]) == (400, sorted([office, other]))
    assert (await agent.request("client:where", "laptop", office_id="office-of-somebody-else"))["code"] == 403
    await agent.ask("server:leave_office", {"office_id": other})
    assert await agent.request("client:where", "laptop") == "here"
    assert (await agent.request("client:where", "tablet"))["code"] == 404


@pytest.mark.covers("office-leave-foreign")
async def test_leaving_an_office_one_is_not_in_is_refused_alike_whether_it_exists_or_not(
    seat: Seat, agent: Peer, computer: Peer, office: str
) -> None:
    stranger = await seat("computer", "stranger", f"{office}-2")
    answers = [await stranger.ask("server:leave_office", {"office_id": name}) for name in (office, f"{office}-3")]
    assert [answer[0] for answer in answers] == [False, False]
    assert answers[0][1].replace(office, "X") == answers[1][1].replace(f"{office}-3", "X")
    assert answers[0][1].startswith("403 ")
    assert await names_in(agent) == ["planner", "laptop"]


@pytest.mark.covers("list-room-own")
async def test_list_room_is_refused_for_an_office_one_does_not_sit_in(seat: Seat, agent: Peer, office: str) -> None:
    stranger = await seat("agent", "stranger", f"{office}-2")
    asked = [{"agent": "stranger", "req_id": "r", "office_id": name} for name in (office, "nowhere")]
    there, nowhere = [json.dumps(await stranger.ask("server:list_room", request)) for request in asked]
    assert json.loads(there)["code"] == 403
    assert there.replace(office, "X") == nowhere.replace("nowhere", "X")


@pytest.mark.covers("office-isolation")
@pytest.mark.parametrize("event", ["client:tool_call", "client:get_tools", "client:get_config", "client:newer"])
async def test_a_computer_elsewhere_answers_exactly_like_one_that_does_not_exist(
    connect_wire: Any, computer: Peer, office: str, event: str
) -> None:
    wire = await connect_wire()
    await wire.join("agent", "spy", f"{office}-2")
    call = {"agent": "spy", "req_id": "r", "computer": "laptop", "tool_name": "t", "params": {}, "timeout": 1}
    elsewhere = await wire.ask(f'42/smcp,2["{event}",{json.dumps(call)}]', 2)
    await computer.ask("server:leave_office", {"office_id": office})
    nowhere = await wire.ask(f'42/smcp,3["{event}",{json.dumps(call)}]', 3)
    assert json.dumps(elsewhere) == json.dumps(nowhere)
    assert elsewhere[0]["code"] == 404
    assert computer.asked == []


@pytest.mark.covers("office-isolation", "claims-name")
@pytest.mark.parametrize("field", ["agent", "robot_id"])
async def test_a_client_has_only_its_own_name(seat: Seat, agent: Peer, computer: Peer, office: str, field: str) -> None:
    spoof = {"agent": "planner", field: "somebody", "req_id": "r", "computer": "laptop"}
    call = {**spoof, "tool_name": "t", "params": {}, "timeout": 1}
    requests = [
        ("client:get_tools", spoof),
        ("client:newer", spoof),
        ("client:tool_call", call),
        ("server:tool_call_cancel", spoof),
        ("server:list_room", {**spoof, "office_id": office}),
    ]
    for event, payload in requests:
        answer = await agent.ask(event, payload)
        assert (event, answer["code"], answer["message"][:13]) == (event, 403, "Not your name")
    neighbour = await seat("computer", "tablet", office)
    for event in ("server:update_config", "server:update_desktop", "server:update_newer", "server:desktop_refresh"):
        assert (await neighbour.ask(event, {"computer": "laptop"}))["code"] == 403
    assert computer.asked == []
    for peer in (computer, agent):
        assert {event for event, _ in await peer.heard_until_now()} == {"notify:enter_office"}


@pytest.mark.covers("office-isolation", "rooms-prefixed")
async def test_a_sid_or_a_room_name_as_office_id_is_an_office_like_any_other(
    connect: Any, agent: Peer, computer: Peer, office: str
) -> None:
    spy = await connect()
    for name in (agent.sid, computer.sid, f"office:{office}", f"older:{office}", "None", "/smcp"):
        await spy.join("computer", "spy", name)
        computer.answers("client:where", "here")
        assert await agent.request("client:where", "laptop") == "here"
        await computer.ask("server:update_config", {"computer": "laptop"})
    await agent.hears("notify:update_config")
    assert await spy.heard_until_now() == []
    assert spy.asked == []


@pytest.mark.covers("office-isolation")
async def test_after_leaving_nothing_is_heard_or_said(seat: Seat, agent: Peer, computer: Peer, office: str) -> None:
    await agent.ask("server:leave_office", {"office_id": office})
    successor = await seat("agent", "planner", office)
    await computer.ask("server:update_config", {"computer": "laptop"})
    await successor.hears("notify:update_config")
    told = [event for event, _ in await agent.heard_until_now()]
    assert told == ["notify:enter_office"], "only what came before it left"
    for event in ("client:get_tools", "client:newer"):
        assert (await agent.request(event, "laptop"))["code"] == 403
    cancel = await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "r"})
    assert cancel["code"] == 403
    assert computer.asked == []


@pytest.mark.covers("office-leave-on-disconnect")
async def test_without_instance_a_disconnect_is_a_leave(seat: Seat, agent: Peer, computer: Peer, office: str) -> None:
    await computer.drop()
    assert without_seat(await agent.hears("notify:leave_office")) == {"office_id": office, "computer": "laptop"}
    again = await seat("computer", "laptop", office)
    await agent.drop()
    assert await again.hears("notify:leave_office", agent="planner")
    await seat("agent", "planner", office)
