"""Calls in outages of the store: one line each in the audit files, whatever is sent again, and no failure too many."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.audit.reading import EntryFilter, entries
from tests.computer.hosted import hosted
from tests.nodes.conftest import SECRET, Start
from tests.nodes.processes import QUICK, Cluster
from tests.peer import Peer
from tests.stage.agent import SOON
from tests.stage.calls import RESULT
from tests.stage.worker import Worker
from tests.valkey import Valkey, running_valkey
from tests.waiting import until

pytestmark = pytest.mark.covers("audit-outages")


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    """One that the test may hurt."""
    with running_valkey() as valkey:
        yield valkey


def lines(nodes: Cluster) -> list[dict[str, Any]]:
    files = [nodes.audit_of(node.name) for node in nodes]
    return [entry for file in files for entry in entries(file, EntryFilter({"event": "call"}))]


@pytest.mark.parametrize("place", ["near", "far"])
async def test_calls_that_are_sent_again_in_an_outage_have_one_line_each(
    valkey: Valkey, start: Start, office: str, tmp_path: Path, place: str
) -> None:
    one, two = nodes = await start(2, is_audited=True)
    worker = Worker()
    worker.go.set()
    async with (
        hosted(worker.computer, (one if place == "near" else two).url, office, tmp_path),
        AsyncSMCPAgentClient("planner", url=one.url, office=office, reconnect=SOON) as agent,
    ):
        await agent.emit_tool_call("laptop", "work", {"number": 0}, 30)
        valkey.kill()
        await one.until_it_is("degraded")
        calls = [
            asyncio.create_task(agent.emit_tool_call("laptop", "work", {"number": number}, 60))
            for number in range(1, 11)
        ]
        await asyncio.sleep(QUICK.lease + 2)  # for how long it is away: longer than leases, and some attempts
        valkey.start()
        assert [(await call).text for call in calls] == [str(number) for number in range(1, 11)]
        await until(lambda: len(lines(nodes)) >= 11)
    await asyncio.gather(*(node.drain() for node in nodes))
    assert [line["outcome"] for line in lines(nodes)] == ["ok"] * 11
    assert len({line["req_id"] for line in lines(nodes)}) == 11


async def test_a_call_that_is_not_sent_again_has_one_line_and_says_that_it_was_not_run(
    valkey: Valkey, start: Start, office: str
) -> None:
    (one,) = nodes = await start(1, is_audited=True)
    agent = await nodes.connect(one, "agent", "planner", office, instance=SECRET)
    computer: Peer = await nodes.connect(one, "computer", "laptop", office, instance=SECRET)
    computer.answers("client:tool_call", RESULT)
    assert await agent.call_tool("laptop", req_id="r0") == RESULT
    valkey.kill()
    answer: Any = RESULT
    number = 0
    async with asyncio.timeout(60):
        while answer == RESULT:
            number += 1
            answer = await agent.call_tool("laptop", req_id=f"r{number}")
    assert (answer["code"], answer["details"]["outcome"]) == (503, "not_run")
    for _ in range(3):
        again = await agent.call_tool("laptop", req_id=f"r{number}")
        assert (again["code"], again["details"]["outcome"]) == (503, "not_run")
    await until(lambda: len(lines(nodes)) == number + 1)
    last = lines(nodes)[-1]
    assert (last["req_id"], last["outcome"], last["ran"]) == (f"r{number}", "unavailable", "not_run")
