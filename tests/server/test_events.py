"""Every event of 002, by its own name and by its older one: who may say it, what answers it, what follows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import TRANSPORTS, Seat
from tests.peer import Peer
from tests.stage.calls import HUGE, both, sessions
from tests.stage.members import without_seat

RESULT = {
    "content": [{"type": "text", "text": "3"}],
    "isError": False,
    "structuredContent": {"n": 3},
    "_meta": {"x": 1},
}


@pytest.mark.covers("transports", "002-join_office", "002-tool_call", "002-enter_office")
@pytest.mark.parametrize("agent_transport", TRANSPORTS)
@pytest.mark.parametrize("computer_transport", TRANSPORTS)
async def test_a_call_travels_over_every_pair_of_transports(
    seat: Seat, office: str, agent_transport: str, computer_transport: str
) -> None:
    agent = await seat("agent", "planner", office, transport=agent_transport)
    computer = await seat("computer", "laptop", office, transport=computer_transport)
    computer.answers("client:tool_call", RESULT)
    assert await agent.call_tool("laptop", params={"a": 1, "b": 2}) == RESULT
    assert without_seat(await agent.hears("notify:enter_office")) == {"office_id": office, "computer": "laptop"}
    ((event, request),) = computer.asked
    assert event == "client:tool_call"
    assert request["params"] == {"a": 1, "b": 2}


CARRIED = [
    "get_tools",
    "get_config",
    "get_desktop",
    "get_questions",
    "get_servers",
    "get_prompts",
    "get_skills",
    "日程",
]


@pytest.mark.covers(
    "002-get_tools", "002-get_config", "002-get_desktop", "older-names", "routing-unknown", "nothing-stripped"
)
@pytest.mark.covers("9-get_questions", "9-get_servers", "9-get_prompts")
@pytest.mark.parametrize(
    ("said", "arrives"),
    [("client:get_mcp_config", "client:get_config"), *((f"client:{name}", f"client:{name}") for name in CARRIED)],
)
async def test_a_request_reaches_its_computer_under_its_canonical_name_and_nothing_is_stripped(
    agent: Peer, computer: Peer, said: str, arrives: str
) -> None:
    answer = {"tools": [], "req_id": "r1", "unknown": {"deep": [1, None, HUGE, "\ud800", 1.5]}}
    computer.answers(arrives, answer)
    sent = {"agent": "planner", "req_id": "r1", "computer": "laptop", "_meta": {"traceparent": "00-1"}, "n": HUGE}
    assert await agent.ask(said, sent) == answer
    assert computer.asked == [(arrives, sent)]


@pytest.mark.covers("9-answer_question", "9-set_log_level", "9-get_resources", "9-get_resource_templates")
@pytest.mark.covers("9-read_resource", "9-subscribe_resource", "9-unsubscribe_resource", "9-get_prompt", "9-complete")
@pytest.mark.covers("nothing-stripped")
@pytest.mark.parametrize(
    ("event", "fields"),
    [
        ("client:answer_question", {"question_id": "q1", "action": "accept", "content": {"n": HUGE}}),
        ("client:answer_question", {"question_id": "q1", "action": 5}),
        ("client:withdraw_call", {"call": "r0"}),
        ("client:withdraw_call", {"call": 5}),
        ("client:set_log_level", {"mcp_server": "files", "level": "debug"}),
        ("client:set_log_level", {"level": "loud", "unknown": [1]}),
        ("client:get_resources", {"mcp_server": "files", "cursor": "c"}),
        ("client:get_resource_templates", {"mcp_server": "files", "cursor": 7}),
        ("client:read_resource", {"mcp_server": "files", "uri": "file:///a", "questions": "result"}),
        ("client:subscribe_resource", {"mcp_server": "files", "uri": ""}),
        ("client:unsubscribe_resource", {"mcp_server": "files", "uri": "file:///a"}),
        ("client:get_prompt", {"mcp_server": "files", "name": "p", "arguments": {"n": HUGE}}),
        ("client:complete", {"mcp_server": "files", "ref": {}, "argument": {}, "context": [1]}),
        ("client:tool_call", {"tool_name": "t", "params": {}, "timeout": 5, "progress": True, "questions": "result"}),
        ("client:tool_call", {"tool_name": "t", "params": {}, "timeout": 5, "questions": "no", "request_state": 7}),
    ],
)
async def test_the_fields_of_a_request_that_the_server_does_not_use_are_left_to_the_computer(
    agent: Peer, computer: Peer, event: str, fields: dict[str, Any]
) -> None:
    computer.answers(event, RESULT)
    sent = {"agent": "planner", "req_id": "r1", "computer": "laptop", "_meta": {"k": 1}, **fields}
    for number in range(2):  # the second one goes by the cache of routes
        assert await agent.ask(event, sent | {"req_id": f"r{number}"}) == RESULT
    assert computer.asked == [(event, sent | {"req_id": f"r{number}"}) for number in range(2)]


@pytest.mark.covers("bad-payload")
async def test_routing_fields_of_a_request_are_checked_by_the_server(agent: Peer, computer: Peer) -> None:
    computer.answers("client:set_log_level", {})
    sent = {"agent": "planner", "req_id": "r", "computer": "laptop", "level": "info"}
    for _ in range(2):
        assert await agent.ask("client:set_log_level", sent) == {}
        for field, value in (("req_id", 5), ("office_id", " x"), ("agent", "")):
            answer = await agent.ask("client:set_log_level", sent | {field: value})
            assert (answer["code"], answer["details"]["field"]) == (400, field)


@pytest.mark.covers("002-tool_call", "older-names", "nothing-stripped")
async def test_robot_id_is_read_as_agent_and_passed_on_unchanged(agent: Peer, computer: Peer) -> None:
    computer.answers("client:tool_call", RESULT)
    call = {"robot_id": "planner", "req_id": "r1", "computer": "laptop", "tool_name": "t", "params": {}, "timeout": 5}
    assert await agent.ask("client:tool_call", call) == RESULT
    assert computer.asked == [("client:tool_call", call)]


@pytest.mark.covers("ack-arguments")
@pytest.mark.parametrize("answer", [None, [], {}, "text", 0, False, [1, [2]], ("several", "arguments", None)])
async def test_an_answer_travels_verbatim_whatever_it_is(agent: Peer, computer: Peer, answer: Any) -> None:
    computer.answers("client:anything", answer)
    assert await agent.request("client:anything", "laptop") == answer


@pytest.mark.covers("ack-arguments")
async def test_binary_payloads_and_answers_are_carried(agent: Peer, computer: Peer) -> None:
    computer.answers("client:put_blob", lambda data: {"got": data["blob"][::-1]})
    assert await agent.request("client:put_blob", "laptop", blob=b"\x00\x01\x02") == {"got": b"\x02\x01\x00"}


@pytest.mark.covers("002-join_office", "ack-arguments")
async def test_join_and_leave_ack_two_arguments(connect: Any, office: str) -> None:
    peer = await connect()
    join = {"role": "computer", "name": "laptop", "office_id": office}
    assert await peer.ask("server:join_office", join) == (True, None)
    assert await peer.ask("server:leave_office", {"office_id": office}) == (True, None)
    refused, reason = await peer.ask("server:leave_office", {"office_id": office})
    assert (refused, reason[:4]) == (False, "403 ")


@pytest.mark.covers("002-leave_office", "002-leave_office-notice")
async def test_the_others_hear_of_a_leave_and_the_leaver_does_not(agent: Peer, computer: Peer, office: str) -> None:
    await computer.ask("server:leave_office", {"office_id": office})
    assert without_seat(await agent.hears("notify:leave_office")) == {"office_id": office, "computer": "laptop"}
    assert await computer.heard_until_now() == []


@pytest.mark.covers("002-enter_office", "notices-to-others")
async def test_the_others_hear_of_an_agent_and_the_agent_hears_nothing_of_itself(seat: Seat, office: str) -> None:
    computer, agent = await seat("computer", "laptop", office), await seat("agent", "planner", office)
    await computer.hears("notify:enter_office")
    assert await agent.heard_until_now() == []
    ((event, notice),) = await computer.heard_until_now()
    assert (event, without_seat(notice)) == ("notify:enter_office", {"office_id": office, "agent": "planner"})


@pytest.mark.covers("002-list_room")
async def test_list_room_shows_each_role_and_version(connect: Any, agent: Peer, computer: Peer, office: str) -> None:
    newer = await connect(query="?a2c_version=0.4.2")
    await newer.join("computer", "desktop", office)
    answer = await agent.ask("server:list_room", {"agent": "planner", "req_id": "r1", "office_id": office})
    assert answer["req_id"] == "r1"
    assert [(s["name"], s["role"], s["a2c_version"], s["sid"], s["office_id"]) for s in answer["sessions"]] == [
        ("planner", "agent", "0.1", agent.sid, office),
        ("laptop", "computer", "0.1", computer.sid, office),
        ("desktop", "computer", "0.4.2", newer.sid, office),
    ]


@pytest.mark.covers("002-update_config", "002-update_tool_list", "002-update_desktop", "routing-unknown", "older-names")
@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ("server:update_config", "notify:update_config"),
        ("server:update_mcp_config", "notify:update_config"),
        ("server:update_tool_list", "notify:update_tool_list"),
        ("server:update_desktop", "notify:update_desktop"),
        ("server:desktop_refresh", "notify:update_desktop"),
        ("server:update_skills", "notify:update_skills"),
    ],
)
async def test_an_update_is_acked_empty_and_told_to_the_others_with_its_office(
    agent: Peer, computer: Peer, office: str, said: str, heard: str
) -> None:
    update = {"computer": "laptop", "n": HUGE, "office_id": "a lie"}
    assert await computer.ask(said, update) is None
    assert await agent.hears(heard) == {"computer": "laptop", "n": HUGE, "office_id": office}
    assert await computer.heard_until_now() == [], "an originator is not told"
    assert [event for event, _ in await agent.heard_until_now()] == ["notify:enter_office", heard]


@pytest.mark.covers("older-names")
async def test_who_uses_an_older_name_hears_older_notices(seat: Seat, agent: Peer, computer: Peer, office: str) -> None:
    await agent.ask("client:get_mcp_config", {"agent": "planner", "req_id": "r", "computer": "nobody"})
    for event in ("update_config", "update_desktop", "update_tool_list"):
        await computer.ask(f"server:{event}", {"computer": "laptop"})
    told = [event for event, _ in await agent.heard_until_now() if "update" in event or "refresh" in event]
    names = ["update_config", "update_mcp_config", "update_desktop", "desktop_refresh", "update_tool_list"]
    assert told == [f"notify:{name}" for name in names]
    other = f"{office}-2"
    await agent.join("agent", "planner", other)
    mover = await seat("computer", "tablet", other)
    await mover.ask("server:update_desktop", {"computer": "tablet"})
    assert await agent.hears("notify:desktop_refresh", office_id=other)


@pytest.mark.covers("older-names")
async def test_legacy_notices_reach_everybody_when_asked_for(serve: Any, connect: Any, office: str) -> None:
    hub = await serve(legacy_notices=True)
    agent, computer = await both(connect, hub, office)
    await computer.ask("server:update_config", {"computer": "laptop"})
    assert await agent.hears("notify:update_config")
    assert await agent.hears("notify:update_mcp_config") == {"computer": "laptop", "office_id": office}


REFUSED_EVENTS = [
    "connect", "disconnect", "connect_error", "message", "", "*", "client:", "client: ", "client:tool_call ",
    "Client:x", "server:", "server:x", "server:update", "server:update_", "server:tell", "server:tell_",
    "notify:enter_office", "notify:update_config", "notify:tell_progress",
    "trigger_event", "_handle", "background", "client:\x00", "client:" + "x" * 500,
]  # fmt: skip


@pytest.mark.covers("event-names", "always-an-ack")
@pytest.mark.parametrize("event", REFUSED_EVENTS)
async def test_an_unknown_event_is_refused_and_the_connection_lives_on(agent: Peer, computer: Peer, event: str) -> None:
    answer = await agent.ask(event, {"computer": "laptop", "agent": "planner", "req_id": "r"})
    assert answer["code"] == answer["error"]["code"] == 400
    assert answer["error"] == {key: answer[key] for key in ("code", "message", "details")}
    assert await computer.heard_until_now() == []
    assert computer.asked == []


GOOD = {
    "server:join_office": {"role": "computer", "name": "n", "office_id": "o"},
    "server:leave_office": {"office_id": "o"},
    "server:list_room": {"agent": "planner", "req_id": "r", "office_id": "o"},
    "server:tool_call_cancel": {"agent": "planner", "req_id": "r"},
    "client:get_tools": {"agent": "planner", "req_id": "r", "computer": "laptop"},
    "client:get_config": {"agent": "planner", "req_id": "r", "computer": "laptop"},
    "client:get_desktop": {"agent": "planner", "req_id": "r", "computer": "laptop", "desktop_size": 1, "window": "w"},
    "client:tool_call": {
        "agent": "planner", "req_id": "r", "computer": "laptop", "tool_name": "t", "params": {}, "timeout": 1,
    },
    "client:newer": {"computer": "laptop"},
    "server:update_config": {"computer": "laptop"},
    "server:update_newer": {"computer": "laptop"},
    "client:get_questions": {"agent": "planner", "req_id": "r", "computer": "laptop"},
    "server:tell_progress": {"agent": "planner", "req_id": "r"},
    "server:tell_newer": {"agent": "planner"},
}  # fmt: skip
NOT_NAMES = [None, 1, "", " x", "x ", "a\nb", "\u202eevil", "x" * 129, ["x"], {"x": 1}, True, "a\u200bb"]
BROKEN = [
    *[(event, payload) for event in GOOD for payload in (None, [], "text", 7, True)],
    *[(event, {k: v for k, v in good.items() if k != field}) for event, good in GOOD.items() for field in good
      if field not in ("desktop_size", "window")],
    *[(event, {**good, field: bad}) for event, good in GOOD.items()
      for field in good.keys() & {"name", "office_id", "agent", "req_id", "computer"} for bad in NOT_NAMES],
    *[("client:tool_call", {**GOOD["client:tool_call"], **bad}) for bad in (
        {"timeout": 0}, {"timeout": -1}, {"timeout": 3601}, {"timeout": 1.5}, {"timeout": "5"}, {"timeout": True},
        {"timeout": None}, {"params": []}, {"params": None}, {"params": "x"}, {"tool_name": ""}, {"tool_name": 5},
        {"tool_name": "x" * 257})],
    *[("client:get_desktop", {**GOOD["client:get_desktop"], **bad}) for bad in (
        {"desktop_size": "3"}, {"desktop_size": 1.5}, {"desktop_size": True}, {"window": 5}, {"window": "x" * 2049})],
    *[("server:join_office", {**GOOD["server:join_office"], **bad}) for bad in (
        {"role": "admin"}, {"role": None}, {"role": ["agent"]}, {"instance": "short"}, {"instance": "x" * 129},
        {"instance": 5})],
]  # fmt: skip


@pytest.mark.covers("bad-payload", "always-an-ack", "error-shape")
async def test_a_malformed_payload_is_refused_and_changes_nothing(agent: Peer, computer: Peer, office: str) -> None:
    for event, payload in BROKEN:
        sender = computer if event.startswith(("server:update", "server:tell")) else agent
        answer = await sender.ask(event, payload)
        if event in ("server:join_office", "server:leave_office"):
            assert (answer[0], answer[1][:4]) == (False, "400 "), (event, payload, answer)
        else:
            assert answer["code"] == answer["error"]["code"] == 400, (event, payload, answer)
        if event == "client:tool_call":
            assert answer["isError"] is True
            assert answer["content"] == [{"type": "text", "text": answer["message"]}]
        if isinstance(payload, dict) and not isinstance(answer, tuple):
            assert answer["details"]["field"] in answer["message"]
    assert [session["name"] for session in await sessions(agent)] == ["planner", "laptop"]
    assert computer.asked == []


@pytest.mark.covers("bad-payload", "always-an-ack")
@pytest.mark.parametrize("arguments", [(), ({"computer": "laptop"}, {"computer": "laptop"})])
async def test_an_event_carries_exactly_one_object(agent: Peer, arguments: tuple[Any, ...]) -> None:
    answer = await agent.client.call("client:get_tools", arguments, namespace="/smcp")
    assert answer["code"] == 400


ROLES = [
    ("agent", "server:update_config", {"computer": "planner"}),
    ("agent", "server:update_anything", {"computer": "planner"}),
    ("agent", "server:tell_anything", {"agent": "planner"}),
    ("computer", "client:get_tools", {"agent": "laptop", "req_id": "r", "computer": "laptop"}),
    ("computer", "client:unknown", {"computer": "laptop"}),
    ("computer", "server:list_room", {"agent": "laptop", "req_id": "r", "office_id": "{office}"}),
    ("computer", "server:tool_call_cancel", {"agent": "laptop", "req_id": "r"}),
]


@pytest.mark.covers("wrong-role")
@pytest.mark.parametrize(("role", "event", "payload"), ROLES)
async def test_events_of_the_other_role_are_refused(
    agent: Peer, computer: Peer, office: str, role: str, event: str, payload: dict[str, Any]
) -> None:
    sender = agent if role == "agent" else computer
    answer = await sender.ask(event, {k: v.format(office=office) for k, v in payload.items()})
    assert (answer["code"], answer["message"][:10]) == (403, "Wrong role")


@pytest.mark.covers("not-in-office", "always-an-ack")
@pytest.mark.parametrize("event", [event for event in GOOD if event != "server:join_office"])
async def test_without_an_office_everything_but_joining_is_refused(connect: Any, event: str) -> None:
    peer = await connect()
    answer = await peer.ask(event, GOOD[event])
    code = int(answer[1][:3]) if isinstance(answer, tuple) else answer["code"]
    assert code == 403
