"""Real MCP servers for the tests of sessions and their supervision, and a notebook of what was told about them."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from a2c_smcp.mcp_host.config.servers import MCPServerConfig, parse_server
from a2c_smcp.mcp_host.limits import HostLimits
from a2c_smcp.mcp_host.manager import Manager, transport_for
from a2c_smcp.mcp_host.processes.guard import ProcessGuard
from a2c_smcp.mcp_host.sessions.session import MCPSession
from a2c_smcp.mcp_host.sessions.tool_request import ReadRequest
from a2c_smcp.mcp_host.supervisor import SeenServers
from tests.ports import free_port
from tests.program import ForkedScript, forked

PATIENCE = 60.0
"""A bound against hanging, nothing that is measured."""

SERVERS = Path(__file__).with_name("servers")
ON_SDK = ("sdk.py", "asking.py")
linux_only = pytest.mark.skipif(
    sys.platform != "linux" or "_A2C_WITHOUT_LINUX" in os.environ,
    reason="needs what only Linux has, see make test-posix",
)
_LIMITS = dict.fromkeys(("start_limit", "listing_limit", "read_limit"), PATIENCE) | {"probe_limit": 5.0}
_PAUSES = {"notice_pause": 0.02, "listen_again": 0.05, "first_pause": 0.05, "failed_pause": 30.0}
QUICK = HostLimits(**_LIMITS, health_limit=0.5, **_PAUSES)


def quick(**changes: Any) -> HostLimits:
    return replace(QUICK, **changes)


def script(file: str, *args: object, name: str | None = None, **extra: Any) -> MCPServerConfig:
    """`script("naughty.py", "exits")`: one of our servers, over stdio. Parameters and other fields may follow."""
    command, *words = command_of(file, *args)
    parameters: dict[str, Any] = {"command": command, "args": words}
    parameters |= {key: extra.pop(key) for key in ("env", "cwd", "encoding", "encoding_error_handler") if key in extra}
    return parse_server({"name": name or (str(args[0]) if args else file), "server_parameters": parameters, **extra})


def command_of(file: str, *args: object) -> list[str]:
    """Servers on the SDK are forked: it takes most of a second to import."""
    if file in ON_SDK:
        return forked(SERVERS / file, *args)
    return [sys.executable, str(SERVERS / file), *map(str, args)]


def naughty(mode: str = "fine", *args: object, **extra: Any) -> MCPServerConfig:
    return script("naughty.py", mode, *args, **extra)


def good(**extra: Any) -> MCPServerConfig:
    return script("good.py", name=extra.pop("name", "good"), **extra)


def of_the_sdk(**extra: Any) -> MCPServerConfig:
    """The same on the SDK, for what depends on it: versions of the protocol, changes that it tells of."""
    return script("sdk.py", name=extra.pop("name", "good"), **extra)


class Notebook:
    """What was told, in order; `until` waits for more."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []
        self._more = asyncio.Event()

    def __call__(self, *entry: Any) -> None:
        self.entries.append(entry)
        self._more.set()

    async def until(self, wanted: Callable[[list[tuple[Any, ...]]], object], within: float = PATIENCE) -> None:
        async with asyncio.timeout(within):
            while not wanted(self.entries):
                self._more.clear()
                await self._more.wait()

    def of(self, *beginning: Any) -> list[tuple[Any, ...]]:
        return [entry for entry in self.entries if entry[: len(beginning)] == beginning]


def reading(uri: str, timeout: float = PATIENCE, **asking: Any) -> ReadRequest:
    """The request for a resource."""
    return ReadRequest("resources/read", {"uri": uri}, timeout, **asking)


@asynccontextmanager
async def session(
    config: MCPServerConfig, *, policy: HostLimits = QUICK, events: Notebook | None = None, **options: Any
) -> AsyncIterator[MCPSession]:
    """A session that has been started."""
    guard = ProcessGuard()
    options |= {"on_event": events or Notebook(), "policy": policy, "all_windows": config.desktop == "any"}
    one = MCPSession(config.name, lambda: transport_for(config, guard), **options)
    try:
        await one.start(policy.start_limit)
        yield one
    finally:
        await one.stop()
        await guard.close()


async def start_and_stop(config: MCPServerConfig, **options: Any) -> None:
    """For servers that cannot be used."""
    async with session(config, **options):
        pass


@asynccontextmanager
async def managed(
    *configs: MCPServerConfig, policy: HostLimits = QUICK, start: bool = True, state: Path | None = None
) -> AsyncIterator[tuple[Manager, Notebook, Notebook]]:
    """A manager with these servers, and what it tells of states and of events. What was seen is kept in `state`."""
    changes, events = Notebook(), Notebook()
    seen = SeenServers("laptop", state)
    async with Manager(policy=policy, on_change=changes, on_event=events, seen=seen) as manager:
        for config in configs:
            manager.add(config)
        if start:
            await manager.start()
        yield manager, changes, events


@contextmanager
def serving(token: str = "", log: str = "", port: int | None = None) -> Iterator[tuple[int, ForkedScript]]:
    """The good server over HTTP, at /mcp and at /sse, listening."""
    port = port or free_port()
    process = ForkedScript(SERVERS / "sdk.py", "http", token, log, port)
    try:
        await_listening(port)
        yield port, process
    finally:
        process.kill()
        process.wait()


def await_listening(port: int) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.01)
        else:
            return


def text_of(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def eventually(check: Callable[[], Any], within: float = PATIENCE) -> Any:
    """What `check` returns, as soon as that is something. For what the outside world does without telling."""
    async with asyncio.timeout(within):
        while not (found := check()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return found


def pids_in(file: Path) -> list[int]:
    """The process ids a server has written down."""
    return [int(line) for line in file.read_text().split()] if file.exists() else []


async def all_gone(pids: list[int], within: float = PATIENCE) -> None:
    """Waits until none of them is left. Those that stay are ended, and the test fails."""
    try:
        await eventually(lambda: not any(is_alive(pid) for pid in pids), within)
    except TimeoutError:
        left = [pid for pid in pids if is_alive(pid)]
        for pid in left:
            os.kill(pid, 9)
        raise AssertionError(f"still alive: {left}") from None
