"""Configuration files are followed: only what has changed is restarted."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.watch_files import read_all, watch
from a2c_smcp.errors import ConfigError
from tests.computer.test_computer import GOOD, until


def write(path: Path, **servers: dict[str, Any]) -> None:
    entries = {name: {"command": sys.executable, "args": [str(GOOD)], **more} for name, more in servers.items()}
    path.write_text(json.dumps({"mcpServers": entries}), "utf-8")


@pytest.mark.covers("config-files")
def test_a_name_in_two_files_is_an_error(tmp_path: Path) -> None:
    for name in ("one.json", "two.json"):
        write(tmp_path / name, good={})
    with pytest.raises(ConfigError, match="stands in another file"):
        read_all([tmp_path / "one.json", tmp_path / "two.json"])


@pytest.mark.covers("config-files", "supervise-restart")
async def test_only_what_changes_in_a_file_is_restarted(tmp_path: Path) -> None:
    path, faults = tmp_path / "servers.json", []
    write(path, stays={}, changes={}, goes={})
    known = read_all([path])
    computer = Computer("laptop")
    for config in known.servers.values():
        computer.add_server(config)
    async with computer:
        await computer.start()
        watching = asyncio.create_task(watch(computer, [path], known, faults.append, interval=0.05))
        path.write_text("{", "utf-8")
        await until(lambda: bool(faults))
        assert {status.state for status in computer.status().values()} == {"ready"}
        write(path, stays={}, changes={"env": {"NEW": "value"}}, comes={})
        await until(lambda: "goes" not in computer.status())
        await until(lambda: [*computer.status()] == ["stays", "changes", "comes"])
        await until(lambda: {status.state for status in computer.status().values()} == {"ready"})
        assert {name: status.starts for name, status in computer.status().items()} == {
            "stays": 1,
            "changes": 1,
            "comes": 1,
        }
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
