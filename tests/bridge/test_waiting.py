"""A call of an MCP client that waits for a person: the client is told so as progress, and why nothing was run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer import Computer
from tests.computer.hosted import hosted
from tests.stage.bridge import BridgedOffice, Heard, all_tools
from tests.stage.texts import text_of
from tests.waiting import until, until_it_goes

pytestmark = pytest.mark.covers("call-states", "bridge-through")


@pytest.fixture
def may() -> asyncio.Event:
    """The owner's word."""
    return asyncio.Event()


@pytest.fixture(params=["stdio", "http", "Server"])
async def door(request: pytest.FixtureRequest, empty: BridgedOffice, may: asyncio.Event, tmp_path: Path) -> Any:
    """A bridge to an office whose owner is asked, in each of its places."""
    await empty.start_server(*(["--mcp"] if request.param == "Server" else []))

    async def approve(_: Any) -> bool:
        return await may.wait()

    computer = Computer("laptop", approve=approve)

    @computer.tool
    async def wipe(path: str = "") -> str:
        return "wiped"

    async with hosted(computer, empty.url, "desk", tmp_path / "laptop"):
        if request.param == "http":
            yield (await empty.start_bridge("--office", "desk", "--timeout", "2"))[1]
        elif request.param == "Server":
            yield f"{empty.url}/mcp/desk"
        else:
            yield empty.stdio("--office", "desk", "--timeout", "2")


async def test_a_client_is_told_for_whom_its_call_waits_and_its_progress_grows(
    empty: BridgedOffice, door: Any, mode: Any, may: asyncio.Event
) -> None:
    heard = Heard()
    async with empty.client(door, mode, heard) as client:
        await all_tools(client, "wipe")
        calling = asyncio.create_task(client.call_tool("wipe", {}, progress_callback=heard.report))
        await until(lambda: "waiting for the owner of laptop" in [message for *_, message in heard.progress])
        may.set()
        assert text_of(await calling) == "wiped"
    numbers = [progress for progress, *_ in heard.progress]
    assert len(numbers) == len({*numbers}), "the SDK gives them to its client in any order"


@pytest.mark.parametrize("door", ["stdio", "http"], indirect=True)
async def test_a_client_whose_owner_stays_silent_is_told_that_nothing_was_run(
    empty: BridgedOffice, door: Any, mode: Any
) -> None:
    async def silent() -> None:
        """Not if the computer stands still for a second: then the Server answers for it."""
        result = await client.call_tool("wipe", {})
        assert result.is_error
        assert "the owner did not answer within 2 s; nothing was run" in text_of(result)
        assert (result.meta or {})["a2c_error"] == {"code": 408, "outcome": "not_run", "reason": "owner_silent"}

    async with empty.client(door, mode) as client:
        await all_tools(client, "wipe")
        await until_it_goes(silent)
