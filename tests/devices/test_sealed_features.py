"""Everything that a plain call can do works sealed: through one Server, and from node to node."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient, CallStatus, Question, SMCPAgentClient
from a2c_smcp.computer import Computer
from a2c_smcp.errors import CallCancelled
from tests.computer.hosted import hosted, ready
from tests.waiting import until

pytestmark = pytest.mark.covers("9-sealed", "signed")

UPSTREAM = Path(__file__).parents[1] / "bridge" / "upstream.py"
ANSWERED = {"name": "Ada"}


@pytest.fixture(scope="session", params=["program", "nodes"])
def hosting(request: pytest.FixtureRequest) -> Any:
    return request.param


class Heard:
    def __init__(self) -> None:
        self.logs: list[Any] = []
        self.updates: list[str] = []

    def on_log(self, computer: str, log: dict[str, Any], office: str) -> None:
        self.logs.append(log["data"])

    def on_resource_updated(self, computer: str, server: str, uri: str, office: str) -> None:
        self.updates.append(uri)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture
async def computer(shared_hub: Any, office: str, tmp_path: Path, notes: Path) -> AsyncIterator[Computer]:
    folder = tmp_path / "computer"
    computer = Computer("laptop", state_folder=folder, landing=tmp_path / "landing", e2e="prefer", sign=True)
    command = {"command": sys.executable, "args": [str(UPSTREAM), str(notes)]}
    allowed = {"default_tool_meta": {"auto_apply": True}}
    computer.add_server({"name": "up", "type": "stdio", "server_parameters": command, **allowed})
    async with hosted(computer, shared_hub.url, office, folder):
        await ready(computer, "up")
        yield computer


@pytest.fixture
def options(shared_hub: Any, office: str, tmp_path: Path, heard: Heard) -> dict[str, Any]:
    folder = tmp_path / "agent"
    known = {"url": shared_hub.url, "office": office, "state_folder": folder, "event_handler": heard}
    return {**known, "e2e": "prefer", "verify": True}


@pytest.fixture
async def agent(computer: Computer, options: dict[str, Any]) -> AsyncIterator[AsyncSMCPAgentClient]:
    async with AsyncSMCPAgentClient("planner", **options) as agent:
        yield agent


def lines(notes: Path) -> list[str]:
    return notes.read_text().splitlines() if notes.exists() else []


async def test_tools_prompts_resources_and_desktops_are_read(agent: AsyncSMCPAgentClient) -> None:
    assert (await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2})).text == "3"
    assert (await agent.read_resource("laptop", "up", "notes://page"))["contents"][0]["text"] == "first"
    assert [each["name"] for each in (await agent.get_prompts("laptop"))["prompts"]] == ["trip"]
    prompt = await agent.get_prompt("laptop", "up", "trip", {"city": "Rome"})
    assert prompt["messages"][0]["content"]["text"] == "Plan a trip to Rome."
    assert [each["name"] for each in (await agent.get_servers("laptop"))] == ["up"]
    assert await agent.get_desktop("laptop") == []
    assert "up" in (await agent.get_config("laptop"))["servers"]


async def test_progress_logs_questions_and_changes_are_told(agent: AsyncSMCPAgentClient, heard: Heard) -> None:
    told: list[Any] = []
    await agent.set_log_level("laptop", "debug", "up")
    result = await agent.emit_tool_call(
        "laptop", "steps", {"count": 3}, on_progress=lambda *report: told.append(report), on_question=lambda _: None
    )
    assert (result.text, told[-1][:2]) == ("done", (3, 3))
    await until(lambda: "at step 3" in heard.logs)
    states: list[CallStatus] = []

    async def answers(question: Question) -> dict[str, str]:
        await until(lambda: "asked, waiting for planner" in map(str, states))
        return ANSWERED

    greeting = await agent.emit_tool_call("laptop", "greet", on_question=answers, on_state=states.append)
    assert greeting.text == "hi Ada"
    await agent.subscribe_resource("laptop", "up", "notes://page")
    await agent.emit_tool_call("laptop", "write", {"text": "second"})
    await until(lambda: heard.updates == ["notes://page"])


async def test_a_cancelled_call_ends_in_the_tool(agent: AsyncSMCPAgentClient, notes: Path) -> None:
    call = asyncio.create_task(agent.emit_tool_call("laptop", "wait", {"name": "w"}, req_id="r" * 32))
    await until(lambda: "begun w" in lines(notes))
    await agent.cancel("r" * 32)
    with pytest.raises(CallCancelled):
        await call
    await until(lambda: "cancelled w" in lines(notes))


async def test_files_travel_both_ways(agent: AsyncSMCPAgentClient, computer: Computer) -> None:
    content = os.urandom(3 * 1024 * 1024)
    put = await agent.put_bytes("laptop", content, name="data.bin")
    assert await asyncio.to_thread(Path(put).read_bytes) == content

    @computer.tool(auto_apply=True)
    def large(size: int) -> str:
        return "é" * size

    await until(lambda: "large" in agent.registry)
    assert (await agent.emit_tool_call("laptop", "large", {"size": 5_000_000})).text == "é" * 5_000_000


async def test_a_call_survives_a_lost_connection_and_runs_once(agent: AsyncSMCPAgentClient, notes: Path) -> None:
    call = asyncio.create_task(agent.emit_tool_call("laptop", "once", {"name": "o", "seconds": 2.0}))
    await until(lambda: "once o" in lines(notes))
    connection = agent._flows.connection.current
    assert connection
    connection._lose()
    assert (await call).text == "o"
    assert lines(notes).count("once o") == 1


async def test_an_agent_goes_on_when_the_computer_has_new_keys(agent: AsyncSMCPAgentClient, computer: Computer) -> None:
    assert (await agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2})).text == "3"
    device = computer.agents.device
    assert device
    device._made -= 13 * 3600
    device._renew()
    assert (await agent.emit_tool_call("laptop", "add", {"a": 2, "b": 2})).text == "4", "the key before is accepted"
    device._before = None
    assert (await agent.emit_tool_call("laptop", "add", {"a": 3, "b": 2})).text == "5"


async def test_the_blocking_client_seals_too(computer: Computer, options: dict[str, Any]) -> None:
    def work() -> str:
        with SMCPAgentClient("planner", **options) as agent:
            return agent.emit_tool_call("laptop", "add", {"a": 1, "b": 2}).text

    assert await asyncio.to_thread(work) == "3"
