"""Configurations of MCP servers, in words that our package and every published one understand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.processes import OURS as PYTHON

__all__ = ["stdio_server", "written"]

HERE = Path(__file__).parent


def stdio_server(name: str, program: str, *arguments: object) -> dict[str, Any]:
    """A program of ours that lies beside this file. Its tools run without anybody being asked."""
    return {
        "name": name,
        "type": "stdio",
        "disabled": False,
        "forbidden_tools": [],
        "tool_meta": {},
        "default_tool_meta": {"auto_apply": True},
        "server_parameters": {"command": str(PYTHON), "args": [str(HERE / program), *map(str, arguments)]},
    }


def written(path: Path, servers: Iterable[dict[str, Any]]) -> Path:
    path.write_text(json.dumps([*servers]), "utf-8")
    return path
