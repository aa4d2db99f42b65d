"""A malicious Server, and a computer with a tool that asks, which seals for the agents that it knows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer import Computer
from a2c_smcp.registry import AsyncToolContext
from tests.devices.malicious import Stage

FORM = {"mode": "form", "message": "password?", "requestedSchema": {"type": "object", "properties": {}}}


@pytest.fixture
async def stage(serve: Callable[..., Any], office: str, tmp_path: Path) -> Stage:
    return Stage(await serve(), office, tmp_path)


@pytest.fixture
async def laptop(stage: Stage) -> AsyncIterator[Computer]:
    computer = stage.computer("laptop", e2e="prefer")

    @computer.tool(auto_apply=True)
    async def ask(context: AsyncToolContext) -> str:
        return str((await context.ask("name?", FORM["requestedSchema"])).action)

    async with stage.hosting(computer):
        yield computer
