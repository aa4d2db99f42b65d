"""What `make test-fast` runs: tests that start no process and wait for no time to pass."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["forbidden_processes", "is_fast"]

# By folder: its modules that start processes or wait.
FOLDERS = {
    "agent": (
        "client dialling endings files_program frozen listening_calls odd_peers outcomes passing_on program questions "
        "reading_program reconnect registered_readables retries states transfers transports"
    ),
    "bridge": (
        "apart apps gone http killed names offered plain_calls questions shared skills through through_server trouble "
        "waiting"
    ),
    "computer": (
        "approval blobs bundle_ids canary client_approval client_names computer execution frames freeze hotplug "
        "import_program inputs journal killed killed_transfers live_calls masked_messages mcp_features on_call "
        "pins program python_program question_results questions reading reading_questions rejoin requests risk "
        "same_meaning scanners seats secret_rules secrets side_band starting subscribed_resources tools uploads "
        "watch_files withdrawn_starts"
    ),
    "console": "changes notice operator_sessions owner strangers webhook_program",
    "core": "extras offices_machine",
    "devices": "nothing_leaks pairing sealed_bridges sealed_features sealed_guide storage",
    "engine": "official_socket_io",
    "faults": "",
    "mcp_host": (
        "hostile_servers input_requests logs manager on_call sandbox sandbox_escapes session stdio tasks timeouts "
        "transforms transports whose_question window_changes"
    ),
    "policy": "calls programs rules",
    "registry": "arguments progress remote remote_readable serving telemetry wheel",
    "server": (
        "admin bound_keys calls card descriptors grants greedy_clients handshake http isolation limits mcp_clients "
        "mcp_seats mounted_apps operators order outcomes program proxy resume second_signal sign_in sign_in_clients "
        "sign_in_example stalls tells told_trouble unauthenticated unwritable_keys"
    ),
    "sign_in": "signing_in tokens",
    "skills": "listed over_the_wire staging",
}
STARTS = {"tests.program", "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}


def is_fast(path: Path) -> bool:
    """True if this folder or test module is looked into."""
    if path.is_dir():
        return path.name in {*FOLDERS, "tests"}
    folder = path.parent.name
    return folder in FOLDERS and path.stem.removeprefix("test_") not in FOLDERS[folder].split()


@contextmanager
def forbidden_processes() -> Iterator[None]:
    """A test that starts one fails: its module belongs into `FOLDERS`."""
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
