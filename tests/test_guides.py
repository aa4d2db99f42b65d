"""The guides of sign-in, questions and long calls: their examples do what the pages say."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import Computer
from tests.computer.hosted import hosted, ready

ROOT = Path(__file__).parents[1]
GUIDES = ROOT / "docs" / "guides"
RESTAURANT = {"command": sys.executable, "args": [str(ROOT / "examples" / "restaurant_server.py")]}

pytestmark = pytest.mark.covers("examples")

Example = Callable[[AsyncSMCPAgentClient], Awaitable[str]]


def examples(page: str, function: str) -> list[Example]:
    """The functions of this name in the Python examples of a page, in their order."""
    blocks = re.findall(r"^```python\n(.*?)^```", (GUIDES / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)
    found = []
    for block in blocks:
        if f"async def {function}(agent:" in block:
            names: dict[str, Any] = {}
            exec(compile(block, page, "exec"), names)
            found.append(names[function])
    return found


@pytest.fixture
async def agent(shared_hub: Any, office: str, tmp_path: Path) -> AsyncIterator[AsyncSMCPAgentClient]:
    """An agent in an office with the computer of the guides."""
    computer = Computer("laptop", approve=lambda request: True)
    computer.add_server({"name": "restaurant", "type": "stdio", "server_parameters": RESTAURANT})
    async with hosted(computer, shared_hub.url, office, tmp_path):
        await ready(computer, "restaurant")
        async with AsyncSMCPAgentClient("planner", url=shared_hub.url, office=office) as client:
            yield client


async def test_questions_are_answered_by_both_examples(
    agent: AsyncSMCPAgentClient, capsys: pytest.CaptureFixture[str]
) -> None:
    answered, passed_on = examples("questions.md", "book")
    assert await answered(agent) == "Booked for Friday: 4 people, inside"
    assert capsys.readouterr().out == "A table for Friday ['people', 'place']\n"
    assert await passed_on(agent) == "Booked for Friday: 4 people, inside"
    unanswered = await agent.emit_tool_call("laptop", "book_table", {"day": "Friday"})
    assert unanswered.is_error


async def test_progress_is_shown(agent: AsyncSMCPAgentClient, capsys: pytest.CaptureFixture[str]) -> None:
    shown, _ = examples("long-calls.md", "cook")
    assert await shown(agent) == "3 dishes are ready"
    assert "1.0 3.0 dish 2\n" in capsys.readouterr().out


async def test_an_extended_call_outlives_its_timeout(agent: AsyncSMCPAgentClient) -> None:
    arguments = {"dishes": 4, "seconds": 0.4}
    result = await agent.emit_tool_call("laptop", "cook", arguments, timeout=1, extend=True)
    assert result.text == "4 dishes are ready"
