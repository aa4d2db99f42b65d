"""The hub between channels and directory, without sockets: order, gates, budgets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from a2c_smcp.engine.events import Event, Fault, Faulty
from a2c_smcp.protocol.offices import Change
from a2c_smcp.server import Limits, MemoryDirectory
from a2c_smcp.server.envelope import DONE
from a2c_smcp.server.hub import Hub
from tests.stage.hub import Client, pair
from tests.waiting import until

pytestmark = pytest.mark.covers("relay-order")

MINE = "an-instance-of-my-own"
RESULT = b'[{"content":[],"isError":false}]'


def names_in(packets: Sequence[bytes]) -> list[str]:
    """The names of the events, in their order."""
    return [json.loads(packet[packet.index(b"[") :])[0] for packet in packets]


class SlowDirectory(MemoryDirectory):
    """Commits when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.go.set()
        self.waiting = 0

    async def commit(self, change: Change) -> bool:
        self.waiting += 1
        await self.go.wait()
        self.waiting -= 1
        return await super().commit(change)


async def test_a_call_and_its_answer_pass_without_a_turn_of_the_loop_and_to_the_last_byte(hubs: Any) -> None:
    agent, computer = await pair(hubs())
    body = b'["client:newer",{"computer":"laptop" , "x":1e400,"z":"\xc3\xa9\\u00e9"}]'
    agent.hub.receive(agent.connection, Event(b"/smcp", 5, body))
    assert computer.packets == [b"42/smcp,1" + body]
    computer.ack(1, b'[ 1e400 ,"\\ud800"]')
    assert agent.packets == [b'43/smcp,5[ 1e400 ,"\\ud800"]']
    assert computer.connection.pending == {}


@pytest.mark.covers("malformed-frames")
@pytest.mark.parametrize("number", [1, -1, "0", None, True])
async def test_a_placeholder_without_an_attachment_is_refused_on_both_ways(hubs: Any, number: Any) -> None:
    agent, computer = await pair(hubs())
    blob = {"_placeholder": True, "num": number}
    agent.say(5, "client:put_blob", {"computer": "laptop", "blob": blob}, (b"x",))
    assert agent.answer(5)[0]["code"] == 400
    assert computer.packets == []
    agent.call(6)
    computer.ack(1, json.dumps([blob]).encode(), (b"x",))
    assert agent.answer(6)[0]["code"] == 400


async def test_events_behind_a_join_that_waits_are_handled_after_it_in_their_order(hubs: Any) -> None:
    hub: Hub = hubs(directory=(directory := SlowDirectory()))
    computer, agent = await Client.joined(hub, "computer", "laptop"), await Client(hub).connect()
    directory.go.clear()
    agent.ask_to_join(1, "agent", "planner")
    agent.call(2)
    agent.say(3, "server:list_room", {"agent": "planner", "req_id": "r", "office_id": "desk"})
    agent.say(4, "server:leave_office", {"office_id": "desk"})
    agent.call(5)
    await until(lambda: directory.waiting == 1)
    assert agent.packets == []
    assert computer.packets == []
    directory.go.set()
    await until(lambda: agent.answer(5) is not None)
    assert agent.answer(1) == [True, None]
    assert [session["name"] for session in agent.answer(3)[0]["sessions"]] == ["planner", "laptop"]
    assert agent.answer(4) == [True, None]
    assert agent.answer(5)[0]["code"] == 403
    assert [packet[:29] for packet in computer.packets if b"client:" in packet] == [b'42/smcp,1["client:tool_call",']
    assert agent.connection.inbox is None, "nothing waits any more"


@pytest.mark.covers("limit-in-flight-bytes")
async def test_events_that_wait_behind_a_join_are_limited(hubs: Any) -> None:
    hub: Hub = hubs(directory=(directory := SlowDirectory()), limits=Limits(in_flight_bytes=1000))
    agent = await Client(hub).connect()
    directory.go.clear()
    agent.ask_to_join(1, "agent", "planner")
    for number in range(2, 30):
        agent.call(number)
    directory.go.set()
    await until(lambda: len(agent.packets) == 29)
    codes = [agent.answer(number)[0]["code"] for number in range(2, 30)]
    assert codes[0] == 404, "what fits is handled after the join"
    assert codes[-1] == 429


@pytest.mark.covers("calls-resume")
async def test_the_ack_of_a_join_leaves_before_the_packets_that_it_causes(hubs: Any) -> None:
    hub: Hub = hubs(directory=(directory := SlowDirectory()))
    agent = await Client.joined(hub, "agent", "planner")
    first = await Client.joined(hub, "computer", "laptop", instance=MINE)
    agent.packets.clear()
    for number in range(2, 5):
        agent.call(number)
    agent.say(9, "server:tool_call_cancel", {"agent": "planner", "req_id": "r4"})
    hub.disconnected(first.connection, is_clean=False)
    second = await Client(hub).connect()
    directory.go.clear()
    second.ask_to_join(7, "computer", "laptop", instance=MINE)
    await until(lambda: directory.waiting == 1)
    directory.go.set()
    await until(lambda: len(second.packets) == 4)
    assert second.packets[0] == b"43/smcp,7[true,null]"
    assert sorted(names_in(second.packets[1:])) == [*["client:tool_call"] * 2, "notify:tool_call_cancel"]


@pytest.mark.covers("limit-unread")
async def test_holding_too_much_behind_the_ack_of_a_join_ends_the_session(hubs: Any) -> None:
    hub: Hub = hubs(directory=(directory := SlowDirectory()))
    agent, computer = await pair(hub)
    agent.room = 1000
    for number in range(2, 5):
        agent.call(number)
    directory.go.clear()
    agent.ask_to_join(5, "agent", "planner", "another")
    for number in range(1, 4):
        computer.ack(number, json.dumps(["x" * 600]).encode())
        assert agent.is_aborted == (number > 1)
    directory.go.set()
    await until(lambda: agent.answer(5) is not None)


async def test_packets_are_sent_again_after_a_refused_join(hubs: Any) -> None:
    agent, computer = await pair(hubs())
    agent.ask_to_join(2, "computer", "planner")
    await until(lambda: agent.answer(2) is not None)
    assert agent.answer(2)[0] is False
    agent.call(3)
    computer.ack(1, RESULT)
    assert agent.packets[-1] == b"43/smcp,3" + RESULT


@pytest.mark.covers("calls-deadline", "calls-cancel")
async def test_a_computer_whose_call_has_timed_out_is_told_to_stop(hubs: Any) -> None:
    agent, computer = await pair(hubs())
    agent.call(2, timeout=1)
    await until(lambda: agent.answer(2) is not None)
    assert agent.answer(2)[0]["code"] == 408
    await until(lambda: len(computer.packets) == 2)
    assert computer.packets[1] == b'42/smcp,["notify:tool_call_cancel",{"agent":"planner","req_id":"r2"}]'
    computer.ack(1, RESULT)
    assert len(agent.packets) == 1, "its answer comes too late"


async def test_events_sent_before_a_disconnect_are_carried_out_first(hubs: Any) -> None:
    hub: Hub = hubs(directory=(directory := SlowDirectory()))
    agent, computer = await Client.joined(hub, "agent", "planner"), await Client(hub).connect()
    directory.go.clear()
    computer.ask_to_join(1, "computer", "laptop")
    await until(lambda: directory.waiting == 1)
    computer.say(2, "server:update_newer", {"computer": "laptop"})
    hub.disconnected(computer.connection, is_clean=True)
    directory.go.set()
    await until(lambda: len(agent.packets) == 3)
    assert names_in(agent.packets) == ["notify:enter_office", "notify:update_newer", "notify:leave_office"]
    assert computer.packets == [], "nothing is written to a connection that is gone"
    assert len(hub.connections) == 1


@pytest.mark.covers("always-an-ack", "error-shape")
@pytest.mark.parametrize(
    ("name", "fault", "code"),
    [
        (b'"client:tool_call"', Fault.TOO_LARGE, 413),
        (b'"client:tool_call"', Fault.MALFORMED, 400),
        (b'"no:such_event"', Fault.ATTACHMENTS, 400),
        (b"", Fault.MALFORMED, 400),
        (b'"server:join_office"', Fault.TOO_LARGE, 413),
    ],
)
async def test_a_malformed_event_is_answered_in_its_shape(hubs: Any, name: bytes, fault: Fault, code: int) -> None:
    agent, _ = await pair(hubs())
    agent.hub.receive(agent.connection, Faulty(b"/smcp", 7, False, name, fault, "why", size=9, limit=8))
    if b"join" in name:
        assert agent.answer(7) == [False, "413 Message too large: why"]
    else:
        assert (agent.answer(7)[0]["code"], "isError" in agent.answer(7)[0]) == (code, b"tool_call" in name)


async def test_a_crowd_hears_notices_in_order_and_before_later_packets(hubs: Any) -> None:
    agent, _ = await pair(hubs())
    crowd = [await Client.joined(agent.hub, "computer", f"computer-{number}") for number in range(20)]
    await until(lambda: len(agent.packets) == 20)
    agent.packets.clear()
    for number in range(5):
        crowd[0].say(None, f"server:update_x{number}", {"computer": "computer-0"})
    assert agent.packets == [], "in a crowd, notices are gathered"
    agent.say(9, "no:such_event", {})
    assert names_in(agent.packets[:-1]) == [f"notify:update_x{number}" for number in range(5)]
    assert agent.packets[-1].startswith(b"43/smcp,9[")
    await until(lambda: type(crowd[1].connection.channel) is Client)
    assert [packet for packet in crowd[1].packets if b"update_x" in packet] == agent.packets[:-1]
    assert not [packet for packet in crowd[0].packets if b"update_x" in packet]


@pytest.mark.covers("auth-expiry")
async def test_a_dismissed_connection_loses_its_seats_at_once(hubs: Any) -> None:
    agent, computer = await pair(hubs())
    agent.hub.dismiss(computer.connection)
    assert computer.is_dismissed
    await until(lambda: agent.packets != [])
    assert names_in(agent.packets) == ["notify:leave_office"]


async def test_an_ack_of_an_earlier_connection_on_the_same_session_answers_no_later_call(hubs: Any) -> None:
    hub: Hub = hubs()
    agent, computer = await pair(hub)
    agent.call(2)
    (earlier,) = computer.connection.pending
    hub.disconnected(computer.connection, is_clean=True)
    await until(lambda: agent.answer(2) is not None)
    await computer.connect()
    await computer.join("computer", "laptop")
    agent.call(3)
    computer.ack(earlier, RESULT)
    assert agent.answer(3) is None
    (later,) = computer.connection.pending
    computer.ack(later, RESULT)
    assert agent.answer(3) == json.loads(RESULT)


async def test_packets_held_for_an_ended_connection_do_not_reach_the_next_one(hubs: Any) -> None:
    hub: Hub = hubs(directory=(directory := SlowDirectory()))
    agent, computer = await pair(hub)
    directory.go.clear()
    computer.ask_to_join(2, "computer", "laptop", "another")
    agent.call(2)
    hub.disconnected(computer.connection, is_clean=True)
    gone = computer.connection
    await computer.connect()
    directory.go.set()
    await until(lambda: gone.inbox is None)
    assert computer.packets == []


async def test_notices_gathered_for_an_ended_connection_do_not_reach_the_next_one(hubs: Any) -> None:
    hub: Hub = hubs()
    crowd = [await Client.joined(hub, "computer", f"computer-{number}") for number in range(20)]
    await until(lambda: type(crowd[1].connection.channel) is Client)
    crowd[0].say(None, "server:update_x", {"computer": "computer-0"})
    hub.disconnected(crowd[1].connection, is_clean=True)
    await crowd[1].connect()
    await until(lambda: any(b"update_x" in packet for packet in crowd[2].packets))
    assert not [packet for packet in crowd[1].packets if b"update_x" in packet]


class OneByOne(MemoryDirectory):
    """Commits as often as it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = asyncio.Semaphore(0)

    async def commit(self, change: Change) -> bool:
        await self.turns.acquire()
        return await super().commit(change)


@pytest.mark.covers("limit-in-flight-bytes")
async def test_only_events_that_still_wait_behind_a_join_count(hubs: Any) -> None:
    directory = OneByOne()
    hub: Hub = hubs(directory=directory, limits=Limits(in_flight_bytes=1000))
    agent = await Client(hub).connect()
    agent.ask_to_join(0, "agent", "planner", "desk-0")
    for number in range(1, 20):
        agent.ask_to_join(number, "agent", "planner", f"desk-{number}")
        directory.turns.release()
        await until(lambda: agent.answer(number - 1) is not None)  # noqa: B023, awaited here
    directory.turns.release()
    await until(lambda: agent.answer(19) is not None)
    assert all(agent.answer(number) == [True, None] for number in range(20))


@pytest.mark.covers("calls-resume")
async def test_a_call_that_waits_after_a_standstill_is_sent_once_to_a_computer_that_comes_back_meanwhile(
    hubs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a2c_smcp.server.calls.call.StallDetector.is_recent", lambda self, now: True)
    hub: Hub = hubs()
    agent = await Client.joined(hub, "agent", "planner")
    first = await Client.joined(hub, "computer", "laptop", instance=MINE)
    agent.call(2)
    second = await Client.joined(hub, "computer", "laptop", instance=MINE)
    agent.call(3)
    await until(lambda: any(b'"r3"' in packet for packet in second.packets))
    assert len([packet for packet in [*first.packets, *second.packets] if b'"r2"' in packet]) <= 1
    assert len(second.connection.pending) <= 2


async def test_lists_of_a_large_office_are_written_one_in_a_turn_of_the_loop(hubs: Any) -> None:
    hub: Hub = hubs()
    agent = await Client.joined(hub, "agent", "planner")
    for number in range(50):
        await Client.joined(hub, "computer", f"computer-{number}")
    await until(lambda: type(agent.connection.channel) is Client)
    agent.packets.clear()
    for number in range(2, 12):
        agent.say(number, "server:list_room", {"agent": "planner", "req_id": "r", "office_id": "desk"})
    assert agent.packets == []
    for _ in range(20):
        before = len(agent.packets)
        await asyncio.sleep(0)
        assert len(agent.packets) <= before + 1
    await until(lambda: len(agent.packets) == 10)
    assert [len(agent.answer(number)[0]["sessions"]) for number in range(2, 12)] == [51] * 10


@pytest.mark.covers("strangers-frames")
async def test_joins_of_one_connection_are_handled_one_in_a_turn_of_the_loop(hubs: Any) -> None:
    agent = await Client(hubs()).connect()
    for number in range(1, 101):
        agent.ask_to_join(number, "agent", "planner", f"desk{number}")
    turns = 0
    while agent.connection.inbox is not None:
        turns += 1
        await asyncio.sleep(0)
    assert turns >= 100
    joined = [packet for packet in agent.packets if b"[true,null]" in packet]
    assert joined[:2] == [b"43/smcp,1[true,null]", b"43/smcp,2[true,null]"]
    assert len(agent.packets) == 100


TELL = {"agent": "planner", "req_id": "r1"}


@pytest.mark.covers("tell-order")
async def test_acks_stay_behind_a_tell_that_waits_behind_a_join(hubs: Any) -> None:
    agent, computer = await pair(hubs(directory=(directory := SlowDirectory())))
    for number in (5, 6, 7):
        agent.call(number)
    first, second, third = computer.connection.pending
    directory.go.clear()
    computer.ask_to_join(2, "computer", "laptop")
    await until(lambda: directory.waiting == 1)
    computer.ack(first, RESULT)
    assert agent.packets == [b"43/smcp,5" + RESULT], "nothing was told before it"
    computer.say(3, "server:tell_progress", {**TELL, "progress": 1})
    computer.ack(second, RESULT)
    computer.hub.acked(computer.connection, Faulty(b"/smcp", third, True, b"", Fault.MALFORMED, "torn"))
    assert len(agent.packets) == 1
    directory.go.set()
    await until(lambda: agent.answer(7) is not None)
    assert names_in(agent.packets[1:2]) == ["notify:tell_progress"]
    assert [packet[:9] for packet in agent.packets[2:]] == [b"43/smcp,6", b"43/smcp,7"]
    assert computer.answer(3) == [{"delivered": True}]
    await until(lambda: computer.connection.inbox is None)
    assert (computer.connection.held_in_order, computer.connection.inbox_bytes) == (0, 0)
    agent.call(8)
    computer.ack(max(computer.connection.pending), RESULT)
    assert agent.answer(8) == json.loads(RESULT), "later ones do not wait"


@pytest.mark.covers("tell-order")
async def test_an_ack_that_cannot_be_held_is_given_at_once(hubs: Any) -> None:
    directory = SlowDirectory()
    agent, computer = await pair(hubs(directory=directory, limits=Limits(in_flight_bytes=1024)))
    agent.call(5)
    directory.go.clear()
    computer.ask_to_join(2, "computer", "laptop")
    computer.say(3, "server:tell_progress", {**TELL, "progress": 1})
    computer.ack(1, b'["%s"]' % (b"x" * 2000))
    assert agent.answer(5) == ["x" * 2000]
    directory.go.set()


@pytest.mark.covers("tell-rates")
async def test_a_second_holds_ten_tells_of_a_call_and_the_rest_is_counted(hubs: Any) -> None:
    agent, computer = await pair(hubs())
    for number in range(100, 130):
        computer.say(number, "server:tell_progress", {**TELL, "progress": number})
        computer.say(number + 100, "server:tell_question", {**TELL, "question_id": "q", "request": {}})
    told = [json.loads(packet[len(b"42/smcp,") :]) for packet in agent.packets]
    assert [data["progress"] for event, data in told if event == "notify:tell_progress"] == list(range(100, 110))
    assert len([event for event, _ in told if event == "notify:tell_question"]) == 10
    assert [computer.answer(number) for number in range(100, 130)] == [[{"delivered": True}]] * 30
    assert [computer.answer(number)[0].get("code") for number in range(200, 230)] == [None] * 10 + [429] * 20
    counted = computer.hub.metrics.value
    assert (counted("a2c_tells_total"), counted("a2c_tells_dropped_total", reason="rate")) == (20, 40)


@pytest.mark.covers("tell-rates")
async def test_a_computer_has_a_rate_for_all_tells_and_one_for_logs(hubs: Any) -> None:
    agent, computer = await pair(hubs())
    log = {"agent": "planner", "mcp_server": "s", "level": "info", "data": 1}
    for number in range(60):
        computer.say(None, "server:tell_log", {**log, "req_id": f"r{number}"})
    assert len(agent.packets) == 50
    for number in range(200):
        computer.say(None, "server:tell_resource", {"agent": "planner", "n": number})
    assert len(agent.packets) == 200
    other = await Client.joined(computer.hub, "computer", "desktop")
    agent.packets.clear()
    other.say(None, "server:tell_log", log)
    assert len(agent.packets) == 1, "another computer has its own"


@pytest.mark.covers("tell-rates")
async def test_tells_use_half_of_an_agents_room_and_large_ones_have_a_budget(hubs: Any) -> None:
    agent, computer = await pair(hubs(limits=Limits(unread_bytes=100_000, told_bytes=40_000)))
    agent.room = 50_000 + 500
    question = {**TELL, "question_id": "q"}
    computer.say(2, "server:tell_question", {**question, "request": {"x": "y" * 1000}})
    assert computer.answer(2)[0]["message"] == "Too much at once: the agent reads too slowly, try again later"
    computer.say(3, "server:tell_progress", {**TELL, "progress": 1, "message": "y" * 1000})
    assert computer.answer(3) == [{"delivered": True}]
    assert agent.packets == []
    computer.say(4, "server:tell_question", {**question, "request": {}})
    assert (computer.answer(4), len(agent.packets)) == ([{"delivered": True}], 1)
    agent.room = 100_000
    for number in (5, 6):
        computer.say(number, "server:tell_question", {**question, "request": {"x": "y" * 30_000}})
    assert (computer.answer(5), computer.answer(6)[0]["code"]) == ([{"delivered": True}], 429)
    computer.say(7, "server:tell_question", {**question, "request": {"x": "y" * 50_000}})
    assert computer.answer(7)[0]["code"] == 413
    assert computer.hub.metrics.value("a2c_tells_dropped_total", reason="unread") == 2
    assert not agent.is_aborted


@pytest.mark.covers("tell-away")
async def test_a_tell_to_an_agent_that_is_away_is_counted(hubs: Any) -> None:
    hub = hubs()
    computer = await Client.joined(hub, "computer", "laptop")
    agent = await Client.joined(hub, "agent", "planner", instance=MINE)
    hub.disconnected(agent.connection, is_clean=False)
    computer.say(2, "server:tell_question", {**TELL, "question_id": "q", "request": {}})
    assert computer.answer(2) == [{"delivered": True}]
    assert hub.metrics.value("a2c_tells_dropped_total", reason="away") == 1


@pytest.mark.covers("tell-order")
async def test_what_is_told_while_its_agent_joins_again_follows_the_ack_of_the_join(hubs: Any) -> None:
    agent, computer = await pair(hubs())
    agent.connection.hold_packets()
    computer.say(2, "server:tell_progress", {**TELL, "progress": 1})
    assert agent.packets == []
    agent.connection.reply_to_join(1, None, DONE)
    assert [packet[:12] for packet in agent.packets] == [b"43/smcp,1[tr", b'42/smcp,["no']


@pytest.mark.covers("audit-outages")
async def test_refused_calls_that_wait_for_their_record_take_a_bounded_part_of_the_memory(hubs: Any) -> None:
    """The text of a short call has far fewer bytes than what is kept for it."""
    hub, recorded = hubs(), list[Any]()
    agent, _ = await pair(hub)
    hub.observation.record(recorded.extend)
    await hub.drain()  # calls are refused with 503, as in an outage
    held, too_many = 16 * 1024 * 1024 // 2048, 100
    for number in range(held + too_many):
        agent.call(number)
    hub.observation.settle()
    assert len(recorded) >= too_many, "what is too much is recorded at once"
    hub.observation.drop(recorded.extend)
    assert {call.name_in_fields("req_id") for call in recorded} == {f"r{number}" for number in range(held + too_many)}
