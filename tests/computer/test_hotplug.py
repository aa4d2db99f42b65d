"""Servers that come, go, grow, fall over and misbehave while an agent looks on."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.mcp_host.limits import HostLimits
from tests.computer.hosted import Host, pids_with, ready
from tests.computer.pace import within
from tests.computer.supervised import good, naughty, text_of
from tests.peer import Peer
from tests.waiting import until

ALLOWED = {"auto_apply": True}
SHORT_FAREWELL = replace(HostLimits(), farewell_limit=0.3)


@pytest.fixture
def marker() -> str:
    """Something by which a test's own processes are known."""
    return uuid4().hex


@pytest.fixture
async def laptop(host: Host, marker: str, agent: Peer) -> Computer:
    """A computer with a server that is ready, of which the agent has heard everything."""
    computer = Computer("laptop", policy=SHORT_FAREWELL)
    computer.add_server(good(default_tool_meta=ALLOWED, env={"MARKER": marker}))
    await host(computer, "good")
    async with asyncio.timeout(30):
        while "add" not in await tools(agent):
            await agent.hears("notify:update_tool_list")
    await agent.hears("notify:update_tool_list")
    (await agent.heard_until_now()).clear()
    return computer


async def tools(agent: Peer) -> set[str]:
    answer = await agent.request("client:get_tools", "laptop")
    return {tool["name"] for tool in answer["tools"]}


async def text(agent: Peer, tool: str, **params: Any) -> str:
    return text_of(await agent.call_tool("laptop", tool, timeout=10, params=params))


@pytest.mark.covers("computer-serves", "computer-recovers")
async def test_a_tool_that_is_added_at_run_time_is_announced_and_works(laptop: Computer, agent: Peer) -> None:
    assert "fresh" not in await tools(agent)
    await text(agent, "grow", name="fresh")
    await agent.hears("notify:update_tool_list", computer="laptop")
    assert "fresh" in await tools(agent)
    assert await text(agent, "fresh") == "fresh"


@pytest.mark.covers("desktop-watch")
async def test_a_window_that_is_opened_or_touched_at_run_time_is_announced_and_shown(
    laptop: Computer, agent: Peer
) -> None:
    await laptop.put_server(good(default_tool_meta=ALLOWED, desktop="any"))
    await ready(laptop, "good")
    uri = "window://good/new?priority=9"
    await text(agent, "open_window", uri=uri, text="fresh")
    await shown(agent, f"{uri}\n\nfresh")
    await agent.heard_until_now()
    before = desktops_in(agent)
    await text(agent, "touch_window", uri=uri)
    await until(lambda: desktops_in(agent) > before)


async def shown(agent: Peer, desktop: str) -> None:
    """Looks at the first window as often as the agent is told to, until it is this one."""
    while True:
        known = desktops_in(agent)
        if (await agent.request("client:get_desktop", "laptop", desktop_size=1))["desktops"] == [desktop]:
            await until(lambda: desktops_in(agent) > 0)
            return
        await until(lambda: desktops_in(agent) > known)  # noqa: B023


def desktops_in(agent: Peer) -> int:
    return sum(name == "notify:update_desktop" for name, _ in agent.heard)


@pytest.mark.covers("computer-recovers")
async def test_a_killed_server_fails_its_calls_at_once_its_tools_stay_listed_and_the_next_call_waits_for_it(
    laptop: Computer, agent: Peer, marker: str
) -> None:
    calls = [asyncio.create_task(agent.call_tool("laptop", "slow", 60, params={"steps": 600})) for _ in range(3)]
    await until(lambda: len(laptop.history) == 3)
    before = await tools(agent)
    with within(3):
        with within(1):
            for pid in pids_with(marker):
                os.kill(pid, signal.SIGKILL)
            answers = await asyncio.gather(*calls)
        assert all(answer["isError"] for answer in answers)
        assert laptop.status()["good"].state == "backoff"
        assert await tools(agent) == before
        assert await text(agent, "add", a=1, b=1) == "2"
    assert laptop.status()["good"].state == "ready"
    assert "notify:update_tool_list" not in [name for name, _ in await agent.heard_until_now()]


@pytest.mark.covers("supervise-isolation")
async def test_five_servers_that_misbehave_harm_none_of_the_five_that_do_not(host: Host, agent: Peer) -> None:
    computer = Computer("laptop", policy=SHORT_FAREWELL)
    fine = [f"fine{number}" for number in range(5)]
    computer.add_server({"name": "missing", "command": "/no/such/program"})
    for mode in ("exits", "hangs_at_initialize", "hangs_at_list", "updates"):
        computer.add_server(naughty(mode))
    for name in fine:
        computer.add_server(naughty("fine", name=name, tool_meta={"echo": {"alias": f"echo-{name}", **ALLOWED}}))
    with within(5):
        await host(computer, *fine)
    for _ in range(3):
        said = await asyncio.gather(*(text(agent, f"echo-{name}", of=name) for name in fine))
        assert all(name in each for name, each in zip(fine, said, strict=True))
    states = {name: status.state for name, status in computer.status().items()}
    assert "ready" not in {states[name] for name in ("exits", "hangs_at_initialize", "missing")}


@pytest.mark.covers("inputs-sources")
async def test_an_input_that_changes_restarts_exactly_the_servers_that_use_it(host: Host, marker: str) -> None:
    computer = Computer("laptop", values={"one": "first", "other": "first"})
    computer.define_inputs([{"type": "promptString", "id": id_, "description": ""} for id_ in ("one", "other")])
    uses = {"a": "${input:one}", "b": "${input:other}", "c": "x${input:one}x", "d": "nothing"}
    for name, value in uses.items():
        computer.add_server(naughty("fine", name=name, env={"MARKER": f"{marker}-{name}", "VALUE": value}))
    await host(computer, *uses)
    before = {name: pids_with(f"{marker}-{name}") for name in uses}
    await computer.inputs.set("one", "second")
    await until(lambda: all(pids_with(f"{marker}-{name}") not in ([], before[name]) for name in "ac"))
    await ready(computer, *uses)
    after = {name: pids_with(f"{marker}-{name}") for name in uses}
    assert [name for name in uses if after[name] != before[name]] == ["a", "c"]
    assert pids_with("VALUE=xsecondx") == after["c"]


@pytest.mark.covers("tools-names")
async def test_a_server_that_comes_later_never_takes_the_name_of_anothers_tool(laptop: Computer, agent: Peer) -> None:
    await laptop.put_server(good(name="aaa", default_tool_meta=ALLOWED))
    await ready(laptop, "aaa")
    assert {"add", "aaa__add"} <= await tools(agent)
    assert await owner(agent, "add") == "good"
    await laptop.stop("good")
    assert "add" not in await tools(agent)
    await laptop.start("good")
    assert await owner(agent, "add") == "good"
    await laptop.remove_server("good")
    assert await owner(agent, "add") == "aaa"


async def owner(agent: Peer, tool: str) -> str:
    """The MCP server whose tool is listed under this name."""
    listed = (await agent.request("client:get_tools", "laptop"))["tools"]
    return next(str(each["bundle_id"]) for each in listed if each["name"] == tool)
