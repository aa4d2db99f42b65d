"""Whether the error of a tool call says that its tool has run (WIRE §5), and which calls may be sent again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conftest import Seat
from tests.peer import Peer
from tests.stage.calls import MINE, RESULT, Gate, both, call_and_forget, sessions

pytestmark = pytest.mark.covers("calls-outcome")


def told(answer: Any) -> tuple[int, str]:
    """The code and the outcome, which both copies of the error have to say."""
    assert answer["details"] == answer["error"]["details"]
    return answer["code"], answer["details"]["outcome"]


async def test_a_call_that_never_reaches_a_computer_has_not_run(serve: Any, connect: Any, office: str) -> None:
    hub = await serve(limits={"calls_per_computer": 1, "max_message": 4096})
    agent, computer = await both(connect, hub, office)
    assert told(await agent.call_tool("nowhere")) == (404, "not_run")
    assert told(await agent.call_tool("laptop", timeout=0)) == (400, "not_run")
    assert told(await agent.call_tool("laptop", params={"text": "x" * 5000})) == (413, "not_run")
    assert told(await agent.call_tool("laptop", office_id="elsewhere")) == (403, "not_run")
    assert told(await computer.call_tool("laptop")) == (403, "not_run")
    await call_and_forget(agent, computer, answer=Gate())
    assert told(await agent.call_tool("laptop")) == (429, "not_run")
    assert len(computer.asked) == 1


@pytest.mark.covers("calls-duplicates")
async def test_a_repetition_over_the_limit_says_nothing_of_its_call(serve: Any, connect: Any, office: str) -> None:
    hub = await serve(limits={"calls_per_agent": 1})
    agent, computer = await both(connect, hub, office)
    await call_and_forget(agent, computer, answer=Gate())
    assert told(await agent.call_tool("laptop", req_id="r1")) == (429, "unknown")
    assert told(await agent.call_tool("laptop", req_id="r2")) == (429, "not_run")


@pytest.mark.covers("calls-kept-answer")
async def test_a_repetition_over_the_limit_says_nothing_of_a_kept_answer(
    serve: Any, connect: Any, seat: Seat, office: str
) -> None:
    hub, gate = await serve(limits={"calls_per_agent": 1}), Gate()
    agent, computer = await both(connect, hub, office)
    await call_and_forget(agent, computer, answer=gate)
    await agent.drop()
    await computer.hears("notify:leave_office", agent="planner")
    gate.open()
    await computer.heard_until_now()
    back = await seat("agent", "planner", office, hub=hub)
    computer.answers("client:tool_call", Gate())
    running = asyncio.create_task(back.call_tool("laptop", req_id="r2"))
    await computer.was_asked("client:tool_call", 2)
    assert told(await back.call_tool("laptop", req_id="r1")) == (429, "unknown")
    running.cancel()


@pytest.mark.covers("calls-deadline")
async def test_a_call_that_was_written_and_not_answered_may_have_run(agent: Peer, computer: Peer) -> None:
    computer.answers("client:tool_call", Gate())
    assert told(await agent.call_tool("laptop", timeout=1)) == (408, "unknown")
    call = asyncio.create_task(agent.call_tool("laptop", timeout=30, req_id="r2"))
    await computer.was_asked("client:tool_call", 2)
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "r2"})
    assert told(await call) == (499, "unknown")
    call = asyncio.create_task(agent.call_tool("laptop", timeout=30))
    await computer.was_asked("client:tool_call", 3)
    await computer.close()
    assert told(await call) == (404, "unknown")


@pytest.mark.covers("calls-resume")
@pytest.mark.one_process  # of two nodes, the one that asked the other does not know what that has done
async def test_a_call_for_a_lost_computer_has_not_run(serve: Any, seat: Seat, connect_wire: Any, office: str) -> None:
    hub = await serve(limits={"resume_grace": 0.5})
    agent = await seat("agent", "planner", office, hub=hub)
    wire = await connect_wire(hub)
    await wire.join("computer", "laptop", office, instance=MINE)
    await wire.send("1")
    assert await wire.receive() == "", "the Server has seen it go"
    assert told(await agent.call_tool("laptop", timeout=20)) == (404, "not_run")


async def test_an_outcome_that_the_computer_reports_is_passed_on(agent: Peer, computer: Peer) -> None:
    error = {"code": 410, "message": "begun before", "details": {"outcome": "done"}}
    computer.answers("client:tool_call", {"error": error, **error, "isError": True, "content": []})
    assert told(await agent.call_tool("laptop")) == (410, "done")


async def test_after_an_unreadable_answer_the_tool_may_have_run(agent: Peer, connect_wire: Any, office: str) -> None:
    wire = await connect_wire()
    await wire.join("computer", "laptop", office)
    call = asyncio.create_task(agent.call_tool("laptop", timeout=20))
    await wire.send(f"43/smcp,{await wire.asked()}[NaN]")
    assert told(await call) == (400, "unknown")


@pytest.mark.covers("calls-dedup-shown")
async def test_list_room_shows_which_computers_know_a_call_sent_again(agent: Peer, seat: Seat, office: str) -> None:
    await seat("computer", "ours", office, instance=MINE)
    await seat("computer", "other", office)
    shown = {each["name"]: each.get("dedup") for each in await sessions(agent)}
    assert shown == {"planner": None, "ours": True, "other": None}


@pytest.mark.covers("calls-sent-before")
async def test_a_call_sent_before_goes_only_to_a_computer_that_would_know(agent: Peer, seat: Seat, office: str) -> None:
    ours = await seat("computer", "ours", office, instance=MINE)
    other = await seat("computer", "other", office)
    for computer in (ours, other):
        computer.answers("client:tool_call", RESULT)
    assert await agent.call_tool("ours", sent_before=True) == RESULT
    assert told(await agent.call_tool("other", sent_before=True)) == (410, "unknown")
    assert await agent.call_tool("other", sent_before=False) == RESULT
    assert (len(ours.asked), len(other.asked)) == (1, 1)


@pytest.mark.covers("calls-sent-before", "calls-duplicates")
async def test_a_call_sent_before_that_still_runs_is_joined(agent: Peer, computer: Peer) -> None:
    gate = Gate()
    await call_and_forget(agent, computer, answer=gate)
    again = asyncio.create_task(agent.call_tool("laptop", timeout=20, req_id="r1", sent_before=True))
    await agent.heard_until_now()
    gate.open()
    assert await again == RESULT
    assert len(computer.asked) == 1
