"""Our Computer as published peers see it: names of servers, pick lists, tools and marks, in forms that they read."""

from __future__ import annotations

import asyncio
import sys
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from a2c_smcp.computer.computer import Computer
from tests.computer.hosted import hosted, ready
from tests.computer.supervised import SERVERS
from tests.interop.conftest import a_server, call, driven, peer_command, published_agent
from tests.interop.driver import Driver, PeerFailed

PEERS = Path(__file__).with_name("peers")
BARE = str(SERVERS / "scripted.py")
"""An MCP server that has tools and nothing to read."""
OFFICE = "studio"
INPUTS = [
    {"type": "pickString", "id": "stage", "options": ["dev", "prod"], "default": "dev"},
    {"type": "pickString", "id": "region", "options": ["eu", {"label": "America", "value": "us"}]},
    {"type": "promptString", "id": "key", "description": "API key", "password": True, "default": "never shown"},
]
OPTIONS: dict[str, dict[str, list[Any]]] = {
    "0.4.2": {
        "stage": [{"label": "dev", "value": "dev"}, {"label": "prod", "value": "prod"}],
        "region": [{"label": "eu", "value": "eu"}, {"label": "America", "value": "us"}],
    },
    "ours": {"stage": ["dev", "prod"], "region": [{"label": "eu", "value": "eu"}, {"label": "America", "value": "us"}]},
}
"""By Server, what an agent reads: 0.4.2 passes on options with labels only, 0.1.2 no configuration at all."""
MAKES = ("ours", "0.1.2", "0.4.2")
SCRIPTED = {"plain", "long", "maybe", "heard"}
NOTES = "window://org.example.desk/notes?priority=50"

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.covers("interop-0.1.2", "interop-0.4.2", "computer-serves"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=MAKES)
async def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[str, Driver]]:
    """A Server, our Computer and a published agent in one office. Returns the make of the Server, and the agent."""
    make, folder = request.param, tmp_path_factory.mktemp("world")
    computer = Computer("laptop")
    program, *words = peer_command("0.4.2", "mcp_server.py")
    command = {"command": program, "args": words}
    computer.add_server(
        {"name": "my desk!", "server_parameters": command, "default_tool_meta": {"auto_apply": True, "tags": ["a"]}}
    )
    computer.add_server({"name": "bare", "server_parameters": {"command": sys.executable, "args": [BARE, "older"]}})
    computer.define_inputs(INPUTS)
    async with (
        a_server(make, folder, key=None) as url,
        hosted(computer, url, OFFICE, folder),
        driven(published_agent("0.1.2" if make == "0.1.2" else "0.4.2", url, OFFICE), folder) as (agent, _),
    ):
        await ready(computer, "my desk!", "bare")
        await agent.ask("join")
        yield make, agent


@pytest.mark.covers("peer-config", "peer-bundle-ids")
async def test_a_published_agent_reads_our_configuration_with_pick_lists(world: tuple[str, Driver]) -> None:
    make, agent = world
    config = await agent.ask("get_config", computer="laptop")
    if make == "0.1.2":
        assert config is None
        return
    names = {name: (server["name"], server["bundle_id"]) for name, server in config["servers"].items()}
    assert names == {"my desk!": ("my desk!", "my_desk"), "bare": ("bare", "bare")}
    inputs = {each["id"]: each for each in config["inputs"]}
    assert {name: inputs[name]["options"] for name in ("stage", "region")} == OPTIONS[make]
    assert inputs["stage"]["default"] == "dev"
    assert "never shown" not in str(config)


@pytest.mark.covers("peer-bundle-ids")
async def test_a_published_agent_reads_our_tools_with_valid_bundle_ids(world: tuple[str, Driver]) -> None:
    make, agent = world
    tools = (await agent.ask("get_tools", computer="laptop"))["tools"]
    mine = {tool["name"]: tool.get("bundle_id") for tool in tools if tool["name"] not in SCRIPTED}
    bundle_id = None if make == "0.1.2" else "my_desk"
    assert mine == dict.fromkeys(("add", "slow", "note", "picture"), bundle_id)
    assert (await call(agent, "add", a=1, b=2))["content"][0]["text"] == "3"


@pytest.mark.covers("peer-marks", "calls-cancel")
async def test_a_published_agent_is_told_why_a_call_ended(world: tuple[str, Driver]) -> None:
    make, agent = world
    running = agent.begin(
        "tool_call", computer="laptop", tool="slow", params={"seconds": 60}, timeout=60, tag=(tag := uuid4().hex)
    )
    await agent.hears("calling", tag=tag)
    await agent.ask("cancel", tag=tag)
    cancelled = await asyncio.wait_for(running, 20)
    assert cancelled["isError"]
    assert cancelled["_meta"] == {"a2c_cancelled": True, "a2c_cancel_reason": "agent_requested"}
    if make == "ours":  # published Servers do not wait for the computer, which answers at the deadline
        slow = {"agent": "planner", "req_id": uuid4().hex, "computer": "laptop", "tool_name": "slow", "timeout": 1}
        late = await agent.ask("call", event="client:tool_call", data={**slow, "params": {"seconds": 60}})
        assert (late["isError"], late["_meta"]) == (True, {"a2c_timeout": True})
        assert "slow" in late["content"][0]["text"]


@pytest.mark.covers("9-get_resources", "peer-errors")
async def test_a_published_agent_lists_our_resources_by_either_name_of_a_server(world: tuple[str, Driver]) -> None:
    make, agent = world
    if make == "0.1.2":  # whose generation has no such request
        return
    for server in ("my_desk", "my desk!"):
        page = await agent.ask("get_resources", computer="laptop", mcp_server=server)
        assert [(each["uri"], each["name"]) for each in page["resources"]] == [(NOTES, "notes")]
    for server, code in {"nothing": "4014", "bare": "4015", "x" * 200: "4014"}.items():
        with pytest.raises(PeerFailed) as refused:
            await agent.ask("get_resources", computer="laptop", mcp_server=server)
        kind, message = refused.value.args
        assert (kind, code in message) == ("SMCPProtocolError", True), refused.value.args


@pytest.mark.covers("9-get_blob", "interop-0.4.2", "limit-message")
@pytest.mark.parametrize("size", [100_000, 1_500_000])
async def test_a_published_agent_gets_a_picture_whole(world: tuple[str, Driver], size: int) -> None:
    """Published Servers drop the connection of a computer that sends more than a million bytes at once."""
    make, agent = world
    result = await call(agent, "picture", size=size)
    if make == "0.1.2" and size > 1_000_000:  # its agents cannot fetch what is moved
        assert result["content"][0]["data"] == ""
    else:
        assert b64decode(result["content"][0]["data"]) == bytes(size)
    assert (await call(agent, "add", a=1, b=2))["content"][0]["text"] == "3"


@pytest.mark.covers("002-get_desktop")
async def test_a_published_agent_sees_our_desktop(world: tuple[str, Driver]) -> None:
    _, agent = world
    assert (await call(agent, "note", text="done"))["content"][0]["text"] == "noted"
    assert (await agent.ask("get_desktop", computer="laptop"))["desktops"] == [f"{NOTES}\n\ndone"]
