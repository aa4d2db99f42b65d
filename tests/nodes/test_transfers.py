"""Files through several nodes, of which one is killed in the middle: not a byte is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from tests.computer.hosted import hosted
from tests.computer.servers.contents import binary
from tests.computer.transferring import SIZE, computer_in, offered, parts_in
from tests.nodes.conftest import Start
from tests.nodes.front import Front
from tests.nodes.processes import NodeProcess
from tests.on_disk import content_of
from tests.stage.agent import SOON

Transfer = Callable[[Callable[..., None]], Coroutine[Any, Any, Any]]


async def while_killing(node: NodeProcess, transfer: Transfer) -> Any:
    """The outcome of a transfer, of which a third is done when the node is killed."""
    is_due = asyncio.Event()

    def report(done: float, total: float, message: object) -> None:
        if done > total / 3:
            is_due.set()

    going = asyncio.create_task(transfer(report))
    await is_due.wait()
    await node.kill()
    return await going


@pytest.mark.covers("transfers-resumed", "transfers-verified", "nodes-killed")
async def test_a_transfer_goes_on_when_the_node_of_either_side_dies(start: Start, office: str, tmp_path: Path) -> None:
    one, two, three = await start(3)
    computer = computer_in(tmp_path, office)
    async with (
        Front([one, three]) as agents,
        Front([two, three]) as computers,
        hosted(computer, computers.url, office, tmp_path / "state"),
        AsyncSMCPAgentClient("planner", url=agents.url, office=office, reconnect=SOON) as agent,
    ):
        assert (agents.carries(one), computers.carries(two)) == (1, 1)
        handle = await offered(agent)
        target = tmp_path / "fetched"
        await while_killing(two, lambda report: agent.save_blob("laptop", handle, target, report))
        assert content_of(target) == binary(SIZE)
        assert (agents.carries(one), computers.carries(three)) == (1, 1)
        landed = await while_killing(one, lambda report: agent.put_bytes("laptop", binary(SIZE), None, report))
        assert content_of(landed) == binary(SIZE)
        assert agents.carries(three) == 1
        assert parts_in(tmp_path) == []
