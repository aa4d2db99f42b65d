"""The registry of an agent offers the resources and prompts of its computers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient, SMCPAgentClient
from a2c_smcp.errors import NotFound, Unavailable
from a2c_smcp.loops import LoopIsRunning, in_thread
from a2c_smcp.registry import MCPRegistry
from tests.computer.hosted import ready
from tests.peer import Peer
from tests.stage.library import CATALOGUE, computer_with_library
from tests.waiting import until

pytestmark = pytest.mark.covers("agent-registry-reads")


def uris(registry: MCPRegistry) -> list[str]:
    return [each["uri"] for each in registry.resources()]


def names(registry: MCPRegistry) -> list[str]:
    return [each["name"] for each in registry.prompts()]


async def read(kind: Any, agent: Any, uri: str) -> Any:
    registry = agent.registry
    found = await (
        registry.aread_resource(uri) if kind is AsyncSMCPAgentClient else in_thread(registry.read_resource, uri)
    )
    return found["contents"][0]


async def test_a_registry_reads_completes_and_watches_through_the_office(kind: Any, hosts: Any, planning: Any) -> None:
    computer = computer_with_library()
    async with hosts(computer):
        await ready(computer, "library")
        async with planning(kind) as agent:
            registry = agent.registry
            await until(lambda: uris(registry) == [CATALOGUE, "library://stamp"] and names(registry) == ["review"])
            assert [each["uriTemplate"] for each in registry.resource_templates()] == ["library://books/{title}"]
            assert (await read(kind, agent, CATALOGUE))["text"] == "Emma\nMoby-Dick\nWalden"
            assert (await read(kind, agent, "library://books/Emma"))["text"].startswith("Emma Woodhouse")
            prompt = await registry.aget_prompt("review", {"title": "Emma", "words": 7})
            assert prompt["messages"][0]["content"]["text"].startswith("Write a review of Emma in at most 7 words.")
            for reference in ("review", "library://books/{title}"):
                found = await registry.acomplete(reference, "title", "wal")
                assert found["completion"]["values"] == ["Walden"]
            with pytest.raises(LoopIsRunning, match="begins with `a`"):
                registry.read_resource(CATALOGUE)
            updates: list[str] = []
            stop = registry.watch_resource(CATALOGUE, updates.append)
            standing = agent.client._flows.reading.subscriptions.standing
            async with asyncio.timeout(60):
                while not updates:  # the registry does not say when it has subscribed
                    await agent.emit_tool_call("laptop", "lend", {"title": "Walden"})
            assert updates[0] == CATALOGUE
            stop()
            await until(lambda: standing.all() == [])
    assert uris(registry) == names(registry) == []


class Shelf:
    """A bare computer with one MCP server and lists that a test chooses."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.server: dict[str, Any] = {"name": "s", "bundle_id": "s", "state": "ready"}
        self.server["capabilities"] = {"resources": {}, "prompts": {}}
        self.lists: dict[str, list[Any]] = {"resources": [], "resource_templates": [], "prompts": []}
        peer.answers("client:get_tools", {"tools": [], "req_id": "x"})
        peer.answers("client:get_servers", lambda data: {"servers": [self.server], "req_id": "x"})
        peer.answers("client:read_resource", lambda data: {"contents": [{"uri": data["uri"], "text": peer.name}]})
        peer.answers("client:get_prompt", lambda data: {"messages": [], "description": data["name"]})
        for field in self.lists:
            self._gives(field)

    def _gives(self, field: str) -> None:
        self.peer.answers(f"client:get_{field}", lambda data: {field: list(self.lists[field]), "req_id": "x"})

    def offers(self, *own: str) -> None:
        self.lists["resources"] = [{"uri": f"x:{name}", "name": name, "mime_type": "text/plain"} for name in own]
        self.lists["prompts"] = [{"mcp_server": "s", "name": name} for name in own]

    async def announces(self, what: str) -> None:
        await self.peer.ask(f"server:update_{what}", {"computer": self.peer.name, "mcp_server": "s"})

    def asked(self, event: str) -> int:
        return sum(name == f"client:{event}" for name, _ in self.peer.asked)


@pytest.fixture
async def shelf(computer: Peer) -> Shelf:
    return Shelf(computer)


async def test_lists_are_kept_current_and_only_what_has_changed_is_asked_for(planning: Any, shelf: Shelf) -> None:
    shelf.offers("a")
    async with planning() as agent:
        registry = agent.registry
        registry.add_resource("x:own", "mine")
        await until(lambda: uris(registry) == ["x:own", "x:a"] or uris(registry) == ["x:a", "x:own"])
        assert registry.resources()[0].get("mimeType") == "text/plain"
        before = (shelf.asked("get_resources"), shelf.asked("get_prompts"))
        shelf.offers("a", "b")
        await shelf.announces("resource_list")
        await until(lambda: "x:b" in uris(registry))
        assert names(registry) == ["a"], "nobody said that the prompts have changed"
        await shelf.announces("prompts")
        await until(lambda: names(registry) == ["a", "b"])
        assert (shelf.asked("get_resources"), shelf.asked("get_prompts")) == (before[0] + 1, before[1] + 1)
        shelf.server["state"] = "stopped"
        asked = shelf.asked("get_servers")
        await shelf.announces("tool_list")
        await until(lambda: shelf.asked("get_servers") > asked)
        await agent.list_room()
        assert names(registry) == ["a", "b"], "a server that is asleep keeps them"
        shelf.server["state"] = "failed"
        await shelf.announces("tool_list")
        await until(lambda: uris(registry) == ["x:own"])
    assert uris(registry) == ["x:own"]


async def test_of_two_with_one_uri_or_name_the_second_gets_a_longer_one_and_each_keeps_its_own(
    planning: Any, shelf: Shelf, office: str, connect: Any
) -> None:
    shelf.offers("a")
    registry = MCPRegistry()
    async with planning(registry=registry) as agent:
        await until(lambda: uris(registry) == ["x:a"])
        tower = Shelf(await connect())
        tower.offers("a", "b")
        await tower.peer.join("computer", "tower", office)
        longer = "a2c://tower/s/x:a"
        await until(lambda: uris(registry) == ["x:a", longer, "x:b"] and names(registry) == ["a", "tower__a", "b"])
        assert (await read(AsyncSMCPAgentClient, agent, "x:a"))["text"] == "laptop"
        assert (await read(AsyncSMCPAgentClient, agent, longer))["text"] == "tower"
        assert (await registry.aget_prompt("tower__a"))["description"] == "a"
        await shelf.peer.close()
        await until(lambda: uris(registry) == [longer, "x:b"] and names(registry) == ["tower__a", "b"])
        cellar = Shelf(await connect())
        cellar.offers("a")
        await cellar.peer.join("computer", "cellar", office)
        await until(lambda: "a2c://cellar/s/x:a" in uris(registry) and "cellar__a" in names(registry))
        assert "x:a" not in uris(registry), "it was that of another computer"
        shelf = Shelf(await connect())
        shelf.offers("a")
        await shelf.peer.join("computer", "laptop", office)
        await until(lambda: "x:a" in uris(registry) and "a" in names(registry))
        assert (await read(AsyncSMCPAgentClient, agent, "x:a"))["text"] == "laptop"


async def test_it_can_be_switched_off_and_an_odd_computer_offers_nothing(planning: Any, shelf: Shelf) -> None:
    shelf.offers("a")
    async with planning(list_resources=False) as agent:
        await agent.list_room()
        assert (shelf.asked("get_servers"), uris(agent.registry)) == (0, [])
    shelf.lists["resources"] = [7, {"uri": 7}, {"uri": "x:good"}]
    shelf.peer.answers("client:get_prompts", "nonsense")
    shelf.server["capabilities"] = {"resources": None, "prompts": [], "completions": 7}
    async with planning() as agent:
        await until(lambda: uris(agent.registry) == ["x:good"])
        shelf.peer.answers("client:get_servers", None)
        await shelf.announces("config")
        await until(lambda: uris(agent.registry) == [])


async def test_what_was_listed_is_refused_clearly_when_its_agent_is_gone(
    shelf: Shelf, shared_hub: Any, office: str
) -> None:
    shelf.offers("a")
    client = SMCPAgentClient("planner", url=shared_hub.url, office=office)
    await in_thread(client.connect)
    await until(lambda: uris(client.registry) == ["x:a"])
    entry = next(iter(client.registry._offers.resources.values()))
    await in_thread(client.disconnect)
    with pytest.raises(NotFound):
        await client.registry.aread_resource("x:a")
    with pytest.raises(Unavailable):
        await in_thread(entry.read.call, {})
