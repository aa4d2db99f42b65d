"""MCP servers that npm installs, in a sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from a2c_smcp.mcp_host.config.servers import parse_server
from a2c_smcp.mcp_host.processes.plan import possible
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from tests.computer.supervised import managed, text_of
from tests.stage.installed import npm

pytestmark = [
    pytest.mark.covers("sandbox"),
    pytest.mark.skipif(not possible().ports, reason="this kernel's Landlock has no TCP ports"),
]


async def test_the_everything_server_works_under_strict() -> None:
    command, script = npm("everything")
    config = parse_server({"command": command, "args": [str(script)], "sandbox": "strict"}, "everything")
    async with managed(config) as (manager, _, _events):
        assert manager.status()["everything"].state == "ready", manager.status()["everything"].reason
        echo = ToolRequest("echo", {"message": "x"}, 60)
        assert text_of(await manager["everything"].requests.call_tool(echo)) == "Echo: x"
        assert manager.status()["everything"].warnings == ()


async def test_the_memory_server_writes_where_it_may_and_nowhere_else(tmp_path: Path) -> None:
    command, script = npm("memory")
    entity = {"name": "desk", "entityType": "thing", "observations": ["has four legs"]}
    for name, sandbox in (("open", {"write": [str(tmp_path)]}), ("closed", "strict")):
        env = {"MEMORY_FILE_PATH": str(tmp_path / f"{name}.jsonl")}
        config = parse_server({"command": command, "args": [str(script)], "env": env, "sandbox": sandbox}, name)
        async with managed(config) as (manager, _, _events):
            result = await manager[name].requests.call_tool(ToolRequest("create_entities", {"entities": [entity]}, 60))
            assert bool(result.get("isError")) == (name == "closed")
    assert json.loads((tmp_path / "open.jsonl").read_text())["name"] == "desk"
    assert not (tmp_path / "closed.jsonl").exists()
