"""Calls for tools of MCP servers that are still starting: they wait, within their deadline, and hold up nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from tests.bystander import calling_meanwhile
from tests.computer.hosted import Host
from tests.computer.supervised import naughty, quick
from tests.peer import Peer
from tests.stage.calls import verdict
from tests.waiting import until

pytestmark = pytest.mark.covers("calls-server-starting")

APPROVED = {"default_tool_meta": {"auto_apply": True}}


class Door:
    """The file without which the server does not start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open, self.close = path.touch, path.unlink

    def slam(self) -> None:
        """The server fails when it sees that."""
        self.path.with_suffix(".new").write_text("exit")
        self.path.with_suffix(".new").rename(self.path)


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path / "door")


@pytest.fixture
async def laptop(host: Host, door: Door) -> Computer:
    """In an office, with a function and a server that is starting."""
    computer = Computer("laptop", policy=quick(start_limit=60, probe_limit=60, first_pause=60))
    computer.add_server(naughty("waits_for", door.path, name="slow", forbidden_tools=["secret"], **APPROVED))
    computer.add_server(naughty("fine", name="off", disabled=True))
    computer.tool(lambda: "here", name="function", auto_apply=True)
    await host(computer)
    await until(lambda: computer.status()["slow"].state == "starting")
    return computer


async def tools(agent: Peer) -> tuple[list[str], Any]:
    answer = await agent.request("client:get_tools", "laptop")
    return [tool["name"] for tool in answer["tools"]], answer.get("starting")


async def test_a_call_for_a_server_that_is_starting_waits_and_runs_and_others_do_not_wait(
    laptop: Computer, agent: Peer, door: Door
) -> None:
    assert await tools(agent) == (["function"], ["slow"])
    call = asyncio.ensure_future(agent.call_tool("laptop", "echo", timeout=60, params={"n": 1}))
    async with calling_meanwhile(lambda: agent.call_tool("laptop", "function")) as waits:
        await until(lambda: len(waits) >= 5)
        assert not call.done()
        door.open()
        assert (await call)["content"][0]["text"] == '{"n": 1}'
    assert await tools(agent) == (["function", "echo"], None)
    assert verdict(await agent.call_tool("laptop", "no such tool", timeout=60)) == (404, "not_run")


@pytest.mark.covers("calls-outcome")
async def test_a_call_waiting_for_a_server_that_does_not_start_gets_404_and_agents_are_notified(
    laptop: Computer, agent: Peer, door: Door
) -> None:
    call = asyncio.ensure_future(agent.call_tool("laptop", "echo", timeout=60))
    assert await tools(agent) == (["function"], ["slow"])
    (await agent.heard_until_now()).clear()
    door.slam()
    assert verdict(await call) == (404, "not_run")
    await agent.hears("notify:update_tool_list", computer="laptop")
    assert await tools(agent) == (["function"], None)


@pytest.mark.covers("calls-outcome")
async def test_waiting_for_a_server_ends_with_the_deadline_and_with_a_cancel(laptop: Computer, agent: Peer) -> None:
    late = asyncio.ensure_future(agent.call_tool("laptop", "echo", timeout=1))
    cancelled = asyncio.ensure_future(agent.call_tool("laptop", "echo", timeout=60, req_id="c"))
    await tools(agent)
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "c"})
    assert verdict(await cancelled) == (499, "not_run")
    answer = await late
    assert verdict(answer) == (408, "not_run")
    assert "'slow'" in answer["message"]
    assert laptop.history == type(laptop.history)()


async def test_a_tool_of_a_server_that_starts_again_is_waited_for_and_an_unknown_name_is_not(
    laptop: Computer, agent: Peer, door: Door
) -> None:
    door.open()
    await until(lambda: laptop.status()["slow"].state == "ready")
    door.close()
    restarting = asyncio.ensure_future(laptop.restart("slow"))
    await until(lambda: laptop.status()["slow"].state == "starting")
    call = asyncio.ensure_future(agent.call_tool("laptop", "echo", timeout=60, params={"n": 2}))
    assert verdict(await agent.call_tool("laptop", "no such tool", timeout=60)) == (404, "not_run")
    door.open()
    assert (await call)["content"][0]["text"] == '{"n": 2}'
    await restarting
