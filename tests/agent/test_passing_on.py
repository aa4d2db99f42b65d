"""An agent's registry that is served to an MCP client: nothing is lost on the way, and the person there is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from a2c_smcp.agent import Answer, Question
from a2c_smcp.computer.computer import Computer
from a2c_smcp.registry import MCPRegistry
from tests.computer.hosted import ready
from tests.computer.libraries import both, library
from tests.computer.supervised import quick
from tests.stage.agent import Twin
from tests.stage.bridge import Heard
from tests.stage.functions import computer_with_functions
from tests.stage.guarded_computer import Guarded
from tests.stage.served import served
from tests.stage.texts import text_of
from tests.waiting import until


@pytest.fixture
async def talker(hosts: Any, planner: Twin) -> AsyncIterator[MCPRegistry]:
    """The registry of an agent that knows the functions of a computer."""
    async with hosts(computer_with_functions()):
        await until(lambda: "greet" in planner.registry)
        yield planner.registry


@pytest.mark.covers("registry-content", "registry-context")
async def test_results_and_questions_of_computers_pass_an_agents_registry(talker: MCPRegistry) -> None:
    assert await talker.acall("chart", {}) == {"bars": 2}
    for mode in ("legacy", "auto"):
        async with served(talker, mode, elicitation_callback=Heard().answer) as client:
            chart = await client.call_tool("chart", {})
            assert [block.type for block in chart.content] == ["text", "image"]
            assert chart.structured_content == {"bars": 2}
            assert chart.meta["trace"] == "7"
            assert text_of(await client.call_tool("greet", {})) == "hi Ada, asked 'Who are you?'"


@pytest.mark.covers("registry-context")
async def test_the_caller_of_an_agents_registry_answers(talker: MCPRegistry) -> None:
    async def answer(question: Question) -> Answer:
        return Answer("accept", {"name": question.message})

    assert await talker.acall("greet", {}, on_question=answer) == "hi Who are you?"
    assert await asyncio.to_thread(talker.call, "greet", {}, on_question=lambda question: {"name": "Bob"}) == "hi Bob"


@both
@pytest.mark.covers("agent-registry-reads", "registry-content", "questions-result")
async def test_what_there_is_to_read_passes_an_agents_registry_whole_with_its_questions_and_errors(
    hosts: Any, planner: Twin, tmp_path: Path, era: str
) -> None:
    computer = Computer("laptop", policy=quick())
    computer.add_server(library(era, tmp_path, "talkative"))
    async with hosts(computer):
        await ready(computer, "the library")
        await until(lambda: planner.registry.prompts() and "touch" in planner.registry)
        for mode in ("legacy", "auto"):
            in_beijing = Heard(answers=[{"city": "PEK"}, {"city": "PEK"}])
            async with served(planner.registry, mode, elicitation_callback=in_beijing.answer) as client:
                await nothing_is_lost(client)
                assert (await client.get_prompt("ask")).messages[0].content.text == "PEK"
                assert text_of(await client.read_resource("ask:x")) == "PEK"
            async with served(planner.registry, mode) as silent:
                assert text_of(await silent.read_resource("ask:x")) == "nobody: cancel"


async def nothing_is_lost(client: Client) -> None:
    notes = (await client.list_resources()).resources[0]
    assert (notes.title, notes.size, notes.meta) == ("Notes", 5, {"own": {"deep": 1}})
    template = (await client.list_resource_templates()).resource_templates[0]
    prompt = (await client.list_prompts()).prompts[0]
    tool = next(each for each in (await client.list_tools()).tools if each.name == "touch")
    for each in (notes, template, prompt, tool):
        assert each.icons
        assert each.icons[0].src == "https://example.org/icon.png"
    assert (template.title, prompt.title, tool.title) == ("Files", "A greeting", "A tool")
    assert tool.meta
    assert (tool.meta["ui"], tool.meta["n"]) == ({"resourceUri": "ui://library/view"}, 1)
    with pytest.raises(MCPError) as refused:
        await client.read_resource("error:-32050")
    error = refused.value.error
    assert (error.code, error.message, error.data) == (-32050, "it is ***", {"token": "***"})


eras = pytest.mark.parametrize("mode", ["legacy", "auto"])
Action = Literal["accept", "decline", "cancel"]


class Person:
    """Answers at the MCP client."""

    def __init__(self, action: Action, **content: Any) -> None:
        self.asked: list[str] = []
        self._answer = types.ElicitResult(action=action, content=content or None)

    async def __call__(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append(params.message)
        return self._answer


@pytest.fixture
def at_the_client(hosts: Any, planning: Any) -> Callable[..., AbstractAsyncContextManager[Client]]:
    """An MCP client, with a person at it, whose tools are those of the computer, through an agent."""

    @asynccontextmanager
    async def begin(guarded: Guarded, person: Person | None, mode: Any) -> AsyncIterator[Client]:
        info = types.Implementation(name="claude-desktop", version="1.2")
        async with hosts(guarded.computer), planning(name="bridge") as agent:
            await until(lambda: "wipe" in agent.registry)
            async with served(agent.registry, mode, client_info=info, elicitation_callback=person) as client:
                yield client

    return begin


@pytest.mark.covers("approval-by-client", "client-names")
@eras
async def test_the_person_at_the_mcp_client_says_yes(mode: Any, at_the_client: Any) -> None:
    guarded, person = Guarded(), Person("accept", approve="yes")
    async with at_the_client(guarded, person, mode) as client:
        result = await client.call_tool("wipe", {"path": "/tmp/a"})
    assert not result.is_error
    assert guarded.runs == ["/tmp/a"]
    assert [asked.splitlines()[0] for asked in person.asked] == [
        "bridge (claude-desktop) wants to run wipe of the MCP server python on the computer laptop, with"
    ]
    assert [each["caller"] for each in guarded.computer.history] == ["bridge (claude-desktop)"]


@pytest.mark.covers("approval-by-client", "client-names")
@eras
@pytest.mark.parametrize("person", [Person("accept", approve="no"), Person("decline"), None], ids=["no", "-", "nobody"])
async def test_nothing_runs_without_a_yes_of_the_person(mode: Any, at_the_client: Any, person: Person | None) -> None:
    guarded = Guarded()
    async with at_the_client(guarded, person, mode) as client:
        result = await client.call_tool("wipe", {"path": "/tmp/a"})
        assert result.is_error
        assert "Approval refused" in str(result.content)
    assert guarded.runs == []
