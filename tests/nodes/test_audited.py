"""Audit files of nodes that are killed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from a2c_smcp.audit.reading import EntryFilter, entries
from tests.nodes.conftest import Start
from tests.nodes.processes import Cluster
from tests.server.test_calls import Gate

TOOL = "client:tool_call"
DONE = {"content": [{"type": "text", "text": "3"}], "isError": False}
SECRETS = {role: f"a-secret-of-the-{role}" for role in ("agent", "computer")}


@pytest.mark.covers("nodes-killed")
@pytest.mark.parametrize("size", [10, 20_000], ids=["small", "large"])
@pytest.mark.parametrize("back_on", ["n2", "n3"])
async def test_an_answer_that_found_the_node_of_its_agent_killed_is_recorded_where_the_agent_asks_again(
    start: Start, office: str, back_on: str, size: int
) -> None:
    nodes = await start(3, is_audited=True)
    one, two, _ = nodes.nodes
    agent = await nodes.connect(one, "agent", "planner", office, instance=SECRETS["agent"])
    computer = await nodes.connect(two, "computer", "laptop", office, instance=SECRETS["computer"])
    gate = Gate(DONE)
    computer.answers(TOOL, gate)
    call: dict[str, Any] = {"req_id": "r1", "timeout": 30, "params": {"text": "a" * size}}
    lost = asyncio.create_task(agent.call_tool("laptop", **call))
    await computer.was_asked(TOOL)
    await one.kill()
    lost.cancel()
    gate.open()
    await computer.ask("server:update_tool_list", {"computer": "laptop"})  # its node has the answer now
    agent = await nodes.connect(nodes.nodes[int(back_on[1]) - 1])
    await agent.join("agent", "planner", office, instance=SECRETS["agent"])
    for _ in range(2):
        assert await agent.call_tool("laptop", **call, sent_before=True) == DONE
    assert {name: recorded(nodes, name) for name in ("n1", "n2", "n3")} == {
        "n1": [],
        "n2": [],
        "n3": [],
        back_on: [("r1", "add", "ok")],
    }


def recorded(nodes: Cluster, name: str) -> list[tuple[str, str, str]]:
    found = entries(nodes.audit_of(name), EntryFilter({"event": "call"}))
    return [(entry["req_id"], entry["tool"], entry["outcome"]) for entry in found]
