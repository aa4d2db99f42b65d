"""Prompts and resources whose MCP server asks first: answered by an agent that speaks MCP, by the owner, by nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.protocol.questions import Answer
from tests.computer.libraries import Lend, Library, both, library, refused
from tests.peer import Peer
from tests.stage.owners import AnsweringOwner
from tests.waiting import until

ASKING, SIGNING, SEVERAL = (
    [("read_resource", {"uri": f"{name}:x"}), ("get_prompt", {"name": name})] for name in ("ask", "sign", "several")
)
RESPONSES: dict[str, dict[str, Any]] = {
    "sampling/createMessage": {"role": "assistant", "content": {"type": "text", "text": "there"}, "model": "m1"},
    "roots/list": {"roots": [{"uri": "file:///home"}]},
    "elicitation/create": {"action": "accept", "content": {"city": "PEK"}},
}
PASSWORD = "correct-horse-battery-staple"


def text_in(answer: dict[str, Any]) -> str:
    assert "error" not in answer, answer
    found = answer["contents"][0] if "contents" in answer else answer["messages"][0]["content"]
    return str(found["text"])


async def first_and_next(
    one: Library, event: str, about: dict[str, Any], response: dict[str, Any], **more: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The result that asks, and the answer to the request that answers it."""
    first = await one.ask(event, **about, questions="result", **more)
    assert first["resultType"] == "input_required", first
    given = {"input_responses": dict.fromkeys(first["inputRequests"], response), "request_state": first["requestState"]}
    return first, await one.ask(event, **about, questions="result", **given, **more)


@both
@pytest.mark.covers("9-read_resource", "9-get_prompt", "questions-result")
async def test_an_agent_that_speaks_mcp_gets_the_question_as_a_result_and_asks_again(
    lend: Lend, agent: Peer, era: str
) -> None:
    one = await lend(era)
    for event, about in ASKING:
        accepted = {"action": "accept", "content": {"city": "PEK"}}
        first, last = await first_and_next(one, event, about, accepted)
        ((_, request),) = first["inputRequests"].items()
        assert (request["method"], request["params"]["message"]) == ("elicitation/create", "Which city?")
        assert first.keys() == {"resultType", "inputRequests", "requestState", "req_id"}
        assert text_in(last) == "PEK"
        assert text_in((await first_and_next(one, event, about, {"action": "decline"}))[1]) == "nobody: decline"
        none = await one.ask(event, **about, questions="result", client_capabilities={})
        assert "resultType" in none if era == "newer" else text_in(none) == "nobody: cancel"
        wrong = {"request_state": first["requestState"] if era == "older" else "wrong"}
        again = await one.ask(event, **about, questions="result", input_responses={"q": {}}, **wrong)
        assert refused(again).code == (410 if era == "older" else 400)
    assert "notify:tell_question" not in dict(await agent.heard_until_now())


@both
@pytest.mark.covers("9-read_resource", "9-get_prompt", "questions-result")
async def test_models_roots_and_people_are_asked_this_way_alone_if_the_agent_declares_them(
    lend: Lend, era: str
) -> None:
    declared = {"sampling": {}, "roots": {}, "elicitation": {"form": {}}}
    asking = {"questions": "result", "client_capabilities": declared}
    one = await lend(era)
    for event, about in SEVERAL:
        answer = await one.ask(event, **about, **asking)
        methods = []
        while "inputRequests" in answer:
            assert "requestState" in answer
            asked = {name: each["method"] for name, each in answer["inputRequests"].items()}
            methods += asked.values()
            given = {"input_responses": {name: RESPONSES[method] for name, method in asked.items()}}
            answer = await one.ask(event, **about, **asking, **given, request_state=answer["requestState"])
        assert text_in(answer) == "m1 ['file:///home'] PEK"
        assert sorted(methods) == sorted(RESPONSES)
        unasked = await one.ask(event, **about)
        if era == "older":
            assert text_in(unasked) == "None [] nobody: cancel"
        else:
            assert "asked for sampling/createMessage: nobody can answer here" in refused(unasked).message


@both
@pytest.mark.covers("9-read_resource", "9-get_prompt", "questions-who", "questions-nobody")
async def test_without_that_the_owner_is_asked_and_else_the_server_hears_that_nobody_can_answer(
    lend: Lend, agent: Peer, era: str
) -> None:
    owner = AnsweringOwner(*[Answer("accept", {"city": "BER"})] * 2, None)
    one = await lend(era, on_question=owner)
    for event, about in ASKING:
        assert text_in(await one.ask(event, **about)) == "BER"
    tools = ("resource ask:x", "prompt ask")
    assert [(each.server, each.tool, each.agent) for each in owner.asked] == [
        ("the library", tool, "planner") for tool in tools
    ]
    for event, about in ASKING:
        assert text_in(await one.ask(event, **about)) == "nobody: cancel"


@both
@pytest.mark.covers("9-read_resource", "questions-nobody", "questions-private", "secrets-masked")
async def test_without_an_owner_nobody_answers_and_what_is_private_is_never_in_a_result(
    lend: Lend, tmp_path: Path, era: str
) -> None:
    one = await lend(era)
    for event, about in (*ASKING, *SIGNING):
        assert text_in(await one.ask(event, **about)) == "nobody: cancel"
    for event, about in SIGNING:
        assert text_in(await one.ask(event, **about, questions="result")) == "nobody: cancel"
    config = library(era, tmp_path, questions_for_agents=["secret"])
    await one.computer.put_server(config)
    await until(lambda: one.computer.status()["the library"].state == "ready")
    for event, about in SIGNING:
        given = {"action": "accept", "content": {"password": PASSWORD}}
        _, last = await first_and_next(one, event, about, given)
        assert text_in(last) == "***"
        assert PASSWORD not in json.dumps(last)


@pytest.mark.covers("9-read_resource", "questions-result", "calls-deadline")
async def test_a_parked_request_ends_with_its_deadline_or_when_its_agent_leaves(
    lend: Lend, agent: Peer, office: str
) -> None:
    one = await lend("older")
    asking = {"uri": "ask:x", "questions": "result"}
    first = await one.ask("read_resource", **asking, timeout=1)
    given = {"input_responses": {key: {"action": "decline"} for key in first["inputRequests"]}}
    await until(lambda: "cancelled" in one.notes())
    late = await one.ask("read_resource", **asking, **given, request_state=first["requestState"])
    assert refused(late).code == 410
    second = await one.ask("read_resource", **asking)
    state = {"request_state": second["requestState"]}
    other = await one.ask("read_resource", uri="ask:y", questions="result", **given, **state)
    assert refused(other).details["field"] == "request_state"
    await agent.ask("server:leave_office", {"office_id": office})
    await agent.join("agent", "planner", office)
    gone = await one.ask("read_resource", **asking, **given, **state)
    assert refused(gone).code == 410
