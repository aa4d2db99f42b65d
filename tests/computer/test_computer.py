"""A whole Computer: real MCP servers, a real Server, and a raw client that plays the agent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from tests.computer.hosted import Host, ready
from tests.computer.supervised import good
from tests.peer import Peer
from tests.waiting import until


@pytest.fixture
async def laptop(host: Host) -> Computer:
    """A computer with an MCP server and a Python function, in the test's office."""
    computer = Computer("laptop")
    computer.add_server(good(default_tool_meta={"auto_apply": True}))

    @computer.tool(auto_apply=True)
    def greet(name: str) -> str:
        """Greet somebody."""
        return f"hello {name}"

    await host(computer, "good")
    return computer


async def call(agent: Peer, tool: str, params: dict[str, Any], **more: Any) -> Any:
    return await agent.call_tool("laptop", tool, **{"timeout": 10, **more}, params=params)


@pytest.mark.covers("computer-serves")
async def test_an_agent_sees_and_calls_the_tools_of_servers_and_functions(laptop: Computer, agent: Peer) -> None:
    tools = {tool["name"]: tool for tool in (await agent.request("client:get_tools", "laptop"))["tools"]}
    assert {"add", "slow", "greet"} <= tools.keys()
    assert (await call(agent, "add", {"a": 2, "b": 3}))["content"][0]["text"] == "5"
    assert (await call(agent, "greet", {"name": "world"}))["content"][0]["text"] == "hello world"
    assert [record["tool"] for record in laptop.history] == ["add", "greet"]


@pytest.mark.covers("computer-serves", "tools-arguments")
async def test_wrong_calls_are_refused_with_their_code(laptop: Computer, agent: Peer) -> None:
    assert (await call(agent, "nothing", {}))["code"] == 404
    answer = await call(agent, "add", {"a": "x"})
    assert answer["code"] == 400
    assert {error["path"] for error in answer["details"]["errors"]} >= {"/a"}
    assert (await agent.request("client:newer", "laptop"))["code"] == 400


@pytest.mark.covers("computer-approval")
async def test_a_tool_without_auto_apply_is_refused_if_the_owner_cannot_be_asked(laptop: Computer, agent: Peer) -> None:
    laptop.tool(lambda: "asks", name="asks")
    answer = await call(agent, "asks", {})
    assert answer["code"] == 403
    assert "auto_apply" in answer["message"]


@pytest.mark.covers("computer-cancel", "computer-dedup")
async def test_a_cancel_stops_a_running_tool_and_the_server_lives_on(laptop: Computer, agent: Peer) -> None:
    running = asyncio.create_task(call(agent, "slow", {"steps": 600, "pause": 0.1}, req_id="r1", timeout=120))
    await until(lambda: bool(laptop.history))
    await agent.ask("server:tool_call_cancel", {"agent": "planner", "req_id": "r1"})
    answer = await running
    assert (answer["code"], answer["_meta"]["a2c_cancelled"]) == (499, True)
    assert (await call(agent, "add", {"a": 1, "b": 1}))["content"][0]["text"] == "2"


@pytest.mark.covers("computer-serves", "desktop-organize")
async def test_an_agent_sees_the_desktop(laptop: Computer, agent: Peer) -> None:
    await laptop.put_server(good(desktop="any", default_tool_meta={"auto_apply": True}))
    await ready(laptop, "good")
    answer = await agent.request("client:get_desktop", "laptop")
    assert answer["desktops"][0] == "window://good/one?priority=5\n\nfirst"
    assert len((await agent.request("client:get_desktop", "laptop", desktop_size=1))["desktops"]) == 1
    assert (await agent.request("client:get_desktop", "laptop", window="window://good/none"))["desktops"] == []


@pytest.mark.covers("tools-names")
async def test_clashing_names_are_logged_once_after_all_servers_have_started_and_not_when_they_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    computer = Computer("laptop")
    for name in ("one", "two", "three"):
        computer.add_server(good(name=name))
    async with computer:
        await computer.start()
        told = [record.message for record in caplog.records if "is listed as" in record.message]
        assert len([each for each in told if "tool 'add'" in each]) == 2
        assert all("because server 'one' has" in each for each in told)
        await computer.stop("one")
        await computer.start("one")
        await computer.stop()
        await computer.start()
        caplog.clear()
    assert [record.message for record in caplog.records if "is listed as" in record.message] == []


@pytest.mark.covers("peer-windows", "002-get_desktop")
async def test_a_window_moves_up_when_its_server_annotates_it(laptop: Computer, agent: Peer) -> None:
    async def order() -> list[str]:
        desktops = (await agent.request("client:get_desktop", "laptop"))["desktops"]
        return [desktop.partition("\n")[0] for desktop in desktops]

    one, two = "window://good/one?priority=5", "window://good/two"
    assert await order() == [one, two]
    await call(agent, "open_window", {"uri": two, "text": "second", "priority": 0.5})
    await agent.hears("notify:update_desktop", computer="laptop")
    assert await order() == [two, one]
