"""What a computer tells one agent (WIRE §9): who hears it, in which order, how often, and what is answered."""

from __future__ import annotations

import asyncio
import json
from time import monotonic
from typing import Any

import pytest

from tests.conftest import Seat
from tests.peer import Peer, Wire
from tests.stage.calls import HUGE, MINE, Gate, both
from tests.waiting import until_it_goes

DELIVERED = {"delivered": True}
REQUEST = {"method": "elicitation/create", "params": {"message": "Which?", "requestedSchema": {"type": "object"}}}
KINDS: dict[str, dict[str, Any]] = {
    "progress": {"req_id": "r1", "progress": 0.5, "total": 1, "message": "half"},
    "state": {"req_id": "r1", "state": "waiting", "since": 1.5, "reason": "the owner of laptop"},
    "question": {"req_id": "r1", "question_id": "q1", "request": REQUEST, "mcp_server": "files", "tool_name": "t"},
    "question_ended": {"req_id": "r1", "question_id": "q1"},
    "log": {"mcp_server": "files", "level": "info", "data": {"deep": [HUGE, None, "\ud800"]}},
    "resource": {"mcp_server": "files", "uri": "file:///a"},
    "进度": {},
}


def tell(number: int, kind: str, **fields: Any) -> str:
    return f"42/smcp,{number}{json.dumps([f'server:tell_{kind}', {'agent': 'planner', **fields}])}"


@pytest.mark.covers(
    "9-tell_progress", "9-tell_state", "9-tell_question", "9-tell_question_ended", "9-tell_log", "tell-routing"
)
@pytest.mark.covers("9-tell_resource")
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_told_arrives_whole_at_the_agent_and_nowhere_else(
    seat: Seat, connect: Any, agent: Peer, computer: Peer, office: str, kind: str
) -> None:
    others = [await seat("computer", "desktop", office), *await both(connect, None, f"{office}-2")]
    told = {"agent": "planner", **KINDS[kind], "office_id": f"{office}-2", "_meta": {"n": HUGE}}
    assert await computer.ask(f"server:tell_{kind}", told) == DELIVERED
    expected = {**told, "computer": "laptop", "office_id": office}
    assert await agent.hears(f"notify:tell_{kind}") == expected, "the Server says who told it"
    for peer in (computer, *others):
        assert [event for event, _ in await peer.heard_until_now() if "tell" in event] == []
    assert len([event for event, _ in await agent.heard_until_now() if "tell" in event]) == 1


@pytest.mark.covers("tell-routing", "older-names")
async def test_robot_id_names_the_agent_too(agent: Peer, computer: Peer, office: str) -> None:
    assert await computer.ask("server:tell_x", {"robot_id": "planner", "computer": "laptop"}) == DELIVERED
    assert await agent.hears("notify:tell_x") == {"robot_id": "planner", "computer": "laptop", "office_id": office}
    both = await computer.ask("server:tell_x", {"robot_id": "planner", "agent": "stranger"})
    assert (both["code"], both["details"]) == (404, {"agent": "stranger"})


REFUSED = [
    ("computer", "tell_x", {"agent": "stranger"}, 404, "No such agent: 'stranger'"),
    ("computer", "tell_x", {"agent": "laptop"}, 404, "No such agent"),
    ("computer", "tell_x", {"agent": "planner", "computer": "desktop"}, 403, "Not your name"),
    ("agent", "tell_x", {"agent": "planner"}, 403, "Wrong role"),
    ("nobody", "tell_x", {"agent": "planner"}, 403, "Not in this office"),
    ("computer", "tell_x", {}, 400, "agent: missing"),
    ("computer", "tell_x", {"agent": None}, 400, "agent"),
    ("computer", "tell_x", {"agent": 5}, 400, "agent"),
    ("computer", "tell_x", {"agent": "planner", "req_id": ["r"]}, 400, "req_id"),
    ("computer", "tell_progress", {"agent": "planner", "progress": 1}, 400, "req_id: missing"),
    ("computer", "tell_x", "planner", 400, "must be an object"),
    ("computer", "tell_", {"agent": "planner"}, 400, "Unsupported event"),
    ("computer", "tell", {"agent": "planner"}, 400, "Unsupported event"),
]


@pytest.mark.covers("tell-refused", "always-an-ack", "wrong-role", "not-in-office", "bad-payload", "claims-name")
@pytest.mark.parametrize(("sender", "event", "data", "code", "message"), REFUSED)
async def test_what_cannot_be_told_is_refused_and_nobody_hears_it(
    connect: Any, agent: Peer, computer: Peer, sender: str, event: str, data: Any, code: int, message: str
) -> None:
    senders = {"agent": agent, "computer": computer, "nobody": await connect()}
    answer = await senders[sender].ask(f"server:{event}", data)
    assert answer["code"] == answer["error"]["code"] == code
    assert message in answer["message"]
    for peer in senders.values():
        assert [name for name, _ in await peer.heard_until_now() if "tell" in name] == []


@pytest.mark.covers("tell-refused")
async def test_a_notice_for_an_agent_has_no_binary_parts(agent: Peer, computer: Peer) -> None:
    assert (await computer.ask("server:tell_x", {"agent": "planner", "blob": b"x"}))["code"] == 400
    assert (await computer.ask("notify:tell_x", {"agent": "planner"}))["code"] == 400


@pytest.mark.covers("tell-order")
async def test_an_answer_never_overtakes_what_was_told_first(connect_wire: Any, computer: Peer, office: str) -> None:
    """Also if an event that waits for the shared store came before both."""
    agent, laptop = await connect_wire(), await connect_wire()
    await agent.join("agent", "planner", office)
    await computer.ask("server:leave_office", {"office_id": office})
    await laptop.join("computer", "laptop", office)
    call = {"agent": "planner", "computer": "laptop", "tool_name": "t", "params": {}, "timeout": 30}
    for turn in range(20):
        await agent.send(f"42/smcp,{turn}{json.dumps(['client:tool_call', {**call, 'req_id': f'r{turn}'}])}")
        number = await laptop.asked("client:tool_call")
        if turn % 2:
            await laptop.send(f'42/smcp,["server:update_turn{turn}",{{"computer":"laptop"}}]')
        await laptop.send(tell(99, "progress", req_id=f"r{turn}", progress=1))
        await laptop.send(tell(99, "question", req_id=f"r{turn}", question_id="q", request={}))
        await laptop.send(f"43/smcp,{number}[{turn}]")
        frames = []
        while not frames or not frames[-1].startswith(f"43/smcp,{turn}["):
            frames.append(await agent.receive())
        heard = [frame for frame in frames if "notify:tell" in frame or frame.startswith("43")]
        assert ["tell_progress" in heard[0], "tell_question" in heard[1]] == [True, True]
        assert heard[2:] == [f"43/smcp,{turn}[{turn}]"]


async def received(wire: Wire, event: str) -> str:
    """The next frame with this event."""
    while event not in (frame := await wire.receive()):
        assert frame, "the connection has ended"
    return frame


@pytest.mark.covers("tell-away")
async def test_an_agent_that_is_away_for_a_moment_counts_as_told_and_hears_what_follows_its_return(
    seat: Seat, computer: Peer, office: str
) -> None:
    agent = await seat("agent", "planner", office, instance=MINE)
    await agent.drop()

    async def tell_question() -> None:
        assert await computer.ask("server:tell_question", {"agent": "planner", **KINDS["question"]}) == DELIVERED

    await until_it_goes(tell_question)  # another node hears of the agent later, and a line is not closed at once
    back = await seat("agent", "planner", office, instance=MINE)
    assert await computer.ask("server:tell_progress", {"agent": "planner", **KINDS["progress"]}) == DELIVERED
    await back.hears("notify:tell_progress")
    assert "notify:tell_question" not in [event for event, _ in await back.heard_until_now()]
    await back.ask("server:leave_office", {"office_id": office})
    await computer.hears("notify:leave_office", agent="planner")
    gone = await computer.ask("server:tell_progress", {"agent": "planner", **KINDS["progress"]})
    assert (gone["code"], gone["details"]) == (404, {"agent": "planner"})


@pytest.mark.covers("tell-rates")
async def test_only_tells_over_the_rate_are_dropped(connect_wire: Any, agent: Peer, office: str) -> None:
    wire = await connect_wire()
    await wire.join("computer", "tablet", office)
    begun = monotonic()
    for number in range(100, 400):
        await wire.send(tell(number, "progress", req_id="r1", progress=number))
    await wire.send(tell(400, "progress", req_id="r2", progress=1))
    await wire.send(tell(401, "question", req_id="r1", question_id="q", request={}))
    acks = [await received(wire, "43/smcp,") for _ in range(302)]
    assert acks == [f'43/smcp,{number}[{{"delivered":true}}]' for number in range(100, 402)]
    await agent.hears("notify:tell_question")
    seconds = int(monotonic() - begun) + 1
    heard = [data for event, data in await agent.heard_until_now() if event == "notify:tell_progress"]
    assert 10 <= len([data for data in heard if data["req_id"] == "r1"]) <= 10 * seconds
    assert [data["progress"] for data in heard if data["req_id"] == "r2"] == [1]
    await wire.send(tell(1, "other", req_id="r3"))
    assert await received(wire, "43/smcp,1[") == '43/smcp,1[{"delivered":true}]'


@pytest.mark.covers("tell-rates")
async def test_an_agent_that_does_not_read_what_it_is_told_stays_connected(
    hosting: str, serve: Any, seat: Seat, connect_wire: Any, office: str
) -> None:
    """What does not fit into half of its unread bytes is dropped. On its own node, a question is refused."""
    hub = await serve(limits={"unread_bytes": 256 * 1024, "write_timeout": 60.0, "tells_per_second": 10_000})
    agent, computer = await connect_wire(hub), await seat("computer", "laptop", office, hub=hub)
    await agent.join("agent", "planner", office)
    agent.stop_reading()
    big = "x" * 60_000
    log = {"agent": "planner", "mcp_server": "s", "level": "info", "data": big}
    question = {"agent": "planner", "question_id": "q", "request": {"x": big}}
    for number in range(300):
        assert await computer.ask("server:tell_log", log) == DELIVERED
        answer = await computer.ask("server:tell_question", {**question, "req_id": f"r{number}"})
        if answer != DELIVERED:
            assert answer["code"] == 429
            break
    assert answer != DELIVERED or hosting == "nodes"
    agent.go_on_reading()
    await agent.send('42/smcp,7["no:such_event",{}]')
    assert (await received(agent, "43/smcp,7")).startswith('43/smcp,7[{"error":{"code":400'), "it is still there"


@pytest.mark.covers("calls-extend")
async def test_an_extended_call_has_the_longest_deadline_at_the_server(serve: Any, connect: Any, office: str) -> None:
    hub = await serve(limits={"max_timeout": 2})
    agent, computer = await both(connect, hub, office)
    for event in ("client:tool_call", "client:slow"):
        computer.answers(event, Gate())
    for extend in (5, "true", []):
        refused = await agent.call_tool("laptop", timeout=1, extend=extend)
        assert (refused["code"], refused["details"]["field"]) == (400, "extend")
    plain = await agent.call_tool("laptop", timeout=1, extend=False)
    assert "did not answer within 2 s" in plain["message"]
    answers = await asyncio.gather(
        *(agent.call_tool("laptop", timeout=1, extend=True) for _ in range(2)),
        agent.request("client:slow", "laptop", timeout=1, extend=True),
        agent.call_tool("laptop", timeout=1, extend=None),
    )
    assert [answer["code"] for answer in answers] == [408] * 4
    assert ["did not answer within 3 s" in answer["message"] for answer in answers] == [True, True, True, False]
