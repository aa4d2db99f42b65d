"""Tags and hints of tools have no effect unless the agent trusts their computer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.registry import MCPRegistry, Policy, Retry, ToolFailed
from tests.agent.twins import at_work
from tests.computer.hosted import Relay
from tests.peer import Peer
from tests.waiting import until

PAY: dict[str, Any] = {
    "name": "pay",
    "description": "",
    "params_schema": {},
    "return_schema": None,
    "meta": {
        "a2c_tool_meta": json.dumps({"tags": ["safe"]}),
        "MCP_TOOL_ANNOTATION": json.dumps({"idempotentHint": True, "readOnlyHint": True}),
    },
}
FAILED = {"content": [{"type": "text", "text": "try again"}], "isError": True}
AT_ONCE = Retry(first_pause=0)


@pytest.fixture
def paid(computer: Peer) -> list[Any]:
    """The calls that reached the tool `pay`, which fails."""
    computer.answers("client:get_tools", {"tools": [PAY], "req_id": "x"})
    computer.answers("client:tool_call", lambda _: FAILED)
    return computer.asked


def calls(asked: list[Any]) -> int:
    return sum(event == "client:tool_call" for event, _ in asked)


@pytest.mark.covers("agent-registry")
@pytest.mark.parametrize(("trusted", "runs"), [((), 1), (["laptop"], 3)])
async def test_hints_allow_a_retry_only_for_trusted_computers(
    trusted: Any, runs: int, shared_hub: Any, office: str, paid: list[Any]
) -> None:
    registry = MCPRegistry(retry=AT_ONCE)
    where = {"url": shared_hub.url, "office": office}
    async with at_work(AsyncSMCPAgentClient, registry=registry, trusted_computers=trusted, **where) as agent:
        assert registry.describe("mcp")[0]["annotations"]["idempotentHint"] is True
        with pytest.raises(ToolFailed):
            await agent.use("pay")
    assert calls(paid) == runs


@pytest.mark.covers("agent-registry")
@pytest.mark.parametrize(
    ("policy", "trusted", "is_there"),
    [
        (Policy(allow_tags=["safe"]), (), False),
        (Policy(allow_tags=["safe"]), ["laptop"], True),
        (Policy(allow=["pay"]), (), True),
        (Policy(deny_tags=["safe"]), (), False),
    ],
)
async def test_tags_allow_a_tool_only_on_trusted_computers(
    policy: Policy, trusted: Any, is_there: bool, shared_hub: Any, office: str, paid: list[Any]
) -> None:
    registry = MCPRegistry(policy=policy)
    where = {"url": shared_hub.url, "office": office}
    async with at_work(AsyncSMCPAgentClient, registry=registry, trusted_computers=trusted, **where):
        assert ("pay" in registry) is is_there


@pytest.mark.covers("agent-registry", "tools-meta", "peer-tags")
async def test_tags_that_only_an_mcp_server_vouches_for_allow_nothing(
    shared_hub: Any, office: str, computer: Peer
) -> None:
    own = {**PAY, "meta": {**PAY["meta"], "a2c_tags_of_server": True}}
    computer.answers("client:get_tools", {"tools": [own, {**PAY, "name": "look"}], "req_id": "x"})
    registry = MCPRegistry(policy=Policy(allow_tags=["safe"]))
    where = {"url": shared_hub.url, "office": office}
    async with at_work(AsyncSMCPAgentClient, registry=registry, trusted_computers=["laptop"], **where):
        assert set(registry) == {"look"}


@pytest.mark.covers("agent-registry", "agent-rejoins")
async def test_an_outage_gives_the_name_of_a_tool_to_no_other_computer(
    shared_hub: Any, office: str, computer: Peer, connect: Any
) -> None:
    tower: Peer = await connect()
    for peer in (computer, tower):
        peer.answers("client:get_tools", {"tools": [PAY], "req_id": "x"})
    await tower.join("computer", "tower", office)
    relay = Relay(shared_hub.url)
    async with (
        relay.open() as line,
        at_work(AsyncSMCPAgentClient, url=line, office=office) as agent,
    ):
        await until(lambda: set(agent.registry) == {"pay", "tower__pay"})
        relay.close()
        await computer.ask("server:leave_office", {"office_id": office})
        relay.reopen()
        await until(lambda: set(agent.registry) == {"tower__pay"})
        await computer.join("computer", "laptop", office)
        await until(lambda: set(agent.registry) == {"pay", "tower__pay"})
        assert agent.registry["pay"].seat.computer == "laptop"
