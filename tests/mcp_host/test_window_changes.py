"""Which changes of a list of windows count: those that decide the desktop (004, WIRE §8)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from tests.computer.supervised import Notebook, script, session

ONE, OTHER = {"uri": "window://w/one", "name": "one"}, {"uri": "window://w/other", "name": "other"}
SAME = [
    [{**ONE, "description": "new", "annotations": {"lastModified": "2026-01-01T00:00:00Z"}}, OTHER],
    [{**ONE, "title": "new", "_meta": {"colour": "red"}}, OTHER],
]


@pytest.mark.covers("desktop-watch")
@pytest.mark.parametrize(
    "changed",
    [
        pytest.param([{**ONE, "annotations": {"priority": 0.5}}, OTHER], id="a priority"),
        pytest.param([{**ONE, "_meta": {"fullscreen": True}}, OTHER], id="fullscreen"),
        pytest.param([OTHER, ONE], id="the order"),
        pytest.param([OTHER], id="a window less"),
    ],
)
async def test_only_what_decides_the_desktop_is_a_change(changed: list[object], tmp_path: Path) -> None:
    file, events = tmp_path / "windows.json", Notebook()
    file.write_text(json.dumps([ONE, OTHER]))
    async with session(script("windows.py", file), events=events) as one:
        before = len(events.of("windows_changed"))
        for number, resources in enumerate([*SAME, changed], 1):
            (tmp_path / "next").write_text(json.dumps(resources))
            (tmp_path / "next").replace(file)
            await one.call_tool(ToolRequest("announce", {}, 60))
            await events.until(lambda _, number=number: len(events.of("resource_list_changed")) == number)
        await events.until(lambda _: len(events.of("windows_changed")) > before)
        assert len(events.of("windows_changed")) == before + 1
