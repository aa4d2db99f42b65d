"""Versions of offices, in memory, on one node and across several. `test_machine.py` compares everything else."""

from __future__ import annotations

from typing import Any

import pytest

from a2c_smcp.protocol.offices import Change, Member
from a2c_smcp.server.cluster.memory import MemoryDirectory
from a2c_smcp.server.seating import Offices
from tests.directory.nodes import Node, Start


class Alternating:
    """Several nodes, each asked in turn."""

    def __init__(self, *nodes: Node) -> None:
        self._nodes = list(nodes)

    def __getattr__(self, name: str) -> Any:
        self._nodes.append(self._nodes.pop(0))
        return getattr(self._nodes[0], name)


@pytest.fixture(params=["memory", "one node", "several nodes"])
async def directory(request: pytest.FixtureRequest, start: Start) -> Any:
    if request.param == "memory":
        return MemoryDirectory()
    return await start() if request.param == "one node" else Alternating(*[await start() for _ in range(3)])


@pytest.mark.covers("office-refused-unchanged")
async def test_a_version_never_comes_back_while_anybody_could_be_meant_by_it(directory: Any) -> None:
    laptop, offices = Member("c1", "computer", "laptop", "north", instance="i2"), Offices(directory)
    await offices.join(laptop)
    stale = Change({"north": (await directory.office("north")).version}, leaves=(laptop,))
    await offices.leave("c1", "north")
    await offices.join(laptop)
    assert await directory.commit(stale) is False
    assert await directory.seats("c1") == (laptop,)
