"""The Agent and MCPRegistry in one environment with LangChain's MCP adapter, which needs mcp<2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from a2c_smcp.computer import Computer
from tests.clients.bridged import printed, surroundings
from tests.computer.hosted import hosted
from tests.conftest import Hub
from tests.stage.installed import environment

pytestmark = pytest.mark.covers("agent-beside-frameworks")


async def run(folder: Path, *arguments: str) -> str:
    """What the environment's Python prints, with the package of this clone."""
    return await printed([environment("clients"), *arguments], surroundings(folder))


async def test_no_package_of_the_environment_asks_for_another_version(tmp_path: Path) -> None:
    assert await run(tmp_path, "-m", "pip", "check") == "No broken requirements found.\n"


async def test_an_agent_calls_a_tool_beside_an_adapter_that_needs_mcp_1(
    shared_hub: Hub, office: str, tmp_path: Path
) -> None:
    computer = Computer("laptop")

    @computer.tool(auto_apply=True)
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async with hosted(computer, shared_hub.url, office, tmp_path):
        found = json.loads(await run(tmp_path, "-m", "tests.clients.langchain_program", shared_hub.url, office))
    assert found.pop("mcp").startswith("1.")
    assert found.pop("computer").startswith("a Computer needs the extra `computer`: ")
    assert found == {"agent": "42", "langchain": [{"result": 3}, "3"], "is one class": True}
