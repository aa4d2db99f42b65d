"""Calls on the wire (WIRE §5): deadlines, duplicates, cancels, and members who leave in the middle."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.peer import Peer

RESULT = {"content": [{"type": "text", "text": "done"}], "isError": False}


class Gate:
    """A computer's answer that waits until it is let through."""

    def __init__(self, answer: Any = RESULT) -> None:
        self._open = asyncio.Event()
        self._answer = answer

    def open(self) -> None:
        self._open.set()

    async def __call__(self, data: Any) -> Any:
        await self._open.wait()
        return self._answer


async def call_and_forget(agent: Peer, computer: Peer) -> None:
    """The agent calls a tool as `r1` and does not wait; the computer has got the call."""
    call = {"agent": "planner", "req_id": "r1", "computer": "laptop", "tool_name": "add", "params": {}, "timeout": 30}
    await agent.client.emit("client:tool_call", call, namespace="/smcp")
    await computer.was_asked("client:tool_call")


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
    agent, computer = await connect(hub), await connect(hub)
    await agent.join("agent", "planner", office)
    await computer.join("computer", "laptop", office)
    for event in ("client:get_tools", "client:newer"):
        computer.answers(event, Gate())
        assert (await agent.request(event, "laptop"))["code"] == 408


@pytest.mark.covers("calls-computer-left")
@pytest.mark.parametrize("how", ["leave", "drop", "switch", "rename"])
async def test_calls_in_flight_fail_when_their_computer_leaves(
    agent: Peer, computer: Peer, office: str, how: str
) -> None:
    computer.answers("client:tool_call", Gate())
    call = asyncio.create_task(agent.call_tool("laptop", timeout=60))
    await computer.was_asked("client:tool_call")
    match how:
        case "leave":
            await computer.ask("server:leave_office", {"office_id": office})
        case "drop":
            await computer.drop()
        case "switch":
            await computer.join("computer", "laptop", f"{office}-2")
        case "rename":
            await computer.join("computer", "desktop", office)
    answer = await call
    assert answer["code"] == 404
    assert answer["message"].startswith("Computer left")


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
async def test_a_req_id_in_flight_is_not_taken_for_another_call(
    agent: Peer, computer: Peer, other: dict[str, Any]
) -> None:
    gate = Gate()
    computer.answers("client:tool_call", gate)
    call = asyncio.create_task(agent.call_tool("laptop", req_id="same"))
    await computer.was_asked("client:tool_call")
    answer = await agent.call_tool("laptop", req_id="same", **other)
    assert answer["code"] == 400
    assert answer["details"]["field"] == "req_id"
    gate.open()
    assert await call == RESULT


@pytest.mark.covers("calls-duplicates")
async def test_equal_req_ids_of_different_agents_or_offices_are_different_calls(
    connect: Any, agent: Peer, computer: Peer, office: str
) -> None:
    other_agent, other_computer = await connect(), await connect()
    await other_agent.join("agent", "planner", f"{office}-2")
    await other_computer.join("computer", "laptop", f"{office}-2")
    first, second = Gate("first"), Gate("second")
    computer.answers("client:tool_call", first)
    other_computer.answers("client:tool_call", second)
    calls = [asyncio.create_task(peer.call_tool("laptop", req_id="same")) for peer in (agent, other_agent)]
    await computer.was_asked("client:tool_call")
    await other_computer.was_asked("client:tool_call")
    first.open()
    second.open()
    assert await asyncio.gather(*calls) == ["first", "second"]


@pytest.mark.covers("calls-duplicates")
async def test_only_tool_calls_are_deduplicated(agent: Peer, computer: Peer) -> None:
    computer.answers("client:get_tools", {"tools": [], "req_id": "same"})
    for _ in range(2):
        await agent.request("client:get_tools", "laptop", req_id="same")
    assert len(computer.asked) == 2


@pytest.mark.covers("002-tool_call_cancel", "002-tool_call_cancel-notice", "calls-cancel")
async def test_a_cancel_is_told_in_the_office_of_the_call_and_the_computer_answers(
    connect: Any, agent: Peer, computer: Peer, office: str
) -> None:
    elsewhere = await connect()
    await agent.join("agent", "planner", f"{office}-2")
    await elsewhere.join("computer", "tablet", f"{office}-2")
    gate = Gate({"isError": True, "content": [], "code": 499, "_meta": {"a2c_cancelled": True}})
    computer.answers("client:tool_call", gate)
    call = asyncio.create_task(agent.call_tool("laptop", req_id="r1", timeout=60))
    await computer.was_asked("client:tool_call")
    cancel = {"agent": "planner", "req_id": "r1", "why": "enough"}
    assert await agent.ask("server:tool_call_cancel", cancel) is None
    assert await computer.hears("notify:tool_call_cancel") == cancel
    gate.open()
    assert (await call)["_meta"] == {"a2c_cancelled": True}
    assert await elsewhere.heard_until_now() == []


@pytest.mark.covers("calls-cancel")
async def test_a_call_whose_computer_ignores_the_cancel_ends(agent: Peer, computer: Peer) -> None:
    computer.answers("client:tool_call", Gate())
    call = asyncio.create_task(agent.call_tool("laptop", req_id="r1", timeout=60))
    await computer.was_asked("client:tool_call")
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "r1"})
    answer = await call
    assert answer["code"] == answer["error"]["code"] == 499
    assert answer["isError"] is True
    assert answer["_meta"] == {"a2c_cancelled": True, "a2c_cancel_reason": "agent_requested"}


@pytest.mark.covers("calls-cancel")
async def test_a_cancel_of_an_unknown_call_is_told_in_every_office_of_the_agent(
    connect: Any, agent: Peer, computer: Peer, office: str
) -> None:
    elsewhere, stranger = await connect(), await connect()
    await agent.join("agent", "planner", f"{office}-2")
    await elsewhere.join("computer", "tablet", f"{office}-2")
    await stranger.join("computer", "stranger", f"{office}-3")
    assert await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "unknown"}) is None
    for peer in (computer, elsewhere):
        assert await peer.hears("notify:tool_call_cancel") == {"agent": "planner", "req_id": "unknown"}
    assert await stranger.heard_until_now() == []


@pytest.mark.covers("calls-cancel", "office-several")
async def test_a_cancel_reaches_every_office_where_its_req_id_runs(
    connect: Any, agent: Peer, computer: Peer, office: str
) -> None:
    elsewhere = await connect()
    await agent.join("agent", "planner", f"{office}-2")
    await elsewhere.join("computer", "tablet", f"{office}-2")
    calls = []
    for peer, name in ((computer, "laptop"), (elsewhere, "tablet")):
        peer.answers("client:tool_call", Gate())
        calls.append(asyncio.create_task(agent.call_tool(name, req_id="same", timeout=30)))
        await peer.was_asked("client:tool_call")
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "same"})
    for peer in (computer, elsewhere):
        assert await peer.hears("notify:tool_call_cancel", req_id="same")
    assert [(await call)["code"] for call in calls] == [499, 499]


@pytest.mark.covers("calls-duplicates", "calls-deadline")
async def test_a_duplicate_has_a_deadline_of_its_own(agent: Peer, computer: Peer) -> None:
    computer.answers("client:tool_call", Gate())
    first = asyncio.create_task(agent.call_tool("laptop", req_id="same", timeout=60))
    await computer.was_asked("client:tool_call")
    assert (await agent.call_tool("laptop", req_id="same", timeout=1))["code"] == 408
    assert not first.done()
    first.cancel()


@pytest.mark.covers("calls-duplicates", "calls-one-hurts-no-other")
@pytest.mark.one_process
async def test_nothing_is_left_behind_when_all_clients_are_gone(serve: Any, connect: Any, office: str) -> None:
    hub = await serve(limits={"keep_time": 0.1})
    computer, gate = await connect(hub), Gate()
    await computer.join("computer", "laptop", office)
    computer.answers("client:tool_call", gate)
    for _ in range(3):
        agent = await connect(hub)
        await agent.join("agent", "planner", office)
        call = asyncio.create_task(agent.call_tool("laptop", req_id="same", timeout=30))
        await computer.was_asked("client:tool_call")
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
    held = (
        calls,
        calls._by_key,
        calls.by_connection,
        calls._deadlines,
        calls._unheard,
        connections,
        connections._offices,
    )
    held = (*held, server._seating._absent, directory._seats, directory._offices, directory._holders)
    async with asyncio.timeout(30):
        while any(map(len, held)):  # noqa: ASYNC110, there is nothing to wait for but that nothing is left
            await asyncio.sleep(0.02)


@pytest.mark.covers("calls-cancel", "office-isolation")
async def test_an_agent_cannot_cancel_the_call_of_another(
    connect: Any, agent: Peer, computer: Peer, office: str
) -> None:
    gate = Gate()
    computer.answers("client:tool_call", gate)
    call = asyncio.create_task(agent.call_tool("laptop", req_id="r1", timeout=60))
    await computer.was_asked("client:tool_call")
    stranger = await connect()
    await stranger.join("agent", "planner", f"{office}-2")
    await stranger.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "r1"})
    assert await computer.heard_until_now() == []
    gate.open()
    assert await call == RESULT


@pytest.mark.covers("calls-kept-answer")
async def test_an_answer_whose_agent_was_gone_is_kept_for_its_return(
    connect: Any, agent: Peer, computer: Peer, office: str
) -> None:
    gate = Gate()
    computer.answers("client:tool_call", gate)
    await call_and_forget(agent, computer)
    await agent.drop()
    await computer.hears("notify:leave_office", agent="planner")
    gate.open()
    await computer.heard_until_now()
    back = await connect()
    await back.join("agent", "planner", office)
    assert await back.call_tool("laptop", req_id="r1") == RESULT
    assert len(computer.asked) == 1


@pytest.mark.covers("calls-kept-answer", "office-isolation")
async def test_nothing_is_kept_for_an_agent_that_has_left_for_good(
    connect: Any, agent: Peer, computer: Peer, office: str
) -> None:
    gate = Gate()
    computer.answers("client:tool_call", gate)
    await call_and_forget(agent, computer)
    await agent.ask("server:leave_office", {"office_id": office})
    gate.open()
    successor = await connect()
    await successor.join("agent", "planner", office)
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
