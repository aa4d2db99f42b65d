"""Limits (WIRE §6): what is over one gets its code, harms nobody else, and is counted."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from a2c_smcp.server import Limits
from tests.peer import Peer, Wire
from tests.stage.calls import RESULT, Gate, both, running_call
from tests.stage.polling import Poller
from tests.stage.web import Http

KIB = 1024
MIB = 1024 * KIB


@pytest.mark.covers("limit-message", "always-an-ack")
@pytest.mark.parametrize("transport", ["websocket", "polling"])
async def test_a_message_over_the_limit_is_answered_413_and_the_connection_lives_on(
    serve: Any, connect: Any, office: str, transport: str
) -> None:
    hub = await serve(limits={"max_message": 64 * KIB})
    agent, computer = await both(partial(connect, transport=transport), hub, office)
    computer.answers("client:tool_call", RESULT)
    answer = await agent.call_tool("laptop", params={"x": "a" * 65 * KIB})
    assert answer["code"] == answer["error"]["code"] == 413
    assert (answer["isError"], answer["details"]["limit"]) == (True, 64 * KIB)
    refused, reason = await agent.ask("server:join_office", {"pad": "a" * 65 * KIB})
    assert (refused, reason[:3]) == (False, "413")
    assert computer.asked == []
    assert await agent.call_tool("laptop", params={"x": "a" * 60 * KIB}) == RESULT
    assert hub.app.metrics.value("a2c_refused_total", code="413") == 2


@pytest.mark.covers("limit-message")
async def test_the_limit_counts_bytes_as_encoded_to_the_last_one(serve: Any, connect_wire: Any) -> None:
    hub = await serve(limits={"max_message": 2 * KIB})
    wire = await connect_wire(hub)
    for character, width in (("a", 1), ("é", 2), ("任", 3)):
        head, tail = '2/smcp,1["client:newer",{"x":"', '"}]'
        room = 2 * KIB - len(head) - len(tail)
        full = character * (room // width) + "a" * (room % width)
        assert (await wire.ask(f"4{head}{full}{tail}", 1))[0]["code"] == 400, "exactly the limit is taken"
        assert (await wire.ask(f"4{head}{full}a{tail}", 1))[0]["code"] == 413


@pytest.mark.covers("limit-message")
async def test_a_result_over_the_limit_becomes_413_for_its_caller_only(serve: Any, connect: Any, office: str) -> None:
    hub = await serve(limits={"max_message": 64 * KIB})
    agent, computer = await both(connect, hub, office)
    computer.answers("client:tool_call", {"content": [{"type": "text", "text": "a" * 65 * KIB}]})
    computer.answers("client:get_tools", {"tools": []})
    answer = await agent.call_tool("laptop")
    assert answer["code"] == 413
    assert (await agent.request("client:get_tools", "laptop")) == {"tools": []}


@pytest.mark.covers("limit-message")
async def test_four_mebibytes_travel_both_ways(agent: Peer, computer: Peer) -> None:
    text = "x" * (4 * MIB - 2 * KIB)
    computer.answers("client:tool_call", lambda data: {"content": [], "echo": data["params"]["text"]})
    assert (await agent.call_tool("laptop", params={"text": text}, timeout=30))["echo"] == text


@pytest.mark.covers("limit-defaults")
def test_the_defaults_are_those_of_the_contract() -> None:
    limits = Limits()
    contract = {
        "max_message": 4 * MIB, "max_transport": 8 * MIB, "unread_bytes": 16 * MIB, "told_bytes": 64 * MIB,
        "in_flight_bytes": 64 * MIB, "max_timeout": 3600, "request_timeout": 25, "calls_per_agent": 512,
        "calls_per_computer": 512, "seats_per_connection": 64, "updates_per_second": 20,
        "newer_updates_per_second": 50, "ping_interval": 10, "ping_timeout": 8, "write_timeout": 10,
        "handshake_timeout": 10, "authentication_timeout": 5, "drain_timeout": 10, "resume_grace": 5,
        "cancel_grace": 1, "keep_time": 60,
    }  # fmt: skip
    assert {name: getattr(limits, name) for name in contract} == contract


@pytest.mark.covers("half-open")
async def test_a_half_open_connection_is_noticed(serve: Any, seat: Any, connect_wire: Any, office: str) -> None:
    hub = await serve(limits={"ping_interval": 1, "ping_timeout": 1})
    agent = await seat("agent", "planner", office, hub=hub)
    await join_sloth(await connect_wire(hub), office)
    assert await agent.hears("notify:leave_office", computer="sloth")


@pytest.mark.covers("limit-calls")
async def test_calls_in_flight_are_limited_on_either_side(serve: Any, connect: Any, seat: Any, office: str) -> None:
    hub = await serve(limits={"calls_per_agent": 3, "calls_per_computer": 2})
    agent, computer = await both(connect, hub, office)
    tablet = await seat("computer", "tablet", office, hub=hub)
    gate = Gate()
    for peer in (computer, tablet):
        peer.answers("client:tool_call", gate)
    calls = [asyncio.create_task(agent.call_tool("laptop", timeout=30)) for _ in range(2)]
    await computer.was_asked("client:tool_call", times=2)
    assert (await agent.call_tool("laptop"))["code"] == 429
    calls.append(asyncio.create_task(agent.call_tool("tablet", timeout=30)))
    await tablet.was_asked("client:tool_call")
    answer = await agent.call_tool("tablet")
    assert (answer["code"], "one agent" in answer["message"]) == (429, True)
    gate.open()
    assert await asyncio.gather(*calls) == [RESULT] * 3
    assert await agent.call_tool("laptop") == RESULT


@pytest.mark.covers("limit-in-flight-bytes", "calls-outcome")
async def test_bytes_of_calls_in_flight_are_limited(serve: Any, connect: Any, seat: Any, office: str) -> None:
    hub = await serve(limits={"in_flight_bytes": 100 * KIB})
    agent, computer = await both(connect, hub, office)
    await seat("computer", "tablet", office, hub=hub)
    gate, bulk = Gate(), {"text": "x" * 60 * KIB}
    first = await running_call(agent, computer, gate, params=bulk, timeout=30)
    for name in ("laptop", "tablet"):
        refused = await agent.call_tool(name, params=bulk)
        assert (refused["code"], refused["details"]["outcome"]) == (429, "not_run")
    small = asyncio.create_task(agent.call_tool("laptop", timeout=30))
    await computer.was_asked("client:tool_call", times=2)
    gate.open()
    assert [await first, await small] == [RESULT, RESULT]
    assert await agent.call_tool("laptop", params=bulk) == RESULT, "an answered call counts no longer"


@pytest.mark.covers("limit-updates")
async def test_known_updates_are_merged_and_the_last_one_arrives(agent: Peer, computer: Peer, office: str) -> None:
    started = asyncio.get_running_loop().time()
    for number in range(200):
        assert await computer.ask("server:update_desktop", {"computer": "laptop", "number": number}) is None
    await agent.hears("notify:update_desktop", number=199)
    elapsed = asyncio.get_running_loop().time() - started
    heard = [data["number"] for event, data in await agent.heard_until_now() if event == "notify:update_desktop"]
    assert heard[0] == 0, "the first is told at once"
    assert heard == sorted(heard)
    assert len(heard) <= 20 * elapsed + 2


@pytest.mark.covers("limit-updates")
async def test_pending_updates_are_sent_before_their_sender_leaves(agent: Peer, computer: Peer, office: str) -> None:
    for number in range(2):
        await computer.ask("server:update_tool_list", {"computer": "laptop", "number": number})
    await computer.ask("server:leave_office", {"office_id": office})
    await agent.hears("notify:leave_office")
    told = [event for event, _ in await agent.heard_until_now()]
    assert told == ["notify:enter_office", *["notify:update_tool_list"] * 2, "notify:leave_office"]


@pytest.mark.covers("limit-updates", "9-update_resource_list", "9-update_prompts")
@pytest.mark.parametrize("kind", ["newer", "resource_list", "prompts"])
async def test_other_updates_are_not_merged_but_refused_above_fifty(agent: Peer, computer: Peer, kind: str) -> None:
    about = {"computer": "laptop", "mcp_server": "files"}
    asked = [computer.ask(f"server:update_{kind}", {**about, "number": n}) for n in range(80)]
    answers = await asyncio.gather(*asked)
    refused = [answer for answer in answers if answer is not None]
    assert {answer["code"] for answer in refused} == {429}
    assert len(refused) == 30
    heard = [data["number"] for event, data in await agent.heard_until_now() if event == f"notify:update_{kind}"]
    assert heard == list(range(50))


async def join_sloth(wire: Wire, office: str) -> None:
    """A computer that joins and then reads nothing more."""
    await wire.join("computer", "sloth", office)
    wire.stop_reading()


@pytest.mark.covers("limit-unread", "calls-one-hurts-no-other")
async def test_calls_to_a_member_that_does_not_read_are_refused_and_other_offices_never_wait(
    serve: Any, connect: Any, connect_wire: Any, office: str
) -> None:
    hub = await serve(limits={"unread_bytes": 4 * MIB, "max_message": 2 * MIB})
    agent, computer = await both(connect, hub, office)
    await join_sloth(await connect_wire(hub), office)
    computer.answers("client:tool_call", RESULT)
    bulk = {"text": "x" * MIB}
    calls = [asyncio.create_task(agent.call_tool("sloth", params=bulk, timeout=30)) for _ in range(20)]
    done, waiting = await asyncio.wait(calls, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert (await next(iter(done)))["code"] == 429
    for _ in range(20):
        assert await agent.call_tool("laptop", params=bulk) == RESULT
    for call in waiting:
        call.cancel()


@pytest.mark.covers("limit-unread")
async def test_a_member_is_cut_when_notices_pile_up(serve: Any, connect: Any, connect_wire: Any, office: str) -> None:
    hub = await serve(limits={"unread_bytes": MIB, "max_message": MIB})
    agent, computer = await both(connect, hub, office)
    await join_sloth(await connect_wire(hub), office)
    for number in range(40):
        news = {"computer": "laptop", "pad": "x" * 512 * KIB, "number": number}
        await computer.ask("server:update_newer", news)
        if any(event == "notify:leave_office" for event, _ in agent.heard):
            break
        await asyncio.sleep(0.05)
    assert await agent.hears("notify:leave_office", computer="sloth")
    assert await agent.request("client:x", "laptop") is None


@pytest.mark.covers("limit-unread")
async def test_a_member_is_cut_when_a_write_blocks(serve: Any, connect: Any, connect_wire: Any, office: str) -> None:
    hub = await serve(limits={"write_timeout": 0.5})
    agent, _ = await both(connect, hub, office)
    await join_sloth(await connect_wire(hub), office)
    bulk = {"text": "x" * 3 * MIB}
    calls = [asyncio.create_task(agent.call_tool("sloth", params=bulk, timeout=30)) for _ in range(3)]
    assert await agent.hears("notify:leave_office", computer="sloth")
    assert {(await call)["code"] for call in calls} == {404}


@pytest.mark.covers("limit-polling-batch")
async def test_a_polling_client_gets_at_most_sixteen_packets_in_one_response(seat: Any, office: str) -> None:
    agent = await seat("agent", "planner", office, transport="polling")
    computers = [await seat("computer", f"c{number}", office) for number in range(3)]
    asked = [peer.ask("server:update_newer", {"computer": peer.name, "n": n}) for n in range(30) for peer in computers]
    await asyncio.gather(*asked)
    heard = [event for event, _ in await agent.heard_until_now() if event == "notify:update_newer"]
    assert len(heard) == 90, "none is lost, and the client, which breaks above sixteen, is still there"


@pytest.mark.covers("limit-polling-batch", "always-an-ack")
async def test_a_client_may_send_many_packets_in_one_poll(http: Http, shared_hub: Any) -> None:
    poller = await Poller(http, shared_hub.url).open()
    await poller.post("\x1e".join(f'42/smcp,{n}["no:such_event",{{}}]' for n in range(100)))
    packets: list[str] = []
    while len(packets) < 100:
        batch = (await poller.get())[1].split("\x1e")
        assert len(batch) <= 16
        packets += batch
    assert [packet.startswith(f"43/smcp,{n}[") for n, packet in enumerate(packets)] == [True] * 100
    await poller.post("1")


MALFORMED = [
    "42/smcp,7",
    "42/smcp,7[]",
    "42/smcp,7{}",
    '42/smcp,7["client:tool_call",{"a":NaN}]',
    '42/smcp,7["client:tool_call",{"a":}]',
    '42/smcp,7["client:tool_call"',
    "42/smcp,7[null,{}]",
    "42/smcp,7[5]",
    '42/smcp,7"text"',
    f'42/smcp,7["client:tool_call",{"[" * 5000}{"]" * 5000}]',
    '450-/smcp,7["client:newer",{}]',
    '459999999-/smcp,7["client:newer",{}]',
]


async def lives_on(wire: Wire) -> None:
    """Another event is answered."""
    assert (await wire.ask('42/smcp,8["no:such_event",{}]', 8))[0]["code"] == 400


@pytest.mark.covers("malformed-frames", "always-an-ack")
@pytest.mark.parametrize("frame", MALFORMED)
async def test_a_malformed_event_is_answered_and_the_connection_lives_on(connect_wire: Any, frame: str) -> None:
    wire = await connect_wire()
    assert (await wire.ask(frame, 7))[0]["code"] in (400, 403)
    await lives_on(wire)


BAD_BINARY = {
    "num out of range": ['451-/smcp,7["client:newer",{"x":{"_placeholder":true,"num":9}}]', b"x"],
    "num not a number": ['451-/smcp,7["client:newer",{"x":{"_placeholder":true,"num":"a"}}]', b"x"],
    "text instead": ['451-/smcp,7["client:newer",{"x":{"_placeholder":true,"num":0}}]', '42/smcp,9["no:such",{}]'],
    "infinity": ['451-/smcp,7["client:newer",{"x":{"_placeholder":true,"num":0},"n":1e400}]', b"x"],
}


@pytest.mark.covers("malformed-frames", "always-an-ack")
@pytest.mark.parametrize("frames", BAD_BINARY.values(), ids=BAD_BINARY)
async def test_a_binary_event_that_is_wrong_is_answered(connect_wire: Any, frames: list[str | bytes]) -> None:
    wire = await connect_wire()
    for frame in frames[:-1]:
        await wire.send(frame)
    assert (await wire.ask(frames[-1], 7))[0]["code"] == 400
    await lives_on(wire)


@pytest.mark.covers("malformed-frames", "always-an-ack")
async def test_an_event_in_place_of_an_attachment_is_answered_too(connect_wire: Any) -> None:
    wire = await connect_wire()
    waits = '451-/smcp,%d["client:newer",{"x":{"_placeholder":true,"num":0}}]'
    for frame in (waits % 7, waits % 8, '42/smcp,9["no:such_event",{}]'):
        await wire.send(frame)
    answers = [await wire.receive() for _ in range(3)]
    assert [answer[:10] for answer in answers] == ["43/smcp,7[", "43/smcp,8[", "43/smcp,9["]


@pytest.mark.covers("limit-message", "always-an-ack")
async def test_an_event_that_is_too_large_is_answered_413_under_any_name(serve: Any, connect_wire: Any) -> None:
    wire = await connect_wire(await serve(limits={"max_message": 4 * KIB}))
    for name in ("no:such_event", "notify:x", "client:x", "server:list_room"):
        assert (await wire.ask(f'42/smcp,7["{name}",{{"x":"{"x" * 5000}"}}]', 7))[0]["code"] == 413


@pytest.mark.covers("malformed-frames", "always-an-ack")
async def test_an_event_with_a_very_long_id_is_answered(connect_wire: Any) -> None:
    wire = await connect_wire()
    number = int("9" * 100)
    assert (await wire.ask(f'42/smcp,{number}["no:such_event",{{}}]', number))[0]["code"] == 400


@pytest.mark.covers("malformed-frames")
async def test_a_member_that_connects_to_an_endless_namespace_lives_on(connect_wire: Any) -> None:
    wire = await connect_wire()
    await wire.send("40/" + "x" * 5000 + ",{}")
    assert '"code":400' in await wire.receive()
    await lives_on(wire)


@pytest.mark.covers("limit-message", "always-an-ack")
async def test_a_binary_event_counts_with_its_attachments(serve: Any, connect_wire: Any) -> None:
    wire = await connect_wire(await serve(limits={"max_message": 4 * KIB}))
    await wire.send('451-/smcp,7["client:newer",{"x":{"_placeholder":true,"num":0}}]')
    assert (await wire.ask(b"x" * 4 * KIB, 7))[0]["code"] == 413


@pytest.mark.covers("limit-message", "calls-one-hurts-no-other")
async def test_a_message_too_large_to_be_passed_on_is_refused(serve: Any, connect: Any, office: str) -> None:
    hub = await serve(limits={"max_message": 4 * KIB})
    agent, computer = await both(connect, hub, office)
    update = {"computer": "laptop", "text": "x" * (4 * KIB - 100)}
    assert (await computer.ask("server:update_newer", update))["code"] == 413
    computer.answers("client:newer", "x" * (4 * KIB - 60))
    assert (await agent.request("client:newer", "laptop"))["code"] == 413


@pytest.mark.covers("limit-unread", "malformed-frames")
@pytest.mark.own_web_server
async def test_a_peer_that_pings_and_does_not_read_is_cut(agent: Peer, connect_wire: Any, office: str) -> None:
    wire = await connect_wire()
    await join_sloth(wire, office)

    async def flood() -> None:
        while True:
            await wire.socket.ping(b"x" * 125)

    flooding = asyncio.create_task(flood())
    assert await agent.hears("notify:leave_office", computer="sloth")
    flooding.cancel()
    await asyncio.gather(flooding, return_exceptions=True)


UNANSWERABLE = [
    "4", "4x", "49/smcp,", "44/smcp,{}", '4{"a":1}', "4[]", "43/smcp,", "43/smcp,0[]", "43/smcp,5[]", "43/smcp,5{}",
    "43/smcp,99999999999[1]", "46/smcp,1[]", "42/other,1[]", "40/other,",
    "6", "2", "42" + "9" * 200, b"\x00\x01", b"",
]  # fmt: skip


@pytest.mark.covers("malformed-frames")
@pytest.mark.parametrize("frame", UNANSWERABLE)
async def test_a_frame_that_cannot_be_answered_is_ignored(connect_wire: Any, frame: str | bytes) -> None:
    wire = await connect_wire()
    await wire.send(frame)
    await lives_on(wire)


@pytest.mark.covers("malformed-frames")
@pytest.mark.parametrize("frame", ["", "x", "9", "b!!!", "é"])
async def test_bytes_that_are_no_engine_io_packet_end_their_own_connection_at_once(
    connect_wire: Any, office: str, agent: Peer, frame: str
) -> None:
    wire = await connect_wire()
    await wire.join("computer", "broken", office)
    await wire.send(frame)
    assert await wire.receive() == ""
    assert await agent.hears("notify:leave_office", computer="broken")


@pytest.mark.covers("malformed-frames", "calls-one-hurts-no-other")
@pytest.mark.parametrize("ack", ["{}", '"x"', "[", "", "[NaN]", "[1", "null"])
async def test_an_ack_of_nonsense_fails_its_own_call(connect_wire: Any, agent: Peer, office: str, ack: str) -> None:
    wire = await connect_wire()
    await wire.join("computer", "broken", office)
    call = asyncio.create_task(agent.call_tool("broken", timeout=30))
    await wire.send(f"43/smcp,{await wire.asked()}{ack}")
    answer = await call
    assert answer["code"] in (400, 500)
    assert answer["isError"] is True
