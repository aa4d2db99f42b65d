"""`timeout` of a server over HTTP bounds each request but calls of tools, and extends its start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from a2c_smcp.errors import CallTimeout
from a2c_smcp.mcp_host.config.servers import MCPServerConfig, parse_server
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from tests.computer.pace import within
from tests.computer.supervised import managed, quick, reading, text_of
from tests.ports import free_port

pytestmark = pytest.mark.covers("mcp-http-timeout")

RESULTS: dict[str, dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "resources": {}},
        "serverInfo": {"name": "slow", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "work", "inputSchema": {"type": "object"}}]},
    "resources/list": {"resources": []},
    "resources/read": {"contents": []},
    "tools/call": {"content": [{"type": "text", "text": "done"}]},
}


@asynccontextmanager
async def served(pauses: dict[str, float]) -> AsyncIterator[str]:
    """A server of 2025-11-25 that takes its time for some requests. `*` stands for all."""

    async def answer(request: web.Request) -> web.Response:
        if request.method == "GET":
            await asyncio.sleep(pauses.get("*", 0))
            return web.Response(status=405)
        message = await request.json()
        method = message["method"]
        await asyncio.sleep(pauses.get(method, pauses.get("*", 0)))
        if "id" not in message:
            return web.Response(status=202)
        known = {"result": RESULTS[method]} if method in RESULTS else {"error": {"code": -32601, "message": "unknown"}}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], **known})

    app = web.Application()
    app.router.add_route("*", "/mcp", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        await runner.cleanup()


def at(url: str, timeout: object, kind: str = "streamable") -> MCPServerConfig:
    return parse_server({"name": "slow", "type": kind, "server_parameters": {"url": url, "timeout": timeout}})


@pytest.mark.parametrize(("kind", "timeout"), [("streamable", "PT1S"), ("sse", 1)])
async def test_a_server_that_never_answers_is_given_up_when_its_timeout_is_over(kind: str, timeout: object) -> None:
    async with served({"*": 600}) as url:
        with within(10):
            async with managed(at(url, timeout, kind), policy=quick(start_limit=30)) as (manager, _, _):
                assert manager.status()["slow"].state == "backoff"
                assert "within 1 s" in manager.status()["slow"].reason


async def test_a_start_may_take_as_long_as_the_timeout_if_that_is_longer_than_usual() -> None:
    slow = {"server/discover": 0, "initialize": 1.0, "tools/list": 1.0}
    async with (
        served(slow) as url,
        managed(at(url, "PT60S"), policy=quick(start_limit=0.5, listing_limit=0.5)) as started,
    ):
        assert started[0].status()["slow"].state == "ready"
        assert [tool["name"] for tool in started[0]["slow"].tools] == ["work"]


async def test_a_list_that_does_not_come_in_time_fails_the_start() -> None:
    async with served({"tools/list": 600}) as url:
        with within(10):
            async with managed(at(url, "PT1S"), policy=quick(start_limit=30)) as (manager, _, _):
                assert "did not list its tools in time" in manager.status()["slow"].reason


async def test_a_read_is_bounded_and_a_call_of_a_tool_is_not() -> None:
    async with (
        served({"resources/read": 600, "tools/call": 1.5}) as url,
        managed(at(url, "PT1S")) as (manager, _, _),
    ):
        requests = manager["slow"].requests
        with within(10), pytest.raises(CallTimeout, match="took longer than 1 s"):
            await requests.read(reading("file:///x", timeout=30))
        assert text_of(await requests.call_tool(ToolRequest("work", {}, 30))) == "done"
        assert manager.status()["slow"].starts == 1
