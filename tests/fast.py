"""What `make test-fast` runs: tests that start no process and wait for no time to pass."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["forbidden_processes", "is_fast"]

FOLDERS = {
    "agent",
    "bridge",
    "computer",
    "console",
    "core",
    "engine",
    "faults",
    "mcp_host",
    "registry",
    "server",
    "skills",
}
START_PROCESSES = {
    *("agent/test_odd_peers", "agent/test_program", "agent/test_transports", "bridge/test_names"),
    *(f"bridge/test_{name}" for name in ("apart", "http", "killed", "through", "trouble")),
    *(f"computer/test_{name}" for name in ("approval", "canary", "computer", "execution", "hotplug", "import_program")),
    *(f"computer/test_{name}" for name in ("inputs", "killed", "masked_messages", "program", "python_program")),
    *(f"computer/test_{name}" for name in ("rejoin", "requests", "secret_rules", "secrets", "starting", "tools")),
    *(f"computer/test_{name}" for name in ("pins", "scanners", "watch_files", "withdrawn_starts")),
    "engine/test_official_socket_io",
    *(f"mcp_host/test_{name}" for name in ("hostile_servers", "manager", "session", "stdio", "transforms")),
    *("mcp_host/test_direct_requests", "mcp_host/test_transports"),
    *(f"registry/test_{name}" for name in ("arguments", "remote", "serving", "telemetry", "wheel")),
    *("skills/test_over_the_wire", "skills/test_staging"),
    *(f"registry/test_{name}" for name in ("arguments", "progress", "remote", "remote_readable", "serving")),
    *("registry/test_telemetry", "registry/test_wheel"),
    *(f"server/test_{name}" for name in ("http", "isolation", "key_command", "mcp_clients", "program", "proxy")),
}
WAIT = {
    *(f"agent/test_{name}" for name in ("client", "dialling", "endings", "outcomes", "reconnect", "retries", "trust")),
    *(f"server/test_{name}" for name in ("calls", "handshake", "order", "outcomes", "resume", "stalls")),
    *("server/test_mounted_apps", "server/test_unauthenticated"),
}
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}


def is_fast(path: Path) -> bool:
    """Whether this folder or test module is looked into."""
    if path.is_dir():
        return path.name in {*FOLDERS, "tests"}
    folder = path.parent.name
    return folder in FOLDERS and f"{folder}/{path.stem}" not in {*START_PROCESSES, *WAIT}


@contextmanager
def forbidden_processes() -> Iterator[None]:
    """A test that starts one fails: its module belongs into `START_PROCESSES`."""
    _hook()
    _state["forbidden"] = True
    try:
        yield
    finally:
        _state["forbidden"] = False


_state = {"forbidden": False}


@cache
def _hook() -> None:
    def look(event: str, _: Any) -> None:
        if event in STARTS and _state["forbidden"]:
            raise RuntimeError(f"{event} in a test of `make test-fast`: see tests/fast.py")

    sys.addaudithook(look)
