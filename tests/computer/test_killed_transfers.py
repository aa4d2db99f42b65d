"""Processes that are killed in the middle of a transfer: it goes on, or ends with one error, and nothing stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.errors import BlobNotAccessible
from tests.computer.hosted import hosted
from tests.computer.servers.contents import binary
from tests.computer.transferring import (
    QUICK,
    SIZE,
    computer_in,
    offered,
    offering_computer,
    parts_in,
    sending_agent,
    spooled_in,
)
from tests.conftest import Hub
from tests.on_disk import content_of, names_in
from tests.ports import free_port
from tests.stage.agent import SOON
from tests.stage.worker import separate_server
from tests.waiting import until

pytestmark = pytest.mark.covers("transfers-resumed", "transfers-verified")


def in_the_middle(act: Callable[[], Any]) -> Callable[..., None]:
    """A callback for progress that acts once, when a third is done."""
    has_acted = False

    def report(done: float, total: float, message: object) -> None:
        nonlocal has_acted
        if not has_acted and done > total / 3:
            has_acted = True
            act()

    return report


async def test_a_server_that_is_killed_and_started_again_costs_no_byte(office: str, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(separate_server(port))
        await stack.enter_async_context(
            hosted(computer_in(tmp_path, office), url, office, tmp_path / "state", reconnect=SOON)
        )
        agent = AsyncSMCPAgentClient("planner", url=url, office=office, reconnect=SOON)
        await stack.enter_async_context(agent)
        handle = await offered(agent)

        async def during(begin: Callable[[Callable[..., None]], Any]) -> Any:
            nonlocal server
            transfer = asyncio.create_task(begin(in_the_middle(lambda: server.kill())))
            await server.wait()
            server = await stack.enter_async_context(separate_server(port))
            return await transfer

        await during(lambda report: agent.save_blob("laptop", handle, tmp_path / "fetched", report))
        assert content_of(tmp_path / "fetched") == binary(SIZE)
        landed = await during(lambda report: agent.put_bytes("laptop", binary(SIZE), None, report))
        assert content_of(landed) == binary(SIZE)
        assert parts_in(tmp_path) == []
        assert names_in(tmp_path / "landing") == [".a2c-upload", Path(landed).name]


async def test_a_computer_that_is_killed_ends_a_download_with_one_error_and_takes_an_upload_from_the_beginning(
    shared_hub: Hub, office: str, tmp_path: Path
) -> None:
    folder, state, url = tmp_path / "fetched", tmp_path / "state", shared_hub.url
    folder.mkdir()
    async with AsyncSMCPAgentClient("planner", url=url, office=office, reconnect=SOON) as agent:
        async with offering_computer(url, office, tmp_path) as computer:
            handle = await offered(agent)
            report = in_the_middle(computer.kill)
            fetching = asyncio.create_task(agent.save_blob("laptop", handle, folder / "file", report))
            await computer.wait()
        assert len(spooled_in(tmp_path)) == 1
        async with hosted(computer_in(tmp_path, office), url, office, state):
            assert spooled_in(tmp_path) == []
            with pytest.raises(BlobNotAccessible) as refused:
                await fetching
            assert refused.value.details["reason"] == "gone"
            assert names_in(folder) == []
        async with offering_computer(url, office, tmp_path) as computer:
            sending = asyncio.create_task(agent.put_bytes("laptop", binary(SIZE), None, in_the_middle(computer.kill)))
            await computer.wait()
        assert len(parts_in(tmp_path)) == 1
        async with hosted(computer_in(tmp_path, office), url, office, state):
            landed = await sending
            assert content_of(landed) == binary(SIZE)
            assert parts_in(tmp_path) == []


@pytest.mark.covers("blobs-bounded")
async def test_what_an_agent_that_is_killed_has_left_is_removed_after_its_age(
    shared_hub: Hub, office: str, tmp_path: Path
) -> None:
    (tmp_path / "fetched").mkdir()
    async with hosted(computer_in(tmp_path, office, QUICK), shared_hub.url, office, tmp_path / "state"):
        for which, left in (("put", parts_in), ("fetch", spooled_in)):
            async with sending_agent(shared_hub.url, office, tmp_path, which) as agent:
                agent.kill()
                await agent.wait()
            await until(lambda left=left: not left(tmp_path))
        assert names_in(tmp_path / "landing") == [".a2c-upload"]
    assert names_in(tmp_path / "fetched") == []
