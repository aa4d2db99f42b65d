"""`questions: "result"`: an agent that speaks MCP gets an `InputRequiredResult` and asks again under a new req_id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.calls.incoming import CallOptions
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.protocol.questions import Answer
from tests.computer.hosted import hosted, ready
from tests.computer.supervised import quick
from tests.peer import Peer
from tests.stage.owners import AnsweringOwner
from tests.stage.questions import OLDER, SECRET, Start, ask, begin, booking, both, over_http, request_in
from tests.waiting import until

pytestmark = pytest.mark.covers("questions-result")
SAMPLED = {"role": "assistant", "content": {"type": "text", "text": "fine"}, "model": "m1"}
CAPABILITIES = {"sampling": {}, "elicitation": {"form": {}}}


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
    assert booking(last) == ("PEK", 3)
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


@pytest.mark.parametrize("event", ["tool_call_cancel", "leave_office"])
async def test_a_run_that_waits_ends_with_a_cancel_or_when_its_agent_leaves(
    start: Start, agent: Peer, office: str, event: str
) -> None:
    asking = await start()
    first = await ask(agent, req_id="c1")
    await agent.ask(f"server:{event}", {"agent": "planner", "req_id": "c1", "office_id": office})
    await until(lambda: asking.notes == ["book", "cancelled"])
    if event == "leave_office":
        await agent.join("agent", "planner", office)
    assert (await ask(agent, before=first, content={"city": "PEK"}))["code"] == 410


async def test_a_cancel_of_the_request_that_follows_ends_the_run(start: Start, agent: Peer) -> None:
    asking = await start()
    call = begin(agent, "chat", req_id="c1", questions="result", params={"pause": 30})
    await until(lambda: asking.notes == ["chat"])
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "c1"})
    assert (await call)["code"] == 499
    await until(lambda: asking.notes == ["chat", "cancelled"])


async def test_a_state_is_for_its_agent_tool_and_arguments(start: Start, agent: Peer, office: str) -> None:
    asking = await start()
    first = await ask(agent)
    other = await ask(agent, "sign", first, content={})
    assert (other["code"], other["details"]["field"]) == (400, "request_state")
    missing = await begin(agent, questions="result", request_state=first["requestState"])
    assert (missing["code"], missing["details"]["field"]) == (400, "input_responses")
    options = CallOptions(questions="result", request_state=first["requestState"], input_responses={})
    stranger = await asking.computer.execute_tool(Caller(office, "x"), "r", "book", {}, 5, options=options)
    assert stranger["code"] == 410
    second = await ask(agent, before=first, content={"city": "BER"})
    assert (await ask(agent, before=first, content={"city": "BER"}))["code"] == 410
    assert booking(await ask(agent, before=second, content={"count": 1})) == ("BER", 1)
    assert asking.notes == ["book"]


async def test_parked_runs_are_bounded_and_what_is_over_hears_that_nobody_can_answer(
    shared_hub: Any, office: str, agent: Peer, tmp_path: Path
) -> None:
    computer = Computer("laptop", policy=quick())
    with over_http(tmp_path, default_tool_meta={"auto_apply": True}) as config:
        computer.add_server(config)
        async with hosted(computer, shared_hub.url, office, tmp_path):
            await ready(computer, "asking")
            results = [await ask(agent, "greet", params={"name": "Ada"}) for _ in range(9)]
    assert [each.get("resultType") for each in results] == ["input_required"] * 8 + [None]
    assert "elicitation was cancel" in results[-1]["content"][0]["text"]


@both
async def test_what_is_private_is_asked_of_the_owner_and_never_in_a_result(
    start: Start, agent: Peer, file: str
) -> None:
    owner = AnsweringOwner(Answer("accept", {"password": SECRET}))
    await start(file, on_question=owner)
    result = await ask(agent, "sign")
    assert "signed with ***" in result["content"][0]["text"]
    assert [each.message for each in owner.asked] == ["Your password, please"]


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
