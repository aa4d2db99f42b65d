"""Servers by name and by bundle id: in what agents are sent, and in what they ask for."""

from __future__ import annotations

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import ConfigError, ServerNotFound
from tests.computer.hosted import Host
from tests.computer.supervised import good, quick
from tests.peer import Peer

pytestmark = pytest.mark.covers("peer-bundle-ids")

IDLE = {"type": "streamable", "server_parameters": {"url": "https://h.example/mcp"}, "disabled": True}


@pytest.fixture
async def laptop(host: Host) -> Computer:
    """One server runs; the others are only configured."""
    computer = Computer("laptop", policy=quick())
    computer.add_server(good(name="skill srv!"))
    computer.add_server({**IDLE, "name": "数据"})
    computer.add_server({**IDLE, "name": "other", "bundle_id": "skill_srv"})
    computer.tool(lambda: "hello", name="greet", auto_apply=True)
    await host(computer, "skill srv!")
    return computer


@pytest.mark.covers("002-get_tools", "002-get_config", "9-set_log_level")
async def test_servers_have_bundle_ids_that_are_valid_and_their_names(laptop: Computer, agent: Peer) -> None:
    tools = {each["name"]: each for each in (await agent.request("client:get_tools", "laptop"))["tools"]}
    assert (tools["add"]["bundle_id"], tools["add"]["mcp_server"]) == ("skill_srv", "skill srv!")
    assert (tools["greet"]["bundle_id"], tools["greet"]["mcp_server"]) == ("python", "python")

    servers = (await agent.request("client:get_config", "laptop"))["servers"]
    assert {name: (each["name"], each["bundle_id"]) for name, each in servers.items()} == {
        "skill srv!": ("skill srv!", "skill_srv"),
        "数据": ("数据", "bundle_d332ac141405425b"),
        "other": ("other", "skill_srv-2"),
    }
    (warning,) = laptop.warnings
    assert warning.startswith("server 'other': its bundle id is 'skill_srv-2'")

    for server in ("skill srv!", "skill_srv", "bundle_d332ac141405425b"):
        asked = await agent.request("client:set_log_level", "laptop", mcp_server=server, level="error")
        assert asked.keys() == {"req_id"}, asked
    assert (await agent.request("client:set_log_level", "laptop", mcp_server="skill", level="error"))["code"] == 404


async def test_a_bundle_id_moves_on_when_its_server_is_removed_and_agents_are_told(
    laptop: Computer, agent: Peer
) -> None:
    await laptop.put_server({**good(name="good").model_dump(), "bundle_id": "skill_srv"})
    await laptop.remove_server("skill srv!")
    with pytest.raises(ServerNotFound):
        await laptop.remove_server("skill_srv")
    await agent.hears("notify:update_tool_list")
    assert {each["bundle_id"] for each in laptop.get_tools()} == {"skill_srv-2", "python"}
    await laptop.remove_server("other")
    assert {each["bundle_id"] for each in laptop.get_tools()} == {"skill_srv", "python"}
    assert laptop.warnings == []


@pytest.mark.parametrize("bundle_id", ["", "a__b", "a b", "数据", 7, "${input:x}"])
def test_a_wrong_bundle_id_is_refused_with_its_field(bundle_id: object) -> None:
    with pytest.raises(ConfigError) as refused:
        Computer("laptop").add_server({**IDLE, "name": "s", "bundle_id": bundle_id})
    assert refused.value.details["fields"] == ["bundle_id"]
