"""The published package, 0.1.2 and 0.4.2, as agent and as computer: our Server serves both, also next to each other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from a2c_smcp.server import DefaultAuthenticationProvider
from tests.cluster import Front
from tests.conftest import Hub
from tests.interop.conftest import computer_of, peer_command
from tests.interop.driver import PATIENCE, Driver

SPOKEN = {"0.1.2": "0.1", "0.4.2": "0.4.0"}
"""The version of the protocol that each version of the package speaks."""

NAMES = {"agent": "planner", "computer": "laptop"}
WINDOW = "window://org.example.desk/notes?priority=50"
PROMPTLY = 5.0

Start = Callable[..., Awaitable[Driver]]
pytestmark = pytest.mark.covers("interop-0.1.2", "interop-0.4.2")


class Marks:
    """A pipe on which a tool tells what became of it, whatever its computer says."""

    def __init__(self, path: Path, reader: asyncio.StreamReader) -> None:
        self.path = path
        self._reader = reader

    async def next(self) -> str:
        async with asyncio.timeout(PATIENCE):
            return (await self._reader.readline()).decode().strip()


@pytest.fixture
async def marks(tmp_path: Path) -> AsyncIterator[Marks]:
    path, reader = tmp_path / "marks", asyncio.StreamReader()
    os.mkfifo(path)
    pipe = path.open("r+b", buffering=0)  # open for writing too: it does not end with its first writer
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    yield Marks(path, reader)
    transport.close()


@pytest.fixture
def published(drive: Start, office: str) -> Start:
    """Starts a published peer: `await published("agent", "0.1.2", hub, "--api-key", key)`."""

    async def start(role: str, version: str, hub: Hub | Front, *options: str) -> Driver:
        arguments = ("--url", hub.url, "--name", NAMES[role], "--office", office, *options)
        if role == "computer":
            return await drive(*computer_of(version, *arguments))
        return await drive(*peer_command(version, "agent.py", *arguments))

    return start


@pytest.mark.parametrize("computer_version", SPOKEN)
@pytest.mark.parametrize("agent_version", SPOKEN)
async def test_published_agents_and_computers_work_together(
    published: Start, shared_hub: Hub, office: str, marks: Marks, agent_version: str, computer_version: str
) -> None:
    agent = await published("agent", agent_version, shared_hub)
    computer = await published("computer", computer_version, shared_hub, "--marks", str(marks.path))
    assert await computer.hears("ready") == {"version": computer_version}
    assert await agent.hears("ready") == {"version": agent_version}
    prefix = "" if computer_version == "0.1.2" else "desk__"
    tools = [f"{prefix}{tool}" for tool in ("add", "slow", "note", "picture")]

    await they_meet(agent, computer, office)
    assert await who_is_there(agent, office) == {
        ("agent", "planner", SPOKEN[agent_version]),
        ("computer", "laptop", SPOKEN[computer_version]),
    }
    await the_agent_works(agent, tools)
    await the_agent_is_told(agent, computer, office, tools, knows_tool_lists=agent_version != "0.1.2")
    await the_agent_cancels(agent, computer, marks, f"{prefix}slow")
    if computer_version != "0.1.2":  # which ignores cancels: the Server has answered for it
        assert await marks.next() == "cancelled"
    await the_computer_leaves_and_returns(agent, computer, office, tools)


@pytest.mark.covers("any-node")
@pytest.mark.parametrize("version", SPOKEN)
async def test_published_peers_work_together_over_nodes_without_stickiness(
    published: Start, front: Front, office: str, version: str
) -> None:
    agent, computer = [await published(role, version, front) for role in ("agent", "computer")]
    for peer in (agent, computer):
        assert await peer.hears("ready") == {"version": version}
    tools = [("" if version == "0.1.2" else "desk__") + tool for tool in ("add", "slow", "note", "picture")]
    await they_meet(agent, computer, office)
    await the_agent_works(agent, tools)
    await the_computer_leaves_and_returns(agent, computer, office, tools)
    assert len(front.asked) > 1


async def they_meet(agent: Driver, computer: Driver, office: str) -> None:
    """The computer first: the package's agent does not wait for the ack of its join, others see when it is there."""
    await computer.ask("join")
    await agent.ask("join")
    told = await computer.hears("notify:enter_office")
    assert told == {"office_id": office, "agent": "planner", "seat": told["seat"]}
    (found,) = await agent.ask("list_room")
    assert (found["role"], found["name"], found["office_id"]) == ("computer", "laptop", office)


async def who_is_there(agent: Driver, office: str) -> set[tuple[str, str, str]]:
    """The package's own list leaves the agent out."""
    request = {"agent": "planner", "req_id": uuid4().hex, "office_id": office}
    answer = await agent.ask("call", event="server:list_room", data=request)
    return {(member["role"], member["name"], member["a2c_version"]) for member in answer["sessions"]}


async def the_agent_works(agent: Driver, tools: list[str]) -> None:
    found = await agent.ask("get_tools", computer="laptop")
    assert [tool["name"] for tool in found["tools"]] == tools
    assert "desk" in (await agent.ask("get_config", computer="laptop"))["servers"]
    result = await agent.ask("tool_call", computer="laptop", tool=tools[0], params={"a": 1, "b": 2})
    assert result["content"] == [{"type": "text", "text": "3"}]
    assert not result["isError"]
    shown = await agent.ask("get_desktop", computer="laptop")
    assert shown["desktops"] == [f"{WINDOW}\n\nnothing yet"]
    nobody = await agent.ask("tool_call", computer="nobody", tool=tools[0], params={})
    assert nobody["isError"]
    assert "No such computer: 'nobody'" in nobody["content"][0]["text"]


async def the_agent_is_told(
    agent: Driver, computer: Driver, office: str, tools: list[str], *, knows_tool_lists: bool
) -> None:
    """The package's agent asks by itself for what has changed. 0.1.2 has no handler for tool lists."""
    notice = {"computer": "laptop", "office_id": office}
    await computer.ask("update_config")
    assert await agent.hears("update_config") == notice
    assert await agent.hears("tools") == {"computer": "laptop", "tools": tools}
    await computer.ask("update_tool_list")
    if knows_tool_lists:
        assert await agent.hears("update_tool_list") == notice
        assert await agent.hears("tools") == {"computer": "laptop", "tools": tools}
    else:
        assert await agent.hears("notify:update_tool_list") == notice
    await computer.ask("update_desktop")
    assert (await agent.hears("desktop"))["desktop"]["desktops"] == [f"{WINDOW}\n\nnothing yet"]
    await agent.ask("tool_call", computer="laptop", tool=tools[2], params={"text": "done"})
    assert (await agent.hears("desktop"))["desktop"]["desktops"] == [f"{WINDOW}\n\ndone"]


async def the_agent_cancels(agent: Driver, computer: Driver, marks: Marks, tool: str) -> None:
    call = agent.begin("tool_call", computer="laptop", tool=tool, params={"seconds": 60}, timeout=60, tag="slow")
    req_id = (await agent.hears("calling", tag="slow"))["req_id"]
    assert await marks.next() == "started"
    await agent.ask("cancel", tag="slow")
    assert await computer.hears("notify:tool_call_cancel") == {"agent": "planner", "req_id": req_id}
    async with asyncio.timeout(PROMPTLY):
        result = await call
    assert result["isError"]
    assert result["_meta"]["a2c_cancelled"] is True


async def the_computer_leaves_and_returns(agent: Driver, computer: Driver, office: str, tools: list[str]) -> None:
    seat = {"office_id": office, "computer": "laptop"}
    await computer.ask("leave")
    left = await agent.hears("leave_office")
    assert left == {**seat, "seat": left["seat"]}
    assert await agent.ask("list_room") == []
    await computer.ask("join")
    come = await agent.hears("enter_office")
    assert come == {**seat, "seat": come["seat"]}
    assert await agent.hears("tools") == {"computer": "laptop", "tools": tools}


@pytest.mark.parametrize("version", SPOKEN)
async def test_published_peers_show_their_key_each_in_its_own_way(published: Start, serve: Any, version: str) -> None:
    hub = await serve(auth=DefaultAuthenticationProvider("the right key"))
    agent = await published("agent", version, hub, "--api-key", "the right key")
    computer = await published("computer", version, hub, "--api-key", "the right key")
    stranger = await published("agent", version, hub, "--api-key", "a wrong key")
    assert "/smcp" in (await stranger.hears("failed"))["message"]
    await agent.hears("ready")
    await computer.hears("ready")
    await computer.ask("join")
    await agent.ask("join")
    assert (await computer.hears("notify:enter_office"))["agent"] == "planner"


async def test_a_required_version_lets_one_generation_in_and_refuses_the_other(published: Start, serve: Any) -> None:
    hub = await serve(require_version="0.4")
    older = [await published(role, "0.1.2", hub) for role in NAMES]
    newer = [await published(role, "0.4.2", hub) for role in NAMES]
    for peer in older:
        assert await peer.hears("failed")
    for peer in newer:
        assert await peer.hears("ready")


async def test_the_newer_generation_is_told_which_version_is_required(published: Start, serve: Any) -> None:
    hub = await serve(require_version="0.3")
    for peer in [await published(role, "0.4.2", hub) for role in NAMES]:
        failure = await peer.hears("failed")
        assert failure["error"] == "ProtocolVersionError"
        assert "min_supported=0.3" in failure["message"]
