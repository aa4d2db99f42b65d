"""Programs that are killed in the middle of calls: each call has one answer, and everything is back by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest
from mcp.shared.exceptions import MCPError

from tests.bridge.offices import BridgedOffice, text_of
from tests.bridge.test_http import AUTHORIZED
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


async def test_an_older_client_has_one_answer_and_another_session_after_the_bridge_was_killed(
    bridged: BridgedOffice,
) -> None:
    port = free_port()
    program, url = await bridged.start_bridge(port=port)
    async with bridged.client(url, "legacy") as client:
        await all_tools(client)
        calling = asyncio.create_task(client.call_tool("wait", {"name": "lost"}))
        await until(lambda: "begun lost" in bridged.noted())
        await program.kill()
        with pytest.raises(MCPError):
            await calling
    await bridged.start_bridge(port=port)
    async with bridged.client(url, "legacy") as client:
        added = await client.call_tool("add", {"a": 1, "b": 2})
        assert added.structured_content == {"result": 3}


async def test_a_newer_client_goes_on_after_the_bridge_was_killed(bridged: BridgedOffice) -> None:
    """Without the SDK's client, which ends when a request fails: each request of 2026-07-28 stands for itself."""
    port = free_port()
    program, url = await bridged.start_bridge(port=port)
    async with asyncio.timeout(60), httpx2.AsyncClient(timeout=60) as http:

        async def call(tool: str, **arguments: Any) -> dict[str, Any]:
            meta = {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
                "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
            }
            params = {"name": tool, "arguments": arguments, "_meta": meta}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            routing = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool}
            answer = await http.post(url, json=body, headers={**AUTHORIZED, **routing})
            found: dict[str, Any] = answer.json()
            return found.get("result") or {"isError": True, **found}

        while (await call("add", a=1, b=2)).get("isError"):
            pass  # the MCP server of the computer is starting
        calling = asyncio.create_task(call("wait", name="lost"))
        await until(lambda: "begun lost" in bridged.noted())
        await program.kill()
        with pytest.raises(httpx2.TransportError):
            await calling
        await bridged.start_bridge(port=port)
        added = await call("add", a=1, b=2)
    assert added["structuredContent"] == {"result": 3}
