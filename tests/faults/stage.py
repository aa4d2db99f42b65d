"""Everybody who takes part in a fault run: Servers, the store, and in each office an agent and two computers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from uuid import uuid4

from tests.computer.hosted import pids_with
from tests.faults.agent import Plan
from tests.faults.books import Books, Pair
from tests.faults.lines import Lines
from tests.faults.processes import PROGRAM, Process
from tests.ports import free_port
from tests.valkey import Valkey, running_valkey

__all__ = ["Member", "Stage", "open_stage"]

COMPUTERS = ("left", "right")
TOOLS = {"work_now": 0.0, "work_later": 1.5}
"""Tools by their names, each on an MCP server of its own that takes so many seconds to start."""

_KEY = "fault-run-key-0123456789"
_MARKER = "A2C_FAULT_RUN"
_DRAIN = 60.0
_STOP = 25.0


@dataclass
class Member:
    """A process and what stands between it and the Servers."""

    process: Process
    lines: Lines
    pairs: list[Pair]


@dataclass
class Stage:
    """`began` and `killed` say when each agent process was started and killed, by the prefix of its calls."""

    folder: Path
    books: Books
    rate: float
    seed: int
    marker: str = field(default_factory=lambda: uuid4().hex)
    servers: list[Process] = field(default_factory=list)
    store: Valkey | None = None
    store_lines: list[Lines] = field(default_factory=list)
    computers: dict[str, Member] = field(default_factory=dict)
    agents: dict[str, Member] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)
    killed: dict[str, float] = field(default_factory=dict)

    @property
    def pairs(self) -> list[Pair]:
        return [pair for member in self.computers.values() for pair in member.pairs]

    @property
    def lines(self) -> list[Lines]:
        """Everything between members and Servers."""
        return [member.lines for member in (*self.computers.values(), *self.agents.values())]

    def processes(self) -> Iterator[Process]:
        """In the order in which they end well."""
        for members in (self.agents, self.computers):
            yield from (member.process for member in members.values())
        yield from self.servers

    async def start_agent(self, name: str) -> None:
        """A new process each time, whose calls have ids of their own."""
        office, member = name.partition("/")[0], self.agents[name]
        prefix = f"{self.seed}.{office}.{len(self.began)}"
        plan = Plan(
            url=member.lines.url,
            key=_KEY,
            office=office,
            name=f"agent-of-{office}",
            prefix=prefix,
            computers=list(COMPUTERS),
            tools=list(TOOLS),
            rate=self.rate / len(self.agents),
            notes=str(self.books.notes),
            blocking=office == "office1",
        )
        self.began[prefix] = time.monotonic()
        member.process.words = [sys.executable, "-m", "tests.faults.agent", json.dumps(asdict(plan))]
        await member.process.start()

    async def kill_agent(self, name: str) -> None:
        prefix = [each for each in self.began if each.split(".")[1] == name.partition("/")[0]][-1]
        await self.agents[name].process.kill()
        self.killed[prefix] = time.monotonic()

    async def end(self) -> list[str]:
        """Asks everybody to end, agents first. What was wrong with that."""
        wrong = []
        for members, seconds in ((self.agents, _DRAIN), (self.computers, _STOP)):
            wrong += await asyncio.gather(*(member.process.end(seconds) for member in members.values()))
        wrong += await asyncio.gather(*(server.end(_STOP) for server in self.servers))
        return [each for each in wrong if each]

    async def kill(self) -> None:
        await asyncio.gather(*(process.kill() for process in self.processes()))

    def left(self) -> list[int]:
        """Processes of this run that are still there."""
        return pids_with(self.marker)

    def audit(self, name: str) -> Path:
        """The audit file of a process of this name."""
        return self.folder / f"{name}.audit.jsonl"

    def environ(self) -> dict[str, str]:
        theirs = {name: value for name, value in os.environ.items() if not name.startswith("A2C_")}
        state = {"XDG_STATE_HOME": str(self.folder / "state"), "PYTHONUNBUFFERED": "1"}
        return {**theirs, **state, _MARKER: self.marker}


@asynccontextmanager
async def open_stage(folder: Path, *, nodes: int, offices: int, rate: float, seed: int) -> AsyncIterator[Stage]:
    """Everybody started, whom nobody outlives."""
    stage = Stage(folder, Books(folder), rate, seed)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(stage.kill)
        ports = [free_port() for _ in range(nodes)]
        if nodes > 1:
            stage.store = stack.enter_context(running_valkey())
        for number, port in enumerate(ports, 1):
            await _add_server(stage, stack, f"node{number}", port)
        await asyncio.gather(*(server.start() for server in stage.servers))
        await asyncio.gather(*(server.says("listening on ") for server in stage.servers))
        for office in (f"office{number}" for number in range(1, offices + 1)):
            for name in COMPUTERS:
                lines = await stack.enter_async_context(Lines(ports))
                stage.computers[f"{office}/{name}"] = _computer(stage, lines, office, name)
            lines = await stack.enter_async_context(Lines(ports))
            process = Process(f"{office}-agent", [], stage.environ(), folder)
            stage.agents[f"{office}/agent"] = Member(process, lines, [(office, name) for name in COMPUTERS])
        await asyncio.gather(*(member.process.start() for member in stage.computers.values()))
        await asyncio.gather(*(member.process.says("joined ") for member in stage.computers.values()))
        await asyncio.gather(*(stage.start_agent(name) for name in stage.agents))
        yield stage


async def _add_server(stage: Stage, stack: AsyncExitStack, name: str, port: int) -> None:
    words = [*PROGRAM, "server", "--port", str(port), "--api-key", _KEY, "--log-level", "warning"]
    words += ["--audit", str(stage.audit(name))]
    if stage.store:
        lines = await stack.enter_async_context(Lines([stage.store.port]))
        stage.store_lines.append(lines)
        words += ["--redis", f"redis://{lines.address}", "--node", name, "--node-url", f"http://127.0.0.1:{port}"]
    stage.servers.append(Process(name, words, stage.environ(), stage.folder))


def _computer(stage: Stage, lines: Lines, office: str, name: str) -> Member:
    script = str(Path(__file__).with_name("work_server.py"))
    servers = {
        tool: {
            "command": sys.executable,
            "args": [script, str(stage.books.ledger), office, name, tool, str(delay)],
            "env": {_MARKER: stage.marker},
            "default_tool_meta": {"auto_apply": True},
        }
        for tool, delay in TOOLS.items()
    }
    config = stage.folder / f"{office}-{name}.json"
    config.write_text(json.dumps({"mcpServers": servers}), "utf-8")
    link = ["--url", lines.url, "--office", office, "--name", name, "--api-key", _KEY]
    words = [*PROGRAM, "computer", *link, "--config", str(config), "--no-input"]
    words += ["--audit", str(stage.audit(f"{office}-{name}"))]
    return Member(Process(f"{office}-{name}", words, stage.environ(), stage.folder), lines, [(office, name)])
