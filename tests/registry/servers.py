"""MCP servers for the tests of a registry, and a look at the processes that come of them."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

GOOD = Path(__file__).parents[1] / "computer" / "servers" / "good.py"
COMMAND = [sys.executable, str(GOOD)]
PATIENCE = 60.0
"""A bound against hanging, nothing that is measured."""


def good(name: str = "good", marker: str = "", **more: Any) -> dict[str, Any]:
    """A configuration. The marker is in the environment of its processes."""
    parameters = {"command": sys.executable, "args": [str(GOOD)], "env": {"MARKER": marker}}
    return {"name": name, "type": "stdio", "server_parameters": parameters, **more}


def wait_for(condition: Callable[[], Any]) -> Any:
    """What the condition gives, as soon as that is something."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    return found


def is_listening(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def descendants(pid: int) -> set[int]:
    """All processes that came of this one and still run."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal():
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state != "Z":
                    parents[int(entry.name)] = int(parent)
    found, more = set[int](), {pid}
    while more:
        more = {child for child, parent in parents.items() if parent in more}
        found |= more
    return found
