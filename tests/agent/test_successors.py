"""Another client takes the name of a computer that was lost: nothing that an agent meant for the one before is its."""

from __future__ import annotations

import json
from typing import Any

import pytest

from a2c_smcp.registry import MCPRegistry, Policy
from tests.peer import Peer
from tests.stage.agent import Line, Twin
from tests.waiting import until

STANDING = ("client:subscribe_resource", "client:set_log_level")
SECRET = "file:///home/ann/divorce.md"
ANN = {"instance": "the-instance-of-ann"}
LOOK: dict[str, Any] = {
    "name": "look",
    "description": "",
    "params_schema": {},
    "return_schema": None,
    "meta": {"a2c_tool_meta": json.dumps({"tags": ["safe"]})},
}


class Heard:
    def __init__(self) -> None:
        self.all: list[Any] = []

    def on_log(self, computer: str, log: dict[str, Any], office: str) -> None:
        self.all.append(log["data"])

    def on_resource_updated(self, computer: str, server: str, uri: str, office: str) -> None:
        self.all.append(uri)


@pytest.fixture
def enters(connect: Any, office: str) -> Any:
    """A computer called `laptop`, in the test's office: `await enters(**instance)`."""

    async def enter(**instance: str) -> Peer:
        peer: Peer = await connect()
        peer.answers("client:get_tools", {"tools": [LOOK], "req_id": "x"})
        for event in STANDING:
            peer.answers(event, lambda data: {"req_id": data["req_id"]})
        await peer.join("computer", "laptop", office, **instance)
        return peer

    return enter


async def speaks(peer: Peer) -> None:
    """Tells, and announces what may let the agent try again."""
    await peer.ask("server:tell_log", {"agent": "planner", "mcp_server": "notes", "level": "info", "data": "trust me"})
    await peer.ask("server:tell_resource", {"agent": "planner", "mcp_server": "notes", "uri": SECRET})
    await peer.ask("server:update_tool_list", {"computer": "laptop"})
    await peer.ask("server:update_resource_list", {"computer": "laptop"})


async def leaves(peer: Peer, office: str) -> None:
    await peer.ask("server:leave_office", {"office_id": office})


def told(peer: Peer) -> list[str]:
    return [event for event, _ in peer.asked if event in STANDING]


@pytest.mark.covers("seat-standing", "agent-subscribes", "agent-logs")
@pytest.mark.parametrize("other", [{"instance": "the-instance-of-eve"}, {}], ids=["instance", "none"])
@pytest.mark.parametrize("is_named", [True, False], ids=["office", "any"])
@pytest.mark.parametrize("is_away", [False, True], ids=["here", "away"])
async def test_what_is_subscribed_at_a_computer_is_sent_to_no_other_of_its_name(
    planning: Any, relay: Line, office: str, enters: Any, other: dict[str, str], is_named: bool, is_away: bool
) -> None:
    before, heard = await enters(**ANN), Heard()
    where = {"office": office} if is_named else {}
    async with planning(url=relay.url, event_handler=heard) as agent:
        await agent.subscribe_resource("laptop", "notes", SECRET, **where)
        await agent.set_log_level("laptop", "debug", "notes", **where)
        if is_away:
            await relay.lose(agent)
        await leaves(before, office)
        after = await enters(**other)
        if is_away:
            relay.reopen()
        await after.was_asked("client:get_tools")
        standing = agent.client._flows.reading.subscriptions.standing, agent.client._flows.logs
        for each in standing:
            each._renew_all()  # as after ten minutes
        await speaks(after)
        await after.was_asked("client:get_tools", 2)
        await until(lambda: all(len(each._refused) == 1 for each in standing))
        await speaks(after)
        await agent.list_room()
        assert told(after) == []
        assert heard.all == []
        await leaves(after, office)
        again = await enters(**ANN)
        for event in STANDING:
            await again.was_asked(event)
        await speaks(again)
        await until(lambda: sorted(heard.all) == [SECRET, "trust me"])


@pytest.mark.covers("seat-standing", "agent-subscribes")
async def test_a_new_subscription_at_the_next_computer_of_the_name_is_for_that_one(
    planner: Twin, office: str, enters: Any
) -> None:
    before = await enters(**ANN)
    updates: list[str] = []
    await until(lambda: planner.computers)
    await planner.subscribe_resource("laptop", "notes", SECRET, on_update=updates.append)
    await leaves(before, office)
    after = await enters()
    await after.was_asked("client:get_tools")
    await planner.subscribe_resource("laptop", "notes", "file:///public", on_update=updates.append)
    await after.ask("server:tell_resource", {"agent": "planner", "mcp_server": "notes", "uri": "file:///public"})
    await until(lambda: updates == ["file:///public"])
    assert [data["uri"] for data in await after.was_asked("client:subscribe_resource")] == ["file:///public"]


@pytest.mark.covers("seat-standing", "agent-registry")
@pytest.mark.parametrize("agent_is", ["here", "away", "back before it"])
async def test_a_name_is_trusted_for_the_computer_that_had_it_first(
    planning: Any, relay: Line, office: str, enters: Any, agent_is: str
) -> None:
    before, registry = await enters(**ANN), MCPRegistry(policy=Policy(allow_tags=["safe"]))
    async with planning(url=relay.url, registry=registry, trusted_computers=["laptop"]) as agent:
        assert "look" in registry
        if agent_is != "here":
            await relay.lose(agent)
        await leaves(before, office)
        if agent_is == "back before it":
            relay.reopen()
            await until(lambda: agent.is_connected)
            await agent.list_room()
        after = await enters(instance="the-instance-of-eve")
        if agent_is == "away":
            relay.reopen()
        await after.was_asked("client:get_tools")
        await until(lambda: "look" not in registry)
        assert agent.computers
        await speaks(after)
        await after.was_asked("client:get_tools", 2)
        await agent.list_room()
        assert "look" not in registry
        await leaves(after, office)
        await enters(**ANN)
        await until(lambda: "look" in registry)


@pytest.mark.covers("seat-standing")
async def test_a_request_for_a_seat_goes_to_no_other_computer_however_often_the_name_is_asked(
    connect: Any, office: str, enters: Any
) -> None:
    """By hand, so that the Server alone decides: its route of the name is known, with and without an office."""
    agent, computer = await connect(), await enters()
    await agent.join("agent", "planner", office)
    room = await agent.ask("server:list_room", {"agent": "planner", "req_id": "r", "office_id": office})
    (seat,) = (member["seat"] for member in room["sessions"] if member["role"] == "computer")
    wish = {"mcp_server": "notes", "uri": SECRET}
    for where in ({}, {"office_id": office}):
        for is_meant in (None, False, True, False, True):
            wanted = {} if is_meant is None else {"seat": seat if is_meant else "0" * 32}
            answer = await agent.request("client:subscribe_resource", "laptop", **wish, **where, **wanted)
            assert answer.get("error", {}).get("code") == (404 if is_meant is False else None)
        for odd in (7, "", {}):
            refused = await agent.request("client:subscribe_resource", "laptop", **wish, **where, seat=odd)
            assert refused["error"]["code"] == 400, odd
    assert len(told(computer)) == 6
