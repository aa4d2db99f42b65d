"""Our Computer among published peers: agents of both generations through our Server, and the package's own Server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.calls.incoming import CallOptions
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Caller
from tests.computer.hosted import hosted, ready
from tests.computer.supervised import SERVERS, eventually
from tests.interop.conftest import KEY, a_server, call, peer_command, published_agent
from tests.interop.driver import PATIENCE, Driver

NOTES = "window://org.example.desk/notes?priority=50"
PROMPTLY = 5.0

Start = Callable[..., Awaitable[Driver]]
pytestmark = pytest.mark.covers("interop-0.1.2", "interop-0.4.2", "computer-serves")


@pytest.fixture
def computer(tmp_path: Path) -> Computer:
    """Called `laptop`, with an MCP server on the 1.x SDK whose slow tool writes down what becomes of it."""
    laptop = Computer("laptop")
    laptop.add_server(stdio("desk", *peer_command("0.4.2", "mcp_server.py", tmp_path / "marks")))
    return laptop


@pytest.fixture
def an_agent(drive: Start, office: str) -> Start:
    """Starts a published agent called `planner`: `await an_agent("0.1.2", url)`."""

    async def start(version: str, url: str) -> Driver:
        agent = await drive(*published_agent(version, url, office, "--api-key", KEY))
        assert await agent.hears("ready") == {"version": version}
        return agent

    return start


def stdio(name: str, program: str | Path, *args: str, **more: Any) -> dict[str, Any]:
    """Nobody is there to approve calls, so the tools run without being asked about."""
    parameters = {"command": str(program), "args": list(args)}
    return {"name": name, "server_parameters": parameters, "default_tool_meta": {"auto_apply": True}, **more}


@asynccontextmanager
async def at_work(computer: Computer, url: str, office: str, folder: Path) -> AsyncIterator[None]:
    """The computer in its office, with its server ready."""
    async with hosted(computer, url, office, folder, api_key=KEY):
        await ready(computer, "desk")
        yield


async def tools_of(agent: Driver) -> dict[str, str]:
    """The names of the tools, and the server of each."""
    return {tool["name"]: tool["bundle_id"] for tool in (await agent.ask("get_tools", computer="laptop"))["tools"]}


async def they_meet(agent: Driver, office: str) -> None:
    """The package's agent does not wait for the ack of its join, but its next request comes after it."""
    await agent.ask("join")
    (found,) = await agent.ask("list_room")
    assert (found["role"], found["name"], found["office_id"]) == ("computer", "laptop", office)


async def the_agent_works(agent: Driver) -> None:
    assert await tools_of(agent) == dict.fromkeys(["add", "slow", "note", "picture"], "desk")
    assert "desk" in (await agent.ask("get_config", computer="laptop"))["servers"]
    result = await call(agent, "add", a=1, b=2)
    assert result["content"] == [{"type": "text", "text": "3"}]
    assert not result["isError"]
    shown = await agent.ask("get_desktop", computer="laptop")
    assert shown["desktops"] == [f"{NOTES}\n\nnothing yet"]
    await call(agent, "note", text="done")
    await the_agent_sees(agent, f"{NOTES}\n\ndone")


async def the_agent_is_told_of_a_new_tool(agent: Driver, computer: Computer, version: str) -> None:
    """0.1.2 has no handler for tool lists: it hears of them, and does not ask by itself."""

    @computer.tool(auto_apply=True)
    def greet(name: str) -> str:
        """Greet somebody."""
        return f"hello {name}"

    if version == "0.1.2":
        assert (await agent.hears("notify:update_tool_list"))["computer"] == "laptop"
    else:
        assert (await agent.hears("update_tool_list"))["computer"] == "laptop"
        await the_agent_fetches(agent, "tools", lambda fetched: "greet" in fetched["tools"])
    assert "greet" in await tools_of(agent)
    assert (await call(agent, "greet", name="world"))["content"][0]["text"] == "hello world"


async def the_agent_is_told_of_a_new_server_and_its_windows(agent: Driver, computer: Computer) -> None:
    await computer.put_server(stdio("good", sys.executable, str(SERVERS / "sdk.py"), desktop="any"))
    assert (await agent.hears("update_config"))["computer"] == "laptop"
    await the_agent_sees(agent, "window://good/one?priority=5")
    await call(agent, "open_window", uri="window://good/three", text="new")
    await the_agent_sees(agent, "window://good/three")


async def the_agent_sees(agent: Driver, window: str) -> None:
    def shows(fetched: Any) -> bool:
        return any(shown.startswith(window) for shown in fetched["desktop"]["desktops"])

    await the_agent_fetches(agent, "desktop", shows)


async def the_agent_fetches(agent: Driver, event: str, wanted: Callable[[Any], bool]) -> None:
    """The package's agent asks by itself when it is told of a change. It may have been told of an earlier one first."""
    async with asyncio.timeout(PATIENCE):
        while not wanted(await agent.hears(event)):
            pass


async def the_agent_cancels(agent: Driver, marks: Path) -> None:
    params = {"seconds": 60}
    running = agent.begin("tool_call", computer="laptop", tool="slow", params=params, timeout=60, tag="slow")
    await eventually(lambda: marks.exists() and "started" in marks.read_text())
    await agent.ask("cancel", tag="slow")
    async with asyncio.timeout(PROMPTLY):
        result = await running
    assert result["isError"]
    assert result["_meta"]["a2c_cancelled"] is True
    await eventually(lambda: marks.read_text().split() == ["started", "cancelled"])


async def refusals_can_be_read(agent: Driver) -> None:
    for tool, params, reason in (("nothing", {}, "'nothing'"), ("add", {"a": 1}, '"b" is a required property')):
        refused = await call(agent, tool, **params)
        assert refused["isError"]
        assert reason in refused["content"][0]["text"]


PAIRS = [("ours", "0.1.2"), ("ours", "0.4.2"), ("0.4.2", "0.4.2")]


@pytest.mark.parametrize(("make", "version"), PAIRS, ids=" server, agent ".join)
async def test_a_published_agent_uses_our_computer(
    an_agent: Start, computer: Computer, office: str, tmp_path: Path, make: str, version: str
) -> None:
    async with a_server(make, tmp_path) as url:
        agent = await an_agent(version, url)
        async with at_work(computer, url, office, tmp_path):
            await they_meet(agent, office)
            await the_agent_works(agent)
            await refusals_can_be_read(agent)
            await the_agent_is_told_of_a_new_tool(agent, computer, version)
            await the_agent_is_told_of_a_new_server_and_its_windows(agent, computer)
            await the_agent_cancels(agent, tmp_path / "marks")
            for tool in ("add", "good__add"):
                assert (await call(agent, tool, a=2, b=2))["content"][0]["text"] == "4"
        assert (await agent.hears("leave_office"))["computer"] == "laptop"


@pytest.mark.covers("questions-who", "tells-sent")
async def test_behind_the_published_server_a_tool_hears_that_nobody_can_answer_its_question(
    an_agent: Start, computer: Computer, office: str, tmp_path: Path
) -> None:
    notes, nobody = tmp_path / "notes", {"where": {"action": "cancel"}}
    computer.add_server(stdio("asking", sys.executable, str(SERVERS / "older_asking.py"), str(notes)))
    async with a_server("0.4.2", tmp_path) as url, at_work(computer, url, office, tmp_path):
        agent = await an_agent("0.4.2", url)
        await they_meet(agent, office)
        await ready(computer, "asking")
        assert json.loads((await call(agent, "book"))["content"][0]["text"]) == nobody
        options = CallOptions(questions=True, progress=True)  # which this Server does not pass on
        asked = await computer.execute_tool(Caller(office, "planner"), "r1", "book", {}, 20, options=options)
        assert json.loads(asked["content"][0]["text"]) == nobody
        assert not computer.agents.tells.are_carried(office)
        assert (await call(agent, "add", a=1, b=2))["content"][0]["text"] == "3"
    assert notes.read_text().split() == ["book", "book"]
