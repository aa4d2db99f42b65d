"""MCP servers that npm installs, on a computer."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from tests.computer.supervised import all_gone, managed, text_of
from tests.stage.installed import names_of, npm, pid_of, stdio


@pytest.mark.covers("mcp-eras", "mcp-robust")
async def test_the_everything_server_is_used_and_leaves_nothing_behind() -> None:
    async with managed(stdio("everything", *npm("everything"))) as (manager, _, _events):
        assert manager.status()["everything"].state == "ready", manager.status()["everything"].reason
        assert {"echo", "get-sum", "get-tiny-image"} <= names_of(manager["everything"].tools)
        echo = ToolRequest("echo", {"message": "三 ☃"}, 60)
        assert text_of(await manager["everything"].requests.call_tool(echo)) == "Echo: 三 ☃"
        image = await manager["everything"].requests.call_tool(ToolRequest("get-tiny-image", {}, 60))
        assert "image" in {block["type"] for block in image["content"]}
        pid = pid_of(manager, "everything")
        await manager.stop("everything")
        await all_gone([pid], within=1)


@pytest.mark.covers("mcp-eras", "mcp-robust")
async def test_the_memory_server_comes_back_with_what_it_knew_and_leaves_nothing_behind(tmp_path: Path) -> None:
    config = stdio("memory", *npm("memory"), env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")})
    entity = {"name": "desk", "entityType": "thing", "observations": ["has four legs"]}
    async with managed(config) as (manager, changes, _):
        assert manager.status()["memory"].state == "ready", manager.status()["memory"].reason
        assert {"create_entities", "read_graph"} <= names_of(manager["memory"].tools)
        await manager["memory"].requests.call_tool(ToolRequest("create_entities", {"entities": [entity]}, 60))
        first = pid_of(manager, "memory")
        os.kill(first, signal.SIGKILL)
        await changes.until(lambda _: len(changes.of("memory", "ready")) == 2, within=10)
        known = json.loads(text_of(await manager["memory"].requests.call_tool(ToolRequest("read_graph", {}, 60))))
        assert known["entities"] == [entity]
        second = pid_of(manager, "memory")
        await manager.stop("memory")
        await all_gone([first, second], within=1)
