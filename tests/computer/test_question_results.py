"""`questions: "result"`: an agent that speaks MCP gets an `InputRequiredResult` and asks again under a new req_id."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from a2c_smcp.computer.approval import Caller
from a2c_smcp.protocol.questions import Answer, Question
from tests.computer.test_questions import (
    NEWER,
    OLDER,
    SECRET,
    Start,
    begin,
    booking,
    both,
    said,
    start,
)
from tests.peer import Peer
from tests.waiting import until

__all__ = ["start"]

pytestmark = pytest.mark.covers("questions-result")
SAMPLED = {"role": "assistant", "content": {"type": "text", "text": "fine"}, "model": "m1"}
CAPABILITIES = {"sampling": {}, "elicitation": {"form": {}}}


def request_in(result: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The only input request of a result, with its key."""
    assert result["resultType"] == "input_required", result
    ((key, request),) = result["inputRequests"].items()
    return key, request


def ask(agent: Peer, tool: str = "book", before: dict[str, Any] | None = None, **more: Any) -> asyncio.Task[Any]:
    """A request, which answers the one input request of the result before with `content` or `response`."""
    if before is not None:
        content = more.pop("content", None)
        response = more.pop("response", None) or {"action": "accept", "content": content}
        more["input_responses"] = {request_in(before)[0]: response}
        more["request_state"] = before["requestState"]
    return begin(agent, tool, questions="result", **more)


@both
async def test_two_questions_become_two_results_and_the_tool_runs_once(start: Start, agent: Peer, file: str) -> None:
    asking = await start(file)
    first = await ask(agent, req_id="c1")
    assert request_in(first)[1]["method"] == "elicitation/create"
    assert request_in(first)[1]["params"]["message"] == "Which city?"
    assert "isError" not in first
    second = await ask(agent, before=first, content={"city": "PEK"}, req_id="c2")
    assert request_in(second)[1]["params"]["message"].startswith("How many seats")
    last = await ask(agent, before=second, content={"count": 3}, req_id="c3")
    assert booking(file, last) == ("PEK", 3)
    assert asking.notes == ["book"]
    assert await ask(agent, before=first, content={"city": "PEK"}, req_id="c2") == second
    changed = await ask(agent, before=first, content={"city": "BER"}, req_id="c2")
    assert (changed["code"], changed["details"]["field"]) == (400, "req_id")
    assert asking.notes == ["book"]
    assert "notify:tell_question" not in dict(await agent.heard_until_now())


@both
async def test_sampling_travels_this_way_if_the_agent_declares_it(start: Start, agent: Peer, file: str) -> None:
    asking = await start(file)
    refused = await ask(agent, "sample")
    assert "input_required" not in json.dumps(refused)
    first = await ask(agent, "sample", client_capabilities=CAPABILITIES)
    assert request_in(first)[1]["method"] == "sampling/createMessage"
    last = await ask(agent, "sample", first, response=SAMPLED, client_capabilities=CAPABILITIES)
    assert "m1" in last["content"][0]["text"]
    assert asking.notes.count("sample") == (2 if file == OLDER else 1)


async def test_a_parked_run_ends_at_its_deadline_and_its_state_is_gone(start: Start, agent: Peer) -> None:
    asking = await start()
    first = await ask(agent, timeout=2)
    await until(lambda: asking.notes == ["book", "cancelled"])
    late = await ask(agent, before=first, content={"city": "PEK"})
    assert (late["code"], late["details"]["outcome"]) == (410, "not_run")


async def test_a_cancel_of_an_answered_request_ends_the_run_that_waits(start: Start, agent: Peer) -> None:
    asking = await start()
    first = await ask(agent, req_id="c1")
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "c1"})
    await until(lambda: asking.notes == ["book", "cancelled"])
    assert (await ask(agent, before=first, content={"city": "PEK"}))["code"] == 410


async def test_a_cancel_of_the_request_that_follows_ends_the_run(start: Start, agent: Peer) -> None:
    asking = await start()
    call = begin(agent, "chat", req_id="c1", questions="result", params={"pause": 30})
    await until(lambda: asking.notes == ["chat"])
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "c1"})
    assert (await call)["code"] == 499
    await until(lambda: asking.notes == ["chat", "cancelled"])


async def test_a_run_ends_when_its_agent_leaves(start: Start, agent: Peer, office: str) -> None:
    asking = await start()
    await ask(agent)
    await agent.ask("server:leave_office", {"office_id": office})
    await until(lambda: asking.notes == ["book", "cancelled"])


async def test_a_state_is_for_its_agent_tool_and_arguments(start: Start, agent: Peer, office: str) -> None:
    asking = await start()
    first = await ask(agent)
    other = await ask(agent, "sign", first, content={})
    assert (other["code"], other["details"]["field"]) == (400, "request_state")
    missing = await begin(agent, questions="result", request_state=first["requestState"])
    assert (missing["code"], missing["details"]["field"]) == (400, "input_responses")
    from a2c_smcp.computer.calls.incoming import CallOptions

    options = CallOptions(questions="result", request_state=first["requestState"], input_responses={})
    stranger = await asking.computer.execute_tool(Caller(office, "x"), "r", "book", {}, 5, options=options)
    assert stranger["code"] == 410
    second = await ask(agent, before=first, content={"city": "BER"})
    assert (await ask(agent, before=first, content={"city": "BER"}))["code"] == 410
    assert booking(OLDER, await ask(agent, before=second, content={"count": 1})) == ("BER", 1)
    assert asking.notes == ["book"]


async def test_parked_runs_are_bounded_and_what_is_over_hears_that_nobody_can_answer(start: Start, agent: Peer) -> None:
    asking = await start()
    results = [await ask(agent) for _ in range(9)]
    assert [each.get("resultType") for each in results] == ["input_required"] * 8 + [None]
    assert said(results[-1]) == {"where": {"action": "cancel"}}
    assert asking.notes == ["book"] * 9


@both
async def test_what_is_private_is_asked_of_the_owner_and_never_in_a_result(
    start: Start, agent: Peer, file: str
) -> None:
    seen: list[str] = []

    def on_question(question: Question) -> Answer:
        seen.append(question.message)
        return Answer("accept", {"password": SECRET})

    await start(file, on_question=on_question)
    result = await ask(agent, "sign")
    assert "signed with ***" in result["content"][0]["text"]
    assert seen == ["Your password, please"]


@both
async def test_without_an_owner_what_is_private_is_cancelled(start: Start, agent: Peer, file: str) -> None:
    await start(file)
    result = await ask(agent, "sign")
    assert "resultType" not in result
    assert result.get("isError") or '"action": "cancel"' in result["content"][0]["text"]


@pytest.mark.covers("secrets-masked")
@both
async def test_an_agents_answer_to_a_password_question_is_masked(start: Start, agent: Peer, file: str) -> None:
    await start(file, for_agents=["secret"])
    first = await ask(agent, "sign")
    last = await ask(agent, "sign", first, content={"password": SECRET})
    assert "signed with ***" in last["content"][0]["text"]
    assert SECRET not in json.dumps(last)


async def test_progress_of_a_run_is_told_to_the_request_that_follows_it(start: Start, agent: Peer) -> None:
    await start(for_agents=["secret"])
    first = await ask(agent, "sign", req_id="c1", progress=True)
    await ask(agent, "sign", first, content={"password": SECRET}, req_id="c2", progress=True)
    assert (await agent.hears("notify:tell_progress"))["req_id"] == "c2"
    assert NEWER
