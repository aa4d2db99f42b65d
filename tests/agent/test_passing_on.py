"""An agent's registry that is served to an MCP client: tools of a computer lose nothing on the way, and ask back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from a2c_smcp.agent import Answer, AsyncSMCPAgentClient, Question
from a2c_smcp.registry import MCPRegistry
from a2c_smcp.registry.remote.serving import _ServedRegistry
from tests.computer.hosted import PATIENCE, hosted
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
