"""Who relays: our Server as a program and mounted, and the others that the same work could be done with."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.load import Office, bare_offices, offices
from benchmarks.machine import measured_core
from benchmarks.processes import OURS, PROGRAM, ROOT, Running, interpreter, running
from benchmarks.table import told

__all__ = [
    "CONTESTANTS",
    "LISTENING",
    "MOUNTED",
    "NODE",
    "PLAIN",
    "PUBLISHED",
    "RELAY",
    "SERVER",
    "Contestant",
    "NotHere",
    "Seated",
    "seated",
    "versions",
]

SERVER, MOUNTED = "a2c-smcp server", "mounted in uvicorn"
PLAIN, PUBLISHED, NODE = "plain python-socketio", "published 0.4.2", "Node socket.io"
RELAY = "bare picows relay"

SERVERS = Path(__file__).parent / "servers"
JAVASCRIPT = ROOT / ".cache" / "bench-javascript"
LISTENING = "listening on "
SERVE: tuple[str | Path, ...] = (PROGRAM, "server", "--port", "0", "--log-level", "error")

Command = tuple[str | Path, ...]


class NotHere(Exception):
    """This machine cannot run it, and why."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """How a server is started, and how its offices are made. `command` raises `NotHere`."""

    title: str
    command: Callable[[], Command]
    offices: Callable[[str, int], AbstractAsyncContextManager[list[Office]]] = offices
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class Seated:
    """A contestant that runs, and its offices."""

    server: Running
    offices: list[Office]


def _node() -> Command:
    node = shutil.which("node")
    if not (node and (JAVASCRIPT / ".ready").exists()):
        raise NotHere("no Node.js with npm here, or `make bench-peers` has not been run")
    return node, ROOT / "benchmarks/javascript/server.mjs", JAVASCRIPT / "package.json"


CONTESTANTS = (
    Contestant(SERVER, lambda: SERVE, is_ours=True),
    Contestant(MOUNTED, lambda: (OURS, SERVERS / "mounted.py"), is_ours=True),
    Contestant(PLAIN, lambda: (sys.executable, SERVERS / "plain.py")),
    Contestant(PUBLISHED, lambda: (interpreter("0.4.2"), SERVERS / "published.py")),
    Contestant(NODE, _node),
    Contestant(RELAY, lambda: (sys.executable, SERVERS / "bare_relay.py"), bare_offices),
)


@asynccontextmanager
async def seated(contestants: Sequence[Contestant], number: int) -> AsyncIterator[dict[str, Seated]]:
    """Those that this machine can run, each on the measured core with so many offices."""
    async with AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as group:
            starting = {each: group.create_task(_start(each, stack)) for each in contestants}
        found = {}
        for contestant, task in starting.items():
            if server := task.result():
                url = server.said.removeprefix(LISTENING)
                seats = await stack.enter_async_context(contestant.offices(url, number))
                found[contestant.title] = Seated(server, seats)
        yield found


async def _start(contestant: Contestant, stack: AsyncExitStack) -> Running | None:
    """`None` is one that this machine cannot run."""
    try:
        command = contestant.command()
    except NotHere as reason:
        told(f"left out: {contestant.title}: {reason}")
        return None
    told(f"starting {contestant.title}")
    environment = {} if contestant.is_ours else {"PYTHONPATH": ""}
    server = await stack.enter_async_context(running(*command, says=LISTENING, environment=environment))
    server.pin(measured_core())
    return server


def versions() -> dict[str, str]:
    """What the others are, as far as they are here."""
    found = {name: version(name) for name in ("python-socketio", "uvicorn", "uvloop", "picows")}
    if node := shutil.which("node"):
        found["Node"] = subprocess.run([node, "--version"], capture_output=True, text=True).stdout.strip()
    if (package := JAVASCRIPT / "node_modules/socket.io/package.json").exists():
        found["socket.io"] = json.loads(package.read_text("utf-8"))["version"]
    return found
