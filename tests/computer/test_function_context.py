"""Functions of a Computer that report, log, ask and return more than plain values, through a real Server."""

from __future__ import annotations

from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.protocol.questions import Answer
from tests.computer.hosted import Host, progress_in
from tests.computer.supervised import text_of
from tests.peer import Peer
from tests.stage.functions import NAME, computer_with_functions
from tests.stage.owners import AnsweringOwner
from tests.stage.questions import answer, ask, asked, begin, request_in
from tests.waiting import until

pytestmark = pytest.mark.covers("registry-context")


@pytest.fixture
def start(host: Host) -> Any:
    async def begin_hosting(**options: Any) -> Computer:
        computer = computer_with_functions(**options)
        await host(computer)
        return computer

    return begin_hosting


async def test_a_function_reports_logs_and_asks_the_agent(start: Any, agent: Peer) -> None:
    computer: Computer = await start()
    await agent.request("client:set_log_level", "laptop", level="info")
    call = begin(agent, "greet", req_id="c1", questions=True, progress=True)
    question = await asked(agent, "Who are you?")
    assert question["request"]["params"]["requestedSchema"] == NAME
    await answer(agent, question, name="Ada")
    assert text_of(await call) == "hi Ada"
    assert progress_in(agent, "c1") == [1]
    told = await agent.hears("notify:tell_log", mcp_server="python", level="warning", logger="greeter")
    assert told["data"] == "about to ask"
    assert [line.text for line in computer.owner.server_logs.of("python")] == ["about to ask"]


async def test_a_function_asks_the_owner_first(start: Any, agent: Peer) -> None:
    owner = AnsweringOwner(Answer("accept", {"name": "the owner"}))
    await start(on_question=owner)
    assert text_of(await begin(agent, "greet")) == "hi the owner"
    assert [(question.server, question.tool) for question in owner.asked] == [("python", "greet")]


async def test_a_function_learns_that_nobody_can_answer(start: Any, agent: Peer) -> None:
    await start()
    for tool, more in (("greet", {}), ("sign_in", {"questions": True})):
        result = await begin(agent, tool, **more)
        assert result["isError"]
        assert "The caller of this tool cannot be asked" in text_of(result)


async def test_an_agent_that_speaks_mcp_gets_the_questions_as_results(start: Any, agent: Peer) -> None:
    await start()
    first = await ask(agent, "greet")
    assert request_in(first)[1]["params"]["message"] == "Who are you?"
    assert text_of(await ask(agent, "greet", first, content={"name": "Ada"})) == "hi Ada"


async def test_secrets_that_a_function_asks_for_are_masked(start: Any, agent: Peer) -> None:
    owner = AnsweringOwner(Answer("accept", {"password": "correct-horse-battery"}))
    computer: Computer = await start(on_question=owner)
    assert text_of(await begin(agent, "sign_in")) == "it is ***"
    assert computer.history[-1]["success"]


@pytest.mark.covers("calls-extend")
async def test_progress_of_a_function_extends_its_call(start: Any, agent: Peer) -> None:
    await start()
    params = {"pause": 0.2}
    assert text_of(await begin(agent, "steps", timeout=1, extend=True, params=params)) == "done"
    assert (await begin(agent, "steps", timeout=1, params=params))["code"] == 408


async def test_a_cancelled_call_ends_its_question(start: Any, agent: Peer) -> None:
    computer: Computer = await start()
    call = begin(agent, "greet", req_id="c1", questions=True)
    await asked(agent, "Who are you?")
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "c1"})
    await until(lambda: "notify:tell_question_ended" in dict(agent.heard))
    await until(lambda: computer.history[-1]["error"] is not None)
    assert (await call)["code"] == 499


@pytest.mark.covers("registry-content")
async def test_a_function_returns_images_and_whole_results(start: Any, agent: Peer) -> None:
    await start()
    result = await begin(agent, "chart")
    assert [block["type"] for block in result["content"]] == ["text", "image"]
    assert (result["structuredContent"], result["_meta"]["trace"]) == ({"bars": 2}, "7")
