"""Many clients that want the same seat at once, from several nodes."""

from __future__ import annotations

import asyncio

import pytest

from tests.nodes.processes import Cluster
from tests.stage.calls import sessions


@pytest.mark.covers("office-one-agent", "nodes-one-of-each")
async def test_one_of_thirty_agents_from_three_nodes_gets_the_office_at_a_time(shared: Cluster, office: str) -> None:
    agents = [await shared.connect(shared.nodes[i % 3]) for i in range(30)]
    join = {"role": "agent", "office_id": office}
    watcher = await shared.connect(shared.nodes[0], "computer", "watcher", office)
    for _ in range(2):
        joins = [each.ask("server:join_office", {**join, "name": f"agent-{i}"}) for i, each in enumerate(agents)]
        answers = await asyncio.gather(*joins)
        winners = [each for each, answer in zip(agents, answers, strict=True) if answer == (True, None)]
        assert len(winners) == 1
        refusals = [reason for accepted, reason in answers if not accepted]
        assert all(reason.startswith("403 Agent sid should be equal to office_id") for reason in refusals)
        name = f"agent-{agents.index(winners[0])}"
        await watcher.hears("notify:enter_office", agent=name)
        winners[0].name, winners[0].office = name, office
        assert {member["name"] for member in await sessions(winners[0])} == {name, "watcher"}
        assert await winners[0].ask("server:leave_office", {"office_id": office}) == (True, None)
        await watcher.hears("notify:leave_office", agent=name)
    entered = [data for event, data in await watcher.heard_until_now() if event == "notify:enter_office"]
    assert len(entered) == 2


@pytest.mark.covers("nodes-one-of-each")
async def test_one_of_many_computers_from_three_nodes_gets_a_name_at_a_time(shared: Cluster, office: str) -> None:
    computers = [await shared.connect(shared.nodes[i % 3]) for i in range(9)]
    join = {"role": "computer", "name": "laptop", "office_id": office}
    watcher = await shared.connect(shared.nodes[0], "agent", "planner", office)
    for _ in range(2):
        answers = await asyncio.gather(*(each.ask("server:join_office", join) for each in computers))
        winners = [each for each, answer in zip(computers, answers, strict=True) if answer == (True, None)]
        assert len(winners) == 1
        assert {reason[:3] for accepted, reason in answers if not accepted} == {"403"}
        await winners[0].close()
        computers.remove(winners[0])
        await watcher.hears("notify:leave_office", computer="laptop")
