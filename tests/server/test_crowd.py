"""Five hundred clients that all come at the same moment."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.peer import Wire

CROWD = 250
A_FEW_SECONDS = 120.0
"""A bound for a slow or busy machine: both ends of thirty thousand notices are in one process."""


@pytest.fixture(autouse=True)
def _enough_files() -> Iterator[None]:
    """Both ends of every connection are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8 * CROWD
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"needs {wanted} open files, the limit here is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted) if soft >= 0 else soft, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.covers("crowd")
async def test_five_hundred_clients_join_at_once_and_all_are_listed(serve: Any) -> None:
    hub = await serve()
    async with AsyncExitStack() as stack, asyncio.timeout(A_FEW_SECONDS):

        async def enter(role: str, name: str, office: str) -> Wire:
            wire = await Wire.connect(hub.url)
            stack.push_async_callback(wire.close)
            await wire.join(role, name, office)
            return wire

        together = [enter("computer", f"computer-{number}", "town hall") for number in range(CROWD)]
        apart = [enter("computer", "laptop", f"office-{number}") for number in range(CROWD - 1)]
        agent, *others = await asyncio.gather(enter("agent", "planner", "town hall"), *together, *apart)
        assert len(others) + 1 == 2 * CROWD
        assert hub.app.metrics.value("a2c_connections") == 2 * CROWD

        request = {"agent": "planner", "req_id": "1", "office_id": "town hall"}
        (room,) = await agent.ask(f"42/smcp,2{json.dumps(['server:list_room', request])}", 2)
        everybody = {"planner", *(f"computer-{number}" for number in range(CROWD))}
        assert {session["name"] for session in room["sessions"]} == everybody
        assert len({session["sid"] for session in room["sessions"]}) == len(room["sessions"]) == CROWD + 1

        # The last of them is as much there as the first.
        call = {"agent": "planner", "computer": f"computer-{CROWD - 1}", "req_id": "2", "office_id": "town hall"}
        asking = asyncio.create_task(agent.ask(f"42/smcp,3{json.dumps(['client:get_tools', call])}", 3))
        last = others[CROWD - 1]
        await last.send(f'43/smcp,{await last.asked("client:get_tools")}[{{"tools":[],"req_id":"2"}}]')
        assert await asking == [{"tools": [], "req_id": "2"}]
