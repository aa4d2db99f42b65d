"""What the way through an office costs: agent, Server, computer, stdio MCP server and back, beside the MCP call alone.

Every part is a process of its own, as people run them; so are those of the published package, which takes its turns in
the same run. Two MCP servers are called: one on the SDK, as most are, and one that answers at once, so that nothing but
the way there is left. CPU is each process's own.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import uvloop

from benchmarks.calling import READY, Sample
from benchmarks.configuration import stdio_server, written
from benchmarks.processes import OURS as PYTHON
from benchmarks.processes import PATIENCE, PROGRAM, ROOT, Running, hub, interpreter, running
from benchmarks.report import save
from benchmarks.table import Row, in_turn, median, options, per, ratio, report

__all__ = [
    "COMPUTER",
    "MCP_SERVERS",
    "OFFICE",
    "PARTS",
    "TOOLS",
    "TYPICAL",
    "WAYS",
    "Contestant",
    "Found",
    "answering",
    "compare",
    "ours",
]

HERE = Path(__file__).parent
DIRECT, OURS, PUBLISHED = "direct MCP call", "ours", "0.4.2"
PARTS = ("agent", "server", "computer")
OFFICE, COMPUTER, KEY = "desk", "laptop", "benchmark-0123456789"
LONGEST_LINE = 2**20
POLL = 0.1
WARM_UP = 96
QUICK = 2

TOOLS = {"echo": "on the SDK", "bare_0": "answers at once"}
WAYS = {"one at a time": 1, "32 in flight": 32}
CALLS = {1: 64, 32: 256}
MCP_SERVERS = (stdio_server("echo", "echo_server.py"), stdio_server("bare", "mcp_server.py", "bare", 5, 0, 0))
TYPICAL = "echo"
"""The tool that the goals speak of."""


class Contestant:
    """A process that calls, those between it and the MCP servers, and a line to it."""

    def __init__(self, caller: Running, between: Mapping[str, Running]) -> None:
        self._processes = {"agent": caller, **between}
        self._port = int(caller.said.removeprefix(READY))

    def cpu(self) -> dict[str, float | None]:
        return {part: process.cpu for part, process in self._processes.items()}

    def cpu_since(self, before: Mapping[str, float | None]) -> dict[str, float | None]:
        return {part: process.cpu_since(before[part]) for part, process in self._processes.items()}

    async def calls(self, tool: str, calls: int, at_once: int) -> Sample | None:
        """What they took, `None` if one of them failed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=LONGEST_LINE)
        writer.write(json.dumps({"tool": tool, "calls": calls, "at_once": at_once}).encode() + b"\n")
        async with asyncio.timeout(PATIENCE * 2):
            line = await reader.readline()
        writer.close()
        return Sample(**json.loads(line)) if line else None


@dataclass(frozen=True, slots=True)
class Found:
    """Seconds a call, calls a second, and µs of CPU a call by process."""

    p50: float
    throughput: float
    busy: dict[str, float | None]


@asynccontextmanager
async def direct(config: Path) -> AsyncIterator[Contestant]:
    command = (PYTHON, "-m", "benchmarks.direct_caller", config)
    async with running(*command, says=READY) as caller:
        yield Contestant(caller, {})


@asynccontextmanager
async def ours(config: Path, checkout: Path = ROOT) -> AsyncIterator[Contestant]:
    """All three parts as they are in this checkout."""
    code = {"PYTHONPATH": str(checkout)}
    async with hub(code) as (url, server):
        seat = ("--url", url, "--office", OFFICE, "--name", COMPUTER, "--config", config)
        home = {"HOME": str(config.parent), **code}
        call = ("-m", "benchmarks.our_caller", url, OFFICE, COMPUTER)
        async with (
            running(PROGRAM, "computer", "--no-input", *seat, environment=home) as computer,
            running(PYTHON, *call, says=READY, folder=checkout) as caller,
        ):
            yield Contestant(caller, {"server": server, "computer": computer})


@asynccontextmanager
async def published(config: Path) -> AsyncIterator[Contestant]:
    python, listening = interpreter(PUBLISHED), "listening on "
    apart = {"HOME": str(config.parent), "PYTHONPATH": str(ROOT / "tests/interop/peers"), "A2C_SMCP_LOG_LEVEL": "error"}
    async with running(python, HERE / "servers/published.py", says=listening, environment=apart) as server:
        url = server.said.removeprefix(listening)
        seat = ("--url", url, "--office", OFFICE, "--name", COMPUTER, "--config", config, "--api-key", KEY)
        caller_command = (python, HERE / "published_caller.py", url, OFFICE, COMPUTER, KEY)
        async with (
            running(python, HERE / "published_computer.py", *seat, environment=apart) as computer,
            running(*caller_command, says=READY, environment=apart) as caller,
        ):
            yield Contestant(caller, {"server": server, "computer": computer})


CONTESTANTS = {DIRECT: direct, OURS: ours, PUBLISHED: published}


@asynccontextmanager
async def everybody() -> AsyncIterator[dict[str, Contestant]]:
    """All contestants by name, once all their tools answer. They come up together."""
    with tempfile.TemporaryDirectory() as folder:
        config = written(Path(folder) / "servers.json", MCP_SERVERS)
        async with AsyncExitStack() as stack:
            contestants = {name: await stack.enter_async_context(start(config)) for name, start in CONTESTANTS.items()}
            await asyncio.gather(*map(answering, contestants.values()))
            yield contestants


async def answering(contestant: Contestant) -> None:
    """Waits until every tool can be called, and is warm: computers and MCP servers come up in their own time."""
    async with asyncio.timeout(PATIENCE):
        for tool in TOOLS:
            while True:
                if await contestant.calls(tool, 1, 1):
                    break
                await asyncio.sleep(POLL)
            await contestant.calls(tool, WARM_UP, max(WAYS.values()))


async def compare(contestants: Mapping[str, Contestant], rounds: int, tool: str, at_once: int) -> dict[str, Found]:
    calls = CALLS[at_once]

    async def measured(contestant: Contestant) -> Sample:
        if sample := await contestant.calls(tool, calls, at_once):
            return sample
        raise RuntimeError(f"a call of {tool} failed")

    before = {name: contestant.cpu() for name, contestant in contestants.items()}
    samples = await in_turn(contestants, rounds, measured)
    return {
        name: Found(
            p50=median(each for sample in samples[name] for each in sample.each),
            throughput=median(calls / sample.elapsed for sample in samples[name]),
            busy={part: per(cpu, rounds * calls, 1e-6) for part, cpu in contestant.cpu_since(before[name]).items()},
        )
        for name, contestant in contestants.items()
    }


def rows(tool: str, way: str, found: Mapping[str, Found]) -> list[Row]:
    direct = found[DIRECT]
    return [
        {
            "MCP server": TOOLS[tool],
            "calls": way,
            "through": name,
            "p50 ms": per(each.p50, 1, 1e-3),
            "times direct": ratio(each.p50, direct.p50),
            "calls per s": per(each.throughput, 1),
            "of direct": ratio(each.throughput, direct.throughput),
            **{f"{part} CPU µs": each.busy.get(part) for part in PARTS},
        }
        for name, each in found.items()
    ]


def goals(tool: str, at_once: int, found: Mapping[str, Found]) -> dict[str, float | None]:
    if tool != TYPICAL:
        return {}
    if at_once == 1:
        return {"end_to_end.p50": ratio(found[OURS].p50, found[DIRECT].p50)}
    return {"end_to_end.throughput": ratio(found[OURS].throughput, found[DIRECT].throughput)}


async def measure(rounds: int) -> tuple[list[Row], dict[str, float | None]]:
    table: list[Row] = []
    measured: dict[str, float | None] = {}
    async with everybody() as contestants:
        for tool, (way, at_once) in product(TOOLS, WAYS.items()):
            found = await compare(contestants, rounds, tool, at_once)
            table += rows(tool, way, found)
            measured |= goals(tool, at_once, found)
    return table, measured


def main() -> None:
    chosen = options("A tool call through an office, compared with a direct MCP call.", rounds=20).parse_args()
    table, measured = uvloop.run(measure(QUICK if chosen.quick else chosen.rounds))
    report(table, chosen)
    save("end_to_end", chosen.title, table, measured)


if __name__ == "__main__":
    main()
