"""An agent's registry that is served to an MCP client: nothing of a computer is lost on the way, and it asks back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from a2c_smcp.agent import Answer, AsyncSMCPAgentClient, Question
from a2c_smcp.computer.computer import Computer
from a2c_smcp.registry import MCPRegistry
from a2c_smcp.registry.remote.serving import _ServedRegistry
from tests.computer.hosted import PATIENCE, hosted, ready
from tests.computer.libraries import both, library
from tests.computer.supervised import quick
from tests.computer.test_function_context import computer_with_functions
from tests.waiting import until


@asynccontextmanager
async def planner(url: str, office: str, folder: Path) -> AsyncIterator[AsyncSMCPAgentClient]:
    """An agent that knows the functions of a computer."""
    async with (
        hosted(computer_with_functions(), url, office, folder),
        AsyncSMCPAgentClient("planner", url=url, office=office) as agent,
    ):
        await until(lambda: "greet" in agent.registry)
        yield agent


@asynccontextmanager
async def served(registry: MCPRegistry, mode: Any) -> AsyncIterator[Client]:
    async def answer(context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": f"Ada, asked {params.message!r}"})

    server = _ServedRegistry(registry, "through")
    async with asyncio.timeout(PATIENCE), Client(server, mode=mode, elicitation_callback=answer) as client:
        yield client


@pytest.mark.covers("registry-content", "registry-context")
async def test_results_and_questions_of_computers_pass_an_agents_registry(
    shared_hub: Any, office: str, tmp_path: Path
) -> None:
    async with planner(shared_hub.url, office, tmp_path) as agent:
        assert await agent.registry.acall("chart", {}) == {"bars": 2}
        for mode in ("legacy", "auto"):
            async with served(agent.registry, mode) as client:
                chart = await client.call_tool("chart", {})
                assert [block.type for block in chart.content] == ["text", "image"]
                assert chart.structured_content == {"bars": 2}
                assert chart.meta is not None
                assert chart.meta["trace"] == "7"
                greeting = await client.call_tool("greet", {})
                assert isinstance(greeting.content[0], types.TextContent)
                assert greeting.content[0].text == "hi Ada, asked 'Who are you?'"


@pytest.mark.covers("registry-context")
async def test_the_caller_of_an_agents_registry_answers(shared_hub: Any, office: str, tmp_path: Path) -> None:
    async def answer(question: Question) -> Answer:
        return Answer("accept", {"name": question.message})

    async with planner(shared_hub.url, office, tmp_path) as agent:
        assert await agent.registry.acall("greet", {}, on_question=answer) == "hi Who are you?"
        blocking = asyncio.to_thread(agent.registry.call, "greet", {}, on_question=lambda question: {"name": "Bob"})
        assert await blocking == "hi Bob"


async def in_beijing(context: Any, params: Any) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"city": "PEK"})


@both
@pytest.mark.covers("agent-registry-reads", "registry-content", "questions-result")
async def test_what_there_is_to_read_passes_an_agents_registry_whole_with_its_questions_and_errors(
    shared_hub: Any, office: str, tmp_path: Path, era: str
) -> None:
    computer = Computer("laptop", policy=quick())
    computer.add_server(library(era, tmp_path, "talkative"))
    async with (
        hosted(computer, shared_hub.url, office, tmp_path),
        AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office) as agent,
    ):
        await ready(computer, "the library")
        await until(lambda: agent.registry.prompts() and "touch" in agent.registry)
        for mode in ("legacy", "auto"):
            server = _ServedRegistry(agent.registry, "through")
            async with (
                asyncio.timeout(PATIENCE),
                Client(server, mode=mode, elicitation_callback=in_beijing, cache=None) as client,  # type: ignore[arg-type]
            ):
                await nothing_is_lost(client)
                await it_asks(client)
            async with asyncio.timeout(PATIENCE), Client(server, mode=mode, cache=None) as silent:  # type: ignore[arg-type]
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


async def it_asks(client: Client) -> None:
    prompt = (await client.get_prompt("ask")).messages[0].content
    assert isinstance(prompt, types.TextContent)
    assert (prompt.text, text_of(await client.read_resource("ask:x"))) == ("PEK", "PEK")


def text_of(read: types.ReadResourceResult) -> str:
    (contents,) = read.contents
    assert isinstance(contents, types.TextResourceContents)
    return contents.text
