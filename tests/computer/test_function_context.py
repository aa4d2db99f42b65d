"""Functions of a Computer that report, log, ask and return more than plain values, through a real Server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.protocol.questions import Answer, Question
from a2c_smcp.registry import AsyncToolContext, Image, ToolContext, ToolResult
from tests.computer.hosted import hosted
from tests.computer.test_live_calls import progress_in
from tests.computer.test_questions import answer, asked, begin
from tests.peer import Peer
from tests.waiting import until

pytestmark = pytest.mark.covers("registry-context")

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
PASSWORD = {"type": "object", "properties": {"password": {"type": "string"}}, "required": ["password"]}


def computer_with_functions(**options: Any) -> Computer:
    computer = Computer("laptop", **options)

    @computer.tool(auto_apply=True)
    def greet(context: ToolContext) -> str:
        context.progress(1, 2)
        context.log("warning", "about to ask", logger="greeter")
        found = context.ask("Who are you?", NAME)
        return f"hi {(found.content or {}).get('name', found.action)}"

    @computer.tool(auto_apply=True)
    async def steps(pause: float, context: AsyncToolContext) -> str:
        for step in range(8):
            await context.progress(step)
            await asyncio.sleep(pause)
        return "done"

    @computer.tool(auto_apply=True)
    async def sign_in(context: AsyncToolContext) -> str:
        found = await context.ask("Your password?", PASSWORD)
        return f"it is {(found.content or {}).get('password')}"

    @computer.tool(auto_apply=True)
    def chart() -> ToolResult:
        return ToolResult(["see", Image(b"png")], {"bars": 2}, meta={"trace": "7"})

    return computer


@pytest.fixture
async def start(shared_hub: Any, office: str, tmp_path: Path) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:

        async def begin_hosting(**options: Any) -> Computer:
            computer = computer_with_functions(**options)
            await stack.enter_async_context(hosted(computer, shared_hub.url, office, tmp_path))
            return computer

        yield begin_hosting


def text_of(result: dict[str, Any]) -> str:
    text: str = result["content"][0]["text"]
    return text


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
    assert [line.text for line in computer.server_logs.of("python")] == ["about to ask"]


async def test_a_function_asks_the_owner_first(start: Any, agent: Peer) -> None:
    async def owner(question: Question) -> Answer:
        return Answer("accept", {"name": f"the owner, of {question.server} {question.tool}"})

    await start(on_question=owner)
    assert text_of(await begin(agent, "greet")) == "hi the owner, of python greet"


async def test_a_function_learns_that_nobody_can_answer(start: Any, agent: Peer) -> None:
    await start()
    for tool, more in (("greet", {}), ("sign_in", {"questions": True})):
        result = await begin(agent, tool, **more)
        assert result["isError"]
        assert "The caller of this tool cannot be asked" in text_of(result)


async def test_an_agent_that_speaks_mcp_gets_the_questions_as_results(start: Any, agent: Peer) -> None:
    await start()
    first = await begin(agent, "greet", questions="result", req_id="c1")
    assert first["resultType"] == "input_required"
    ((key, request),) = first["inputRequests"].items()
    assert request["params"]["message"] == "Who are you?"
    responses = {key: {"action": "accept", "content": {"name": "Ada"}}}
    state = first["requestState"]
    last = await begin(agent, "greet", questions="result", req_id="c2", input_responses=responses, request_state=state)
    assert text_of(last) == "hi Ada"


async def test_secrets_that_a_function_asks_for_are_masked(start: Any, agent: Peer) -> None:
    async def owner(question: Question) -> Answer:
        return Answer("accept", {"password": "correct-horse-battery"})

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
