"""An agent whose registry is served over MCP: the person at the MCP client approves calls, under the client's name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import mcp_types as types
import pytest
from mcp import Client

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.registry.remote.serving import _ServedRegistry
from tests.computer.hosted import PATIENCE, hosted
from tests.computer.test_client_approval import Guarded
from tests.waiting import until

pytestmark = pytest.mark.covers("approval-by-client", "client-names")

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


@asynccontextmanager
async def at_the_client(
    guarded: Guarded, person: Person | None, mode: Any, url: str, office: str, folder: Path
) -> AsyncIterator[Client]:
    """An MCP client whose tools are those of the computer, through an agent."""
    info = types.Implementation(name="claude-desktop", version="1.2")
    async with (
        asyncio.timeout(PATIENCE),
        hosted(guarded.computer, url, office, folder),
        AsyncSMCPAgentClient("bridge", url=url, office=office) as agent,
    ):
        await until(lambda: "wipe" in agent.registry)
        server = _ServedRegistry(agent.registry, "x")
        async with Client(server, mode=mode, client_info=info, elicitation_callback=person, cache=None) as client:
            yield client


@eras
async def test_the_person_at_the_mcp_client_says_yes(mode: Any, shared_hub: Any, office: str, tmp_path: Path) -> None:
    guarded, person = Guarded(), Person("accept", approve="yes")
    async with at_the_client(guarded, person, mode, shared_hub.url, office, tmp_path) as client:
        result = await client.call_tool("wipe", {"path": "/tmp/a"})
    assert not result.is_error
    assert guarded.runs == ["/tmp/a"]
    assert [asked.splitlines()[0] for asked in person.asked] == [
        "bridge (claude-desktop) wants to run wipe of the MCP server python on the computer laptop, with"
    ]
    assert [each["caller"] for each in guarded.computer.history] == ["bridge (claude-desktop)"]


@eras
@pytest.mark.parametrize("person", [Person("accept", approve="no"), Person("decline"), None], ids=["no", "-", "nobody"])
async def test_nothing_runs_without_a_yes_of_the_person(
    mode: Any, person: Person | None, shared_hub: Any, office: str, tmp_path: Path
) -> None:
    guarded = Guarded()
    async with at_the_client(guarded, person, mode, shared_hub.url, office, tmp_path) as client:
        result = await client.call_tool("wipe", {"path": "/tmp/a"})
        assert result.is_error
        assert "Approval refused" in str(result.content)
    assert guarded.runs == []
