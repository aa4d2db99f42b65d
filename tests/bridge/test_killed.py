"""Programs that are killed in the middle of calls: each call has one answer, and everything is back by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from mcp.shared.exceptions import MCPError

from tests.bridge.offices import BridgedOffice, text_of
from tests.bridge.test_through import all_tools
from tests.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.covers("bridge-killed")


async def test_a_call_survives_the_server(bridged: BridgedOffice, bridge: Any, mode: Any) -> None:
    async with bridged.client(bridge, mode) as client:
        await all_tools(client)
        calling = asyncio.create_task(client.call_tool("once", {"name": "survivor", "seconds": 1.0}))
        await until(lambda: "once survivor" in bridged.noted())
        await bridged.server.kill()
        await bridged.start_server()
        assert text_of(await calling) == "survivor"
        assert bridged.noted().count("once survivor") == 1
        await all_tools(client)
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}


async def test_a_call_to_a_computer_that_is_killed_is_answered(bridged: BridgedOffice, bridge: Any, mode: Any) -> None:
    async with bridged.client(bridge, mode) as client:
        await all_tools(client)
        calling = asyncio.create_task(client.call_tool("wait", {"name": "lost"}))
        await until(lambda: "begun lost" in bridged.noted())
        await bridged.computer.kill()
        lost = await calling
        assert lost.is_error
        assert lost.meta
        assert lost.meta["a2c_error"]["outcome"] == "unknown"
        assert "left" in text_of(lost)
        await bridged.start_computer()
        await all_tools(client)
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}


async def test_clients_are_back_after_the_bridge_was_killed(bridged: BridgedOffice, mode: Any) -> None:
    port = free_port()
    program, url = await bridged.start_bridge(port=port)
    async with bridged.client(url, mode) as client:
        await all_tools(client)
        calling = asyncio.create_task(client.call_tool("wait", {"name": "lost"}))
        await until(lambda: "begun lost" in bridged.noted())
        await program.kill()
        with pytest.raises(MCPError):
            await calling
        await bridged.start_bridge(port=port)
        if mode == "auto":  # an older client begins another session, as MCP wants it after a 404
            assert (await add_when_back(client)).structured_content == {"result": 3}
    async with bridged.client(url, mode) as client:
        assert (await add_when_back(client)).structured_content == {"result": 3}
    await until(lambda: "cancelled lost" in bridged.noted())


async def add_when_back(client: Any) -> Any:
    """The new bridge waits until the seat of the one that was killed is free."""
    while True:
        result = await client.call_tool("add", {"a": 1, "b": 2})
        if not result.is_error:
            return result
