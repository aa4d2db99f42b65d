"""Programs that are killed in the middle of calls: each call has one answer, and everything is back by itself."""

from __future__ import annotations

import asyncio
import json
import signal
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import httpx2
import pytest

from tests.bridge.offices import BridgedOffice, text_of
from tests.bridge.test_http import AUTHORIZED, INITIALIZE, first_event_id, response_in, until_listed
from tests.bridge.test_through import all_tools
from tests.ports import free_port
from tests.program import start_program
from tests.server.test_program import Program
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
    program.signal(number)
    assert await program.ends() == 0
    assert program.err == []
    await until(lambda: "cancelled stop" in bridged.noted())


async def test_an_older_client_goes_on_in_its_session_after_the_bridge_was_killed(bridged: BridgedOffice) -> None:
    """Without the SDK's client, which ends when a request fails, as a client of 2025-11-25 that resumes streams."""
    port = free_port()
    program, url = await bridged.start_bridge(port=port)
    async with asyncio.timeout(60), httpx2.AsyncClient(timeout=60) as http:
        headers = await begun(http, url)
        for number, (method, params) in enumerate(
            (("logging/setLevel", {"level": "error"}), ("resources/subscribe", {"uri": "notes://page"})), 20
        ):
            assert "error" not in await answered(http, url, headers, number, method, params)
        await until_listed(http, url, headers)
        waiting = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call_of("wait", name="lost")}
        async with http.stream("POST", url, json=waiting, headers=headers) as stream:
            last = await first_event_id(stream)
            await until(lambda: "begun lost" in bridged.noted())
            await program.kill()
        await bridged.start_bridge(port=port)
        async with http.stream("GET", url, headers={**headers, "Last-Event-ID": last}) as stream:
            lost = await response_in(stream, 7)
        assert "restarted" in lost["error"]["message"]
        assert lost["error"]["data"] == {"outcome": "unknown"}
        await until_listed(http, url, headers)
        async with http.stream("GET", url, headers=headers) as news:
            lines = aiter(news.aiter_lines())
            missed = {(await notice_in(lines))["method"] for _ in range(4)}
            assert missed == {
                *(f"notifications/{each}/list_changed" for each in ("tools", "resources", "prompts")),
                "notifications/resources/updated",
            }
            added = await answered(http, url, headers, 8, "tools/call", call_of("add", a=1, b=2))
            assert added["result"]["structuredContent"] == {"result": 3}
            await answered(http, url, headers, 9, "tools/call", call_of("write", text="second"))
            while (await notice_in(lines))["method"] != "notifications/resources/updated":
                pass
        assert (await http.delete(url, headers=headers)).status_code == 200
        assert (await http.post(url, json=waiting, headers=headers)).status_code == 404
    assert bridged.noted().count("begun lost") == 1


async def test_the_client_of_the_sdk_goes_on_after_a_restart(bridged: BridgedOffice, mode: Any) -> None:
    port = free_port()
    program, url = await bridged.start_bridge(port=port)
    async with bridged.client(url, mode) as client:
        await all_tools(client)
        await program.kill()
        await bridged.start_bridge(port=port)
        await all_tools(client)
        assert text_of(await client.call_tool("greet", {})) == "hi Ada, asked 'Who are you?'"


async def begun(http: httpx2.AsyncClient, url: str) -> dict[str, str]:
    """The headers of a new session."""
    first = await http.post(url, json=INITIALIZE, headers=AUTHORIZED)
    session = {"Mcp-Session-Id": first.headers["mcp-session-id"], "MCP-Protocol-Version": "2025-11-25"}
    headers = {**AUTHORIZED, **session}
    await http.post(url, json={"jsonrpc": "2.0", "method": "notifications/initialized"}, headers=headers)
    return headers


async def answered(
    http: httpx2.AsyncClient, url: str, headers: dict[str, str], number: int, method: str, params: dict[str, Any]
) -> dict[str, Any]:
    request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    async with http.stream("POST", url, json=request, headers=headers) as stream:
        return await response_in(stream, number)


def call_of(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"name": tool, "arguments": arguments}


async def notice_in(lines: AsyncIterator[str]) -> dict[str, Any]:
    async for line in lines:
        if line.startswith("data:") and line.removeprefix("data:").strip():
            notice: dict[str, Any] = json.loads(line.removeprefix("data:"))
            return notice
    raise AssertionError("the stream has ended")


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
