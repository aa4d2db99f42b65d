"""What metrics, the audit trail and traces add to a call.

Relayed calls: those per CPU-second of a Server that counts, records or both, over those of one that does neither. Calls
from end to end: the median time through agent, Server and computer to an MCP server, with spans of all of them written
to files, or with the computer's audit trail, over that without. All take turns, so that a busy machine slows down all.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import uvloop

from benchmarks.calling import READY
from benchmarks.configuration import written
from benchmarks.contestants import SERVE, Command, seated
from benchmarks.contestants import Contestant as Relaying
from benchmarks.end_to_end import (
    COMPUTER,
    MCP_SERVERS,
    OFFICE,
    PARTS,
    TOOLS,
    TYPICAL,
    Contestant,
    Found,
    answering,
    compare,
)
from benchmarks.machine import pin_generator
from benchmarks.processes import OURS as PYTHON
from benchmarks.processes import PROGRAM, hub, running
from benchmarks.relay import HEADLINE, OFFICES, Plan, Sample, rounds, sample, times
from benchmarks.report import save
from benchmarks.table import Row, median, options, per, ratio, report

__all__: list[str] = []

OFF, METRICS, AUDIT, BOTH = "off", "server --metrics", "server --audit", "server --metrics --audit"
TRACES, COMPUTER_AUDIT = "traces of all", "computer --audit"
ROUNDS, QUICK = 30, 10
TRACED_CALLER = """\
import runpy, sys
from pathlib import Path
from a2c_smcp.telemetry.exporting import export_traces
export_traces("caller", Path(sys.argv.pop(1)))
runpy.run_module("benchmarks.our_caller", run_name="__main__", alter_sys=True)
"""


def relaying(title: str, folder: Path) -> Relaying:
    """A Server with the options that its title names; its audit trail is a file of that folder."""
    audit = ("--audit", folder / f"{title.replace(' ', '')}.jsonl") if "--audit" in title else ()
    metrics = ("--metrics",) if "--metrics" in title else ()
    command: Command = (*SERVE, *metrics, *audit)
    return Relaying(title, lambda: command, is_ours=True)


async def relayed(count: int) -> Mapping[str, Sequence[Sample]]:
    plan = Plan(settings=(HEADLINE,), rounds=count, burst=0.2, warm_up=1.0)
    with tempfile.TemporaryDirectory() as folder:
        contestants = [relaying(title, Path(folder)) for title in (OFF, METRICS, AUDIT, BOTH)]
        async with seated(contestants, OFFICES) as found:
            for each in found.values():
                await sample(each, HEADLINE, plan.warm_up)
            return (await rounds(found, plan))[HEADLINE]


@asynccontextmanager
async def through_all(folder: Path, kind: str) -> AsyncIterator[Contestant]:
    """Agent, Server and computer, each a process that writes its spans or its audit trail to a file of that folder."""

    def traced(name: str) -> dict[str, str]:
        return {"A2C_TRACE_FILE": str(folder / f"{name}.jsonl")} if kind == TRACES else {}

    config = written(folder / "servers.json", MCP_SERVERS)
    caller = ("-c", TRACED_CALLER, folder / "caller.jsonl") if kind == TRACES else ("-m", "benchmarks.our_caller")
    audit = ("--audit", folder / "audit.jsonl") if kind == COMPUTER_AUDIT else ()
    async with hub(traced("server")) as (url, server):
        seat = ("--url", url, "--office", OFFICE, "--name", COMPUTER, "--config", config, *audit)
        home = {"HOME": str(folder), **traced("computer")}
        async with (
            running(PROGRAM, "computer", "--no-input", *seat, environment=home) as computer,
            running(PYTHON, *caller, url, OFFICE, COMPUTER, says=READY) as calling,
        ):
            yield Contestant(calling, {"server": server, "computer": computer})


async def end_to_end(count: int) -> dict[str, Found]:
    async with AsyncExitStack() as stack:
        contestants = {}
        for kind in (OFF, TRACES, COMPUTER_AUDIT):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            contestants[kind] = await stack.enter_async_context(through_all(folder, kind))
        await asyncio.gather(*map(answering, contestants.values()))
        return await compare(contestants, count, TYPICAL, 1)


def rows(samples: Mapping[str, Sequence[Sample]], found: Mapping[str, Found]) -> list[Row]:
    relay: list[Row] = [
        {
            "what": "relayed calls",
            "monitored": title,
            "CPU µs per call": per(median(each.cpu for each in some), 1, 1e-6),
            "calls per CPU-second, times off": times(samples, title, OFF),
        }
        for title, some in samples.items()
    ]
    whole: list[Row] = [
        {
            "what": f"a call to an MCP server {TOOLS[TYPICAL]}",
            "monitored": kind,
            "p50 ms": per(each.p50, 1, 1e-3),
            "p50, times off": ratio(each.p50, found[OFF].p50),
            **{f"{part} CPU µs": each.busy.get(part) for part in PARTS},
        }
        for kind, each in found.items()
    ]
    return relay + whole


def main() -> None:
    chosen = options("What metrics, the audit trail and traces add to a call.", rounds=ROUNDS).parse_args()
    count = QUICK if chosen.quick else chosen.rounds
    found = uvloop.run(end_to_end(count))
    pin_generator()
    samples = uvloop.run(relayed(count))
    table = rows(samples, found)
    report(table, chosen)
    measured = {
        "monitored.relay": times(samples, BOTH, OFF),
        "monitored.traces": ratio(found[TRACES].p50, found[OFF].p50),
    }
    save("monitored", chosen.title, table, measured)


if __name__ == "__main__":
    main()
