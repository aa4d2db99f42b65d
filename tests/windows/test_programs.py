"""Configuration of other programs, where they keep it on Windows, and what is found on the PATH there."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.computer.supervised import SERVERS
from tests.windows.conftest import DRIVE_C, PYTHON, OnWindows, from_windows, on_windows

LONG = 240.0


@pytest.mark.covers("windows-places")
async def test_import_finds_the_servers_of_claude_desktop(windows: OnWindows, app_data: Path) -> None:
    (app_data / "Claude").mkdir(parents=True)
    entry = {"command": "C:\\Programme\\größe.exe", "args": ["--folder", "C:\\Users"]}
    servers = {"mcpServers": {"größe": entry}}
    (app_data / "Claude" / "claude_desktop_config.json").write_text(json.dumps(servers), "utf-8")
    program = await windows.a2c("import", "claude-desktop", "--write")
    assert await program.ends(LONG) == 0, program.said
    imported = json.loads((windows.folder / "a2c.json").read_text("utf-8"))
    assert entry["command"] in json.dumps(imported, ensure_ascii=False).replace("\\\\", "\\")


@pytest.mark.covers("windows-places")
async def test_connect_writes_a_bridge_for_claude_desktop_that_starts(
    windows: OnWindows, app_data: Path, shared_hub: Any, office: str
) -> None:
    (windows.folder / "key").write_text("a2c_" + "k" * 40)
    words = ["--url", shared_hub.url, "--office", office, "--key-file", windows.folder / "key", "--write"]
    program = await windows.a2c("connect", "claude-desktop", *words)
    assert await program.ends(LONG) == 0, program.said
    written = json.loads((app_data / "Claude" / "claude_desktop_config.json").read_text("utf-8"))
    ((_, entry),) = written["mcpServers"].items()
    assert entry["command"] == PYTHON
    bridge = await windows.start(*entry["args"], stdin=asyncio.subprocess.PIPE)
    assert bridge.process.stdin
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
    bridge.process.stdin.write(json.dumps(request).encode() + b"\n")
    answer = json.loads(await bridge.says('"id":1', LONG))
    assert answer["result"]["protocolVersion"] == "2025-06-18"
    bridge.process.stdin.close()
    assert await bridge.ends(LONG) == 0, bridge.said


FINDS = """
import json, os, sys
from a2c_smcp.mcp_host.processes.environment import child_environment, find_command
print(json.dumps([find_command(each, os.getcwd(), child_environment(os.environ, json.loads(sys.argv[1])))
                  for each in json.loads(sys.argv[2])]))
"""


@pytest.mark.covers("windows-places")
async def test_commands_are_found_by_pathext_and_never_in_the_current_folder(windows: OnWindows) -> None:
    tools, inner = windows.folder / "tools", windows.folder / "node_modules"
    for path in (
        tools / "npx.cmd",
        tools / "npx",
        tools / "uvx.exe",
        inner / "own.bat",
        windows.folder / "planted.exe",
    ):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    asked = ["npx", "NPX.CMD", "uvx", "planted", "node_modules\\own", on_windows(tools / "uvx"), "nothing"]
    environment = {"Path": f"relative;{on_windows(tools)}"}
    program = await windows.start("-c", FINDS, json.dumps(environment), json.dumps(asked))
    assert await program.ends(LONG) == 0, program.said
    found = [path and from_windows(path.lower()).name for path in json.loads(program.out[0])]
    assert found == ["npx.cmd", "npx.cmd", "uvx.exe", None, "own.bat", "uvx.exe", None]


@pytest.mark.covers("windows-places")
async def test_a_script_gets_no_argument_that_its_interpreter_would_change(windows: OnWindows) -> None:
    (windows.folder / "serve.cmd").write_text("@echo off\r\n")
    arguments = {"quote": 'a"b', "percent": "%PATH%", "lines": "two\nlines"}
    servers = {name: {"command": ".\\serve", "args": [argument]} for name, argument in arguments.items()}
    (windows.folder / "a2c.json").write_text(json.dumps({"servers": servers}))
    program = await windows.a2c("up", "--port", "0", "--yes")
    for name in arguments:
        assert "is a script, and no argument of it can have" in await program.says(f"{name}: failed", LONG)


@pytest.mark.covers("windows-places")
async def test_the_state_of_earlier_versions_is_moved_once(windows: OnWindows) -> None:
    (home,) = {path.parents[1] for path in DRIVE_C.glob("users/*/AppData/Local")}
    older, newer = home / ".local" / "state" / "a2c-smcp", home / "AppData" / "Local" / "a2c-smcp"
    for left in (older, newer):
        shutil.rmtree(left, ignore_errors=True)
    older.mkdir(parents=True)
    (older / "known").touch()
    shows = "import logging; logging.basicConfig(); from a2c_smcp.files import default_folder; print(default_folder())"
    for said in (1, 0):
        program = await windows.start("-c", shows, XDG_STATE_HOME="")
        assert await program.ends(LONG) == 0, program.said
        assert from_windows(program.out[0]) == newer
        assert len([line for line in program.err if "was moved" in line]) == said
    assert (newer / "known").exists()
    assert not older.exists()


@pytest.mark.covers("windows-limits")
async def test_a_server_with_a_sandbox_says_that_windows_has_none(windows: OnWindows) -> None:
    command = {"command": PYTHON, "args": [on_windows(SERVERS / "good.py")]}
    servers = {"held": {**command, "sandbox": {}}, "free": {**command, "sandbox": {"required": False}}}
    (windows.folder / "a2c.json").write_text(json.dumps({"servers": servers}))
    program = await windows.a2c("up", "--port", "0", "--yes")
    assert "sandbox" in await program.says("held: failed", LONG)
    await program.says("free: ready", LONG)
