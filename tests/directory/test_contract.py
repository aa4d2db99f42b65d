"""The directory of many nodes answers as the one in memory does: the same tests, on one node and across several."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from a2c_smcp.protocol import Change, Member, Office
from tests.core.test_offices import *  # noqa: F403, the tests of the contract
from tests.directory.nodes import Node


class Alternating:
    """Several nodes, each asked in turn."""

    def __init__(self, *nodes: Node) -> None:
        self._nodes = list(nodes)

    async def office(self, office_id: str) -> Office:
        return await self._next().office(office_id)

    async def seats(self, sid: str) -> tuple[Member, ...]:
        return await self._next().seats(sid)

    async def holder(self, instance: str) -> str | None:
        return await self._next().holder(instance)

    async def commit(self, change: Change) -> bool:
        return await self._next().commit(change)

    def _next(self) -> Node:
        self._nodes.append(self._nodes.pop(0))
        return self._nodes[0]


@pytest.fixture(params=["one node", "several nodes"])
async def directory(request: pytest.FixtureRequest, start: Callable[..., Awaitable[Node]]) -> object:
    if request.param == "one node":
        return await start()
    return Alternating(await start(), await start(), await start())
