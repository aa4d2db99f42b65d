"""Programs that are killed in the middle of calls: each call has one answer, and everything is back by itself."""

from __future__ import annotations

import asyncio
import json
import signal
from asyncio.subprocess import PIPE
from itertools import count
from typing import Any

import httpx2
import pytest

from tests.ports import free_port
from tests.program import start_program
from tests.stage.bridge import (
    AUTHORIZED,
    INITIALIZE,
    BridgedOffice,
    all_tools,
    answered,
    begun,
    first_event_id,
    until_once_listed,
)
from tests.stage.program import Program
from tests.stage.texts import text_of
from tests.waiting import until

pytestmark = pytest.mark.covers("bridge-killed")


@pytest.mark.parametrize("bridge", ["stdio", "http"], indirect=True)  # the Server's own bridge ends with it
async def test_a_call_survives_the_server(bridged: BridgedOffice, bridge: Any, mode: Any) -> None:
    async with bridged.user(bridge, mode) as client:
        calling = asyncio.create_task(client.call_tool("once", {"name": "survivor", "seconds": 1.0}))
        await until(lambda: "once survivor" in bridged.noted())
        await bridged.server.kill()
        await bridged.start_server()
        assert text_of(await calling) == "survivor"
        assert bridged.noted().count("once survivor") == 1
        await all_tools(client)
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}


async def test_a_call_to_a_computer_that_is_killed_is_answered(bridged: BridgedOffice, bridge: Any, mode: Any) -> None:
    async with bridged.user(bridge, mode) as client:
        calling = await bridged.waiting(client, "lost")
        await bridged.computer.kill()
        lost: Any = await calling
        assert (lost.is_error, lost.meta["a2c_error"]["outcome"], "left" in text_of(lost)) == (True, "unknown", True)
        await bridged.start_computer()
        await all_tools(client)
        assert (await client.call_tool("add", {"a": 1, "b": 2})).structured_content == {"result": 3}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
async def test_a_bridge_over_stdio_that_is_stopped_cancels_its_calls(
    bridged: BridgedOffice, number: signal.Signals
) -> None:
    words = ("bridge", "--stdio", "--url", bridged.url)
    process = await start_program(*words, cwd=bridged.place.folder, env=bridged.place.environ, stdin=PIPE)
    program = Program(process)
    bridged.place.started.append(program)
    stdin = process.stdin
    assert stdin

    def say(**message: Any) -> None:
        stdin.write(f"{json.dumps({'jsonrpc': '2.0', **message})}\n".encode())

    say(**INITIALIZE)
    say(method="notifications/initialized")
    for attempt in count(2):  # its MCP server may be starting
        if "begun stop" in bridged.noted():
            break
        say(id=attempt, method="tools/call", params=call_of("wait", name="stop"))
        await asyncio.sleep(0.2)
    await program.stops(number)
    assert program.err == []
    await bridged.is_cancelled("stop")


async def test_an_older_client_begins_a_new_session_after_the_bridge_was_killed(bridged: BridgedOffice) -> None:
    """Without the SDK's client, which ends when a request fails: with 404 for its session, MCP has it begin another."""
    port = free_port()
    program, url = await bridged.start_bridge(port=port)
    async with asyncio.timeout(60), httpx2.AsyncClient(timeout=60) as http:
        headers = await begun(http, url)
        await until_once_listed(http, url, headers)
        waiting = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call_of("wait", name="lost")}
        async with http.stream("POST", url, json=waiting, headers=headers) as stream:
            last = await first_event_id(stream)
            await until(lambda: "begun lost" in bridged.noted())
            await program.kill()
        await bridged.start_bridge(port=port)
        assert (await http.get(url, headers={**headers, "Last-Event-ID": last})).status_code == 404
        assert (await http.post(url, json=waiting, headers=headers)).status_code == 404
        headers = await begun(http, url)
        await until_once_listed(http, url, headers)
        added = await answered(http, url, headers, 8, "tools/call", call_of("add", a=1, b=2))
    assert added["result"]["structuredContent"] == {"result": 3}
    assert bridged.noted().count("begun lost") == 1


async def test_the_client_of_the_sdk_goes_on_after_a_restart(bridged: BridgedOffice) -> None:
    port = free_port()
    program, url = await bridged.start_bridge(port=port)
    async with bridged.user(url) as client:
        await program.kill()
        await bridged.start_bridge(port=port)
        await all_tools(client)
        assert text_of(await client.call_tool("greet", {})) == "hi Ada, asked 'Who are you?'"


def call_of(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"name": tool, "arguments": arguments}


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
