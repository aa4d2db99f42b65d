"""MCP servers that are not ours: the 1.x SDK for Python over every transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from a2c_smcp.mcp_host.config.servers import parse_server
from a2c_smcp.mcp_host.manager import Manager
from a2c_smcp.mcp_host.sessions.tool_request import ReadRequest, ToolRequest
from tests.computer.supervised import eventually, is_alive, managed, text_of
from tests.interop.conftest import peer_command
from tests.interop.driver import Driver
from tests.stage.installed import names_of, pid_of, stdio

SDKS = {"0.1.2": "1.15", "0.4.2": "1.30"}
"""The SDK's version that each version of the package was installed with."""

NOTES = "window://org.example.desk/notes"
WATCHED = f"{NOTES}?priority=50"
HTTP = {"streamable": "/mcp", "sse": "/sse"}

Start = Callable[..., Awaitable[Driver]]
every_sdk = pytest.mark.parametrize("version", SDKS, ids=SDKS.values())


async def read(manager: Manager, uri: str) -> str:
    return str((await manager["desk"].requests.read(ReadRequest.of_resource(uri, 5)))["contents"][0]["text"])


@every_sdk
@pytest.mark.covers("mcp-eras", "mcp-transports")
async def test_a_server_on_an_older_sdk_is_used_and_its_window_is_watched(version: str) -> None:
    config = stdio("desk", *peer_command(version, "mcp_server.py"))
    async with managed(config) as (manager, _, events):
        assert manager.status()["desk"].state == "ready"
        assert manager.status()["desk"].revision < "2026"
        assert [tool["name"] for tool in manager["desk"].tools] == ["add", "slow", "note", "picture"]
        assert text_of(await manager["desk"].requests.call_tool(ToolRequest("add", {"a": 1, "b": 2}, 60))) == "3"
        assert [window["uri"] for window in manager["desk"].windows] == [WATCHED]
        await manager["desk"].requests.call_tool(ToolRequest("note", {"text": "done"}, 60))
        await events.until(lambda _: events.of("desk", "window_updated", WATCHED))
        assert await read(manager, WATCHED) == "done"
        pid = pid_of(manager, "desk")
    assert not is_alive(pid)


@every_sdk
@pytest.mark.covers("mcp-eras", "mcp-transports")
async def test_fastmcp_over_stdio_is_used_and_shows_its_window_only_if_so_configured(version: str) -> None:
    command = peer_command(version, "fastmcp_server.py", "stdio")
    async with managed(stdio("desk", *command)) as (manager, _, _events):
        await it_is_used(manager)
        assert manager["desk"].windows == []
        assert await manager.replace(stdio("desk", *command, desktop="any"))
        await manager.start("desk")
        assert [window["uri"] for window in manager["desk"].windows] == [NOTES]
        assert await read(manager, NOTES) == "nothing yet"


@every_sdk
@pytest.mark.parametrize("kind", HTTP)
@pytest.mark.covers("mcp-eras", "mcp-transports")
async def test_fastmcp_over_http_is_used(drive: Start, version: str, kind: str) -> None:
    server = await drive(*peer_command(version, "fastmcp_server.py", "http"))
    url = (await server.hears("ready"))["url"] + HTTP[kind]
    config = parse_server({"name": "desk", "type": kind, "url": url, "desktop": "any"})
    async with managed(config) as (manager, _, _events):
        await it_is_used(manager)
        assert await read(manager, NOTES) == "nothing yet"
        await server.close()
        await eventually(lambda: manager.status()["desk"].state != "ready")
        assert "novel" in names_of(manager["desk"].tools)  # they stay while it is started again


async def it_is_used(manager: Manager) -> None:
    assert manager.status()["desk"].state == "ready", manager.status()["desk"].reason
    assert names_of(manager["desk"].tools) == {"add", "fail", "grow"}
    result = await manager["desk"].requests.call_tool(ToolRequest("add", {"a": 1, "b": 2}, 60))
    assert (text_of(result), result["structuredContent"]) == ("3", {"result": 3})
    failed = await manager["desk"].requests.call_tool(ToolRequest("fail", {}, 60))
    assert failed["isError"]
    assert "this tool always fails" in text_of(failed)
    await manager["desk"].requests.call_tool(ToolRequest("grow", {"name": "novel"}, 60))
    await eventually(lambda: "novel" in names_of(manager["desk"].tools))
    assert text_of(await manager["desk"].requests.call_tool(ToolRequest("novel", {}, 60))) == "novel"
