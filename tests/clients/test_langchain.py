"""The Agent and MCPRegistry in one environment with LangChain's MCP adapter, which needs mcp<2."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from a2c_smcp.computer import Computer
from tests.computer.hosted import hosted
from tests.conftest import Hub

ROOT = Path(__file__).parents[2]
HOME = ROOT / ".cache" / "clients"
PATIENCE = 90.0

pytestmark = pytest.mark.covers("agent-beside-frameworks")


async def run(*arguments: str) -> str:
    """What the environment's Python prints, with the package of this clone."""
    assert (HOME / ".ready").exists(), f"{HOME} is missing, run `make clients`"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("A2C_")}
    process = await asyncio.create_subprocess_exec(
        HOME / "bin/python", *arguments, cwd=ROOT, env=environ, stdin=-3, stdout=-1, stderr=-1
    )
    async with asyncio.timeout(PATIENCE):
        out, err = (part.decode() for part in await process.communicate())
    assert process.returncode == 0, err
    return out


async def test_no_package_of_the_environment_asks_for_another_version() -> None:
    assert await run("-m", "pip", "check") == "No broken requirements found.\n"


async def test_an_agent_calls_a_tool_beside_an_adapter_that_needs_mcp_1(
    shared_hub: Hub, office: str, tmp_path: Path
) -> None:
    computer = Computer("laptop")

    @computer.tool(auto_apply=True)
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    async with hosted(computer, shared_hub.url, office, tmp_path):
        found = json.loads(await run("-m", "tests.clients.langchain_program", shared_hub.url, office))
    assert found.pop("mcp").startswith("1.")
    assert found.pop("computer").startswith("a Computer needs the extra `computer`: ")
    assert found == {"agent": "42", "langchain": [{"result": 3}, "3"], "is one class": True}
