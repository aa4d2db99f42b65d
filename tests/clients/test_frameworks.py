"""Frameworks use an office through the bridge, as the examples show, and as short as the pages say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.bridged import KEY, ROOT, BridgedOffice, bridged_office, over_http, printed, surroundings
from tests.stage.installed import environment

pytestmark = pytest.mark.covers("clients", "examples")

FOLDER = ROOT / "examples" / "bridge"
ENVIRONMENTS = {"with_langchain": "clients", "with_openai_agents": "frameworks", "with_pydantic_ai": "frameworks"}
MODELS = "scripted"
"""Not an example: it stands for the models."""


@pytest.fixture
async def place(shared_hub: Any, office: str, tmp_path: Path) -> AsyncIterator[BridgedOffice]:
    async with bridged_office(shared_hub.url, office, tmp_path) as found:
        yield found


def test_every_framework_is_tested_and_takes_fewer_than_thirty_lines() -> None:
    examples = {path.stem: path.read_text("utf-8") for path in FOLDER.glob("*.py") if path.stem != MODELS}
    assert examples.keys() == ENVIRONMENTS.keys()
    assert [name for name, text in examples.items() if text.count("\n") >= 30] == []
    assert [name for name, text in examples.items() if f"python examples/bridge/{name}.py" not in text] == []


@pytest.mark.parametrize("name", ENVIRONMENTS)
async def test_a_framework_calls_a_tool_of_a_computer(place: BridgedOffice, name: str) -> None:
    async with over_http(place) as url:
        variables = {"MCP_URL": url, "MCP_KEY": KEY, "NO_PROXY": "*", "PYTHONPATH": ""}
        command = [environment(ENVIRONMENTS[name]), FOLDER / f"{name}.py"]
        assert await printed(command, surroundings(place.folder) | variables) == "It is 42.\n"
