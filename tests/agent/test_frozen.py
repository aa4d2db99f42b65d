"""A frozen computer, as agents and MCP clients meet it: plain and sealed, by every method, and released again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from a2c_smcp.agent import AgentEvents, AsyncSMCPAgentClient
from a2c_smcp.computer import Computer
from a2c_smcp.errors import CallFrozen, Frozen
from tests.computer.hosted import hosted, ready
from tests.stage.keys import write_keys
from tests.stage.mcp_clients import called, client, key_of
from tests.stage.operators import ADMIN, freeze, thaw
from tests.stage.program import Program, Starts, starts
from tests.waiting import until

__all__ = ["starts"]

pytestmark = pytest.mark.covers("freeze")

UPSTREAM = Path(__file__).parents[1] / "bridge" / "upstream.py"
KEYS = {"alice": {"principal": "alice"}, "laptop": {"principal": "laptop"}, "agent": {"principal": "agent"}}
REASON = "an incident"


class Heard(AgentEvents):
    """The states of computers, and the tools that they have sent."""

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []
        self.tools: list[set[str]] = []

    def on_computer_update_state(self, data: dict[str, Any]) -> None:
        self.states.append(data)

    def on_tools_received(self, computer: str, tools: list[Any], office: str) -> None:
        self.tools.append({tool["name"] for tool in tools})


@pytest.fixture
async def server(starts: Starts, tmp_path: Path) -> Program:
    keys = write_keys(tmp_path, {key_of(name): entry for name, entry in KEYS.items()})
    state = str(tmp_path / "state")
    return await starts("--mcp", "--keys-file", keys, "--admin-key", ADMIN, XDG_STATE_HOME=state)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes"
    path.touch()
    return path


@pytest.fixture
async def computer(server: Program, notes: Path, tmp_path: Path) -> AsyncIterator[Computer]:
    folder = tmp_path / "laptop"
    computer = Computer("laptop", state_folder=folder, landing=tmp_path / "landing", e2e="prefer")
    command = {"command": sys.executable, "args": [str(UPSTREAM), str(notes)]}
    allowed = {"default_tool_meta": {"auto_apply": True}}
    computer.add_server({"name": "up", "type": "stdio", "server_parameters": command, **allowed})
    async with hosted(computer, server.url, "desk", folder, api_key=key_of("laptop")):
        await ready(computer, "up")
        yield computer


@pytest.fixture(params=["off", "prefer"], ids=["plain", "sealed"])
async def agent(request: Any, server: Program, computer: Computer, tmp_path: Path) -> AsyncIterator[Any]:
    folder, key = tmp_path / "agent", key_of("agent")
    options = {"url": server.url, "office": "desk", "state_folder": folder, "e2e": request.param, "api_key": key}
    heard = Heard()
    async with AsyncSMCPAgentClient("planner", event_handler=heard, **options) as agent:
        agent.heard = heard  # type: ignore[attr-defined]
        yield agent


async def until_noted(notes: Path, line: str) -> None:
    await until(lambda: line in notes.read_text().splitlines())


async def test_nothing_gets_through_by_any_method_until_it_is_released(
    agent: Any, server: Program, computer: Computer, notes: Path
) -> None:
    await agent.subscribe_resource("laptop", "up", "notes://page")
    running = asyncio.create_task(agent.emit_tool_call("laptop", "wait", {"name": "a"}, 60))
    await until_noted(notes, "begun a")
    await freeze(server.url, office="desk", computer="laptop", reason=REASON)
    with pytest.raises(CallFrozen, match=REASON):
        await running
    await until_noted(notes, "cancelled a")
    attempts: list[Callable[[], Awaitable[Any]]] = [
        lambda: agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2}),
        lambda: agent.get_tools("laptop"),
        lambda: agent.get_config("laptop"),
        lambda: agent.get_desktop("laptop"),
        lambda: agent.get_servers("laptop"),
        lambda: agent.get_resources("laptop", "up"),
        lambda: agent.read_resource("laptop", "up", "notes://page"),
        lambda: agent.subscribe_resource("laptop", "up", "notes://page"),
        lambda: agent.get_prompts("laptop"),
        lambda: agent.get_prompt("laptop", "up", "trip", {"city": "Rome"}),
        lambda: agent.get_skills("laptop"),
        lambda: agent.set_log_level("laptop", "info"),
        lambda: agent.put_bytes("laptop", b"content", "name.txt"),
    ]
    for attempt in attempts:
        with pytest.raises(Frozen, match=REASON) as refused:
            await attempt()
        assert (refused.value.details["by"], refused.value.outcome) == ("operator", "not_run")
    await until(lambda: agent.frozen_computers == ["desk/laptop"])
    assert agent.computers == ["desk/laptop"]
    known = len(agent.heard.tools)
    await thaw(server.url, office="desk", computer="laptop")
    await until(lambda: len(agent.heard.tools) > known)
    assert [data["frozen"] for data in agent.heard.states] == [True, False]
    assert agent.frozen_computers == []
    assert (await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2})).text == "3"


async def test_an_agent_that_comes_later_knows_what_is_frozen(server: Program, computer: Computer) -> None:
    await freeze(server.url)
    options = {"url": server.url, "office": "desk", "api_key": key_of("agent")}
    async with AsyncSMCPAgentClient("planner", **options) as agent:
        assert agent.frozen_computers == ["desk/laptop"]
        with pytest.raises(Frozen):
            await agent.get_tools("laptop")
        await thaw(server.url)
        await until(lambda: agent.registry.is_registered("add"))


async def test_a_computer_that_owner_and_operator_have_frozen_is_free_when_both_have_ended_it(
    server: Program, computer: Computer
) -> None:
    computer.owner.freeze("mine")
    await freeze(server.url)
    options = {"url": server.url, "office": "desk", "api_key": key_of("agent")}
    async with AsyncSMCPAgentClient("planner", **options) as agent:
        assert agent.frozen_computers == ["desk/laptop"]
        await thaw(server.url)
        with pytest.raises(Frozen) as refused:
            await agent.get_tools("laptop")
        assert refused.value.details["by"] == "owner"
        await until(lambda: agent.frozen_computers == ["desk/laptop"])
        computer.owner.thaw()
        await until(lambda: agent.registry.is_registered("add"))
        assert agent.frozen_computers == []


@pytest.mark.covers("mcp-on-server")
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_mcp_client_is_told_who_froze_it_and_nothing_gets_through(
    server: Program, computer: Computer, notes: Path, mode: str
) -> None:
    async with client(server.url, mode=mode) as session:
        running = asyncio.create_task(session.call_tool("wait", {"name": "b"}))
        await until_noted(notes, "begun b")
        await freeze(server.url, office="desk", reason=REASON)
        cancelled = await running
        await until_noted(notes, "cancelled b")
        for result, code in ((cancelled, 499), (await session.call_tool("add", {"a": 1, "b": 2}), 423)):
            assert result.is_error
            assert (result.meta or {})["a2c_error"]["code"] == code
            assert REASON in getattr(result.content[0], "text", "")
        (page,) = [each.uri for each in (await session.list_resources()).resources if "page" in str(each.uri)]
        with pytest.raises(MCPError, match=REASON):
            await session.read_resource(page)
        with pytest.raises(MCPError, match=REASON):
            await session.get_prompt("trip", {"city": "Rome"})
        await thaw(server.url, office="desk")
        assert await called(session, "add", a=1, b=2) == "3"


async def test_a_restart_of_the_program_releases_nothing(starts: Starts, tmp_path: Path) -> None:
    """It is killed, and started again without an interface for operators."""
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    first = await starts("--admin-key", ADMIN, **state)
    assert (await freeze(first.url, office="desk", reason=REASON))["unkept"] == ""
    await first.kill()
    second = await starts(port=int(first.url.rpartition(":")[2]), **state)
    computer = Computer("laptop")
    folder = tmp_path / "laptop"
    async with (
        hosted(computer, second.url, "desk", folder),
        AsyncSMCPAgentClient("planner", url=second.url, office="desk") as agent,
    ):
        with pytest.raises(Frozen, match=REASON):
            await agent.get_config("laptop")
