"""Audit files of nodes that are killed."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from a2c_smcp.audit.reading import EntryFilter, entries
from tests.nodes.conftest import SECRET, Start
from tests.nodes.processes import Cluster
from tests.stage.calls import RESULT, Gate

TOOL = "client:tool_call"


@pytest.mark.covers("nodes-killed")
@pytest.mark.parametrize("size", [10, 20_000], ids=["small", "large"])
@pytest.mark.parametrize("back_on", ["n2", "n3"])
@pytest.mark.parametrize("is_told", [False, True], ids=["", "told"])
async def test_an_answer_that_found_the_node_of_its_agent_killed_is_recorded_where_the_agent_asks_again(
    start: Start, office: str, back_on: str, size: int, is_told: bool
) -> None:
    """Also if the answer was on its way into that node, which did not come to read it (`is_told`)."""
    one, two, _ = nodes = await start(3, is_audited=True)
    agent = await nodes.connect(one, "agent", "planner", office, instance=SECRET)
    computer = await nodes.connect(two, "computer", "laptop", office, instance=SECRET)
    gate = Gate()
    computer.answers(TOOL, gate)
    call: dict[str, Any] = {"req_id": "r1", "timeout": 30, "params": {"text": "a" * size}}
    lost = asyncio.create_task(agent.call_tool("laptop", **call))
    await computer.was_asked(TOOL)
    if is_told:
        one.signal(signal.SIGSTOP)
    else:
        await one.kill()
    lost.cancel()
    gate.open()
    await computer.ask("server:update_tool_list", {"computer": "laptop"})  # its node has the answer now
    if is_told:
        await one.kill()
    agent = await nodes.connect(nodes.nodes[int(back_on[1]) - 1], "agent", "planner", office, instance=SECRET)
    for _ in range(2):
        assert await agent.call_tool("laptop", **call, sent_before=True) == RESULT
    once = {"n1": [], "n2": [], "n3": [], back_on: [("r1", "add", "ok")]}
    assert {name: recorded(nodes, name) for name in ("n1", "n2", "n3")} == once


def recorded(nodes: Cluster, name: str) -> list[tuple[str, str, str]]:
    found = entries(nodes.audit_of(name), EntryFilter({"event": "call"}))
    return [(entry["req_id"], entry["tool"], entry["outcome"]) for entry in found]
