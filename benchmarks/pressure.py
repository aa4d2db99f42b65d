"""What others feel while large results flow through a server, and what a reader costs it who does not read.

Small calls are made one after another: when all is quiet, while results of nearly 4 MB flow through the same server,
and while they flow through another one, which tells what the machine alone is to blame for. The flow comes from a
process of its own. Then an agent asks for such results and reads none of them: the server's memory is watched.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

import aiohttp
import uvloop

from benchmarks.contestants import (
    CONTESTANTS,
    NODE,
    PLAIN,
    PUBLISHED,
    SERVER,
    Contestant,
    Seated,
    seated,
    versions,
)
from benchmarks.crowds import LOGGING, url_of
from benchmarks.load import Agent, Computer, Office, burst, result_of, upgraded
from benchmarks.machine import pin_generator
from benchmarks.processes import PATIENCE, Running, running
from benchmarks.report import save
from benchmarks.table import Row, options, per, ratio, report

__all__: list[str] = []

MEASURED = (SERVER, PLAIN, PUBLISHED, NODE)
FIRST_IMPRESSION = (SERVER,)
MB = 1_000_000
SMALL, LARGE = 400, 3_900_000
AT_ONCE, BREATH = 2, 0.1
UNREAD, CALM, POLL = 40, 1.0, 0.005
FLOWING = "flowing"
WARM_UP = 0.3
FULL, QUICK = 6.0, 0.8
"""Seconds for which small calls are made in each case."""

UNREAD_CASE = f"an agent asks for {UNREAD * LARGE // MB} MB and does not read"
QUIET, SAME, OTHER = "all is quiet", "3.9 MB results flow through it", "they flow through another such server"


@dataclass(frozen=True, slots=True)
class Felt:
    """How long small calls took, in seconds, and how many bytes a second flowed meanwhile."""

    p50: float
    p99: float
    flow: float


@asynccontextmanager
async def office(url: str, name: str) -> AsyncIterator[Office]:
    """One office more, beside those that are there."""
    call = {"agent": "agent", "req_id": "req-%d", "computer": "computer", "tool_name": "read", "params": {}}
    request = f"42/smcp,%d{json.dumps(['client:tool_call', {**call, 'timeout': 10}])}"
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        computer = await stack.enter_async_context(upgraded(Computer, session, url))
        agent = await stack.enter_async_context(upgraded(Agent, session, url))
        await computer.join("computer", "computer", name)
        await agent.join("agent", "agent", name)
        yield Office(agent, computer, request.encode())


async def flow(url: str, tally: Path) -> None:
    """The other process: large results, some at a time, until it is ended. The tally says how many bytes so far."""
    result, total = result_of(LARGE), 0
    async with office(url, "large") as large:
        await burst([large], in_flight=AT_ONCE, seconds=0, result=result)
        _note(tally, total)
        print(FLOWING, flush=True)
        while True:
            found = await burst([large], in_flight=AT_ONCE, seconds=BREATH, result=result)
            total += len(found.seconds) * len(result)
            _note(tally, total)


@asynccontextmanager
async def flowing(server: Running | None) -> AsyncIterator[Path | None]:
    """Large results through this server, and the file that says how much; nothing without a server."""
    if server is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        tally = Path(folder) / "bytes"
        command = (sys.executable, "-m", "benchmarks.pressure", "--flow", url_of(server), tally)
        async with running(*command, says=FLOWING):
            yield tally


async def felt(seat: Seated, seconds: float, large: Running | None) -> Felt:
    """Small calls for so long, while large results flow through that server, if there is one."""
    async with flowing(large) as tally:
        before = _bytes(tally)
        found = await burst(seat.offices, in_flight=1, seconds=seconds, result=result_of(SMALL))
        flowed = _bytes(tally) - before
    cuts = quantiles(found.seconds, n=100, method="inclusive")
    return Felt(cuts[49], cuts[98], flowed / found.wall)


async def swollen(server: Running) -> float | None:
    """By how many bytes the server's memory grows, at most, when an agent asks and does not read."""
    async with office(url_of(server), "unread") as unread:
        unread.computer.result = result_of(LARGE)
        before = server.rss
        unread.agent.transport.underlying_transport.pause_reading()
        for number in range(UNREAD):
            unread.agent.say(unread.request % (number, number))
        peak = await peak_memory(server)
    return None if before is None else peak - before


async def peak_memory(server: Running) -> int:
    """The highest that is seen before nothing higher has been seen for a while."""
    peak, seen, start = 0, time.perf_counter(), time.perf_counter()
    while (now := time.perf_counter()) < min(seen + CALM, start + PATIENCE):
        if (memory := server.rss or 0) > peak:
            peak, seen = memory, now
        await asyncio.sleep(POLL)
    return peak


async def measure(contestants: Sequence[Contestant], seconds: float) -> list[Row]:
    rows: list[Row] = []
    for contestant in contestants:
        async with seated((contestant,), 1) as found, seated((contestant,), 1) as others:
            for title, seat in found.items():
                rows += await under_pressure(title, seat, others[title], seconds)
    return rows


async def under_pressure(title: str, seat: Seated, other: Seated, seconds: float) -> list[Row]:
    """Memory first, at the server that nothing has swollen yet."""
    await felt(seat, WARM_UP, None)
    grown = await swollen(other.server)
    cases = {QUIET: None, SAME: seat.server, OTHER: other.server}
    found = {case: await felt(seat, seconds, large) for case, large in cases.items()}
    return [
        *(
            {
                "server": title,
                "while": case,
                "p50 ms": per(each.p50, 1, 1e-3),
                "p99 ms": per(each.p99, 1, 1e-3),
                "p99 times quiet": ratio(each.p99, found[QUIET].p99),
                "flow MB/s": per(each.flow, 1, MB),
            }
            for case, each in found.items()
        ),
        {"server": title, "while": UNREAD_CASE, "memory grows by MB": per(grown, 1, MB)},
    ]


def _note(tally: Path, total: int) -> None:
    """Whoever reads at the same time reads all of it, or what was there before."""
    fresh = tally.with_suffix(".fresh")
    fresh.write_text(str(total))
    fresh.replace(tally)


def _bytes(tally: Path | None) -> int:
    return int(tally.read_text()) if tally else 0


def main() -> None:
    parser = options("Large results, and readers that do not read.", rounds=1)
    parser.add_argument("--flow", nargs=2, metavar=("URL", "TALLY"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    pin_generator()
    if chosen.flow:
        url, tally = chosen.flow
        uvloop.run(flow(url, Path(tally)))
    os.environ.setdefault(*LOGGING)
    titles, seconds = (FIRST_IMPRESSION, QUICK) if chosen.quick else (MEASURED, FULL)
    contestants = [each for each in CONTESTANTS if each.title in titles]
    table = uvloop.run(measure(contestants, seconds))
    report(table, chosen)
    save("pressure", chosen.title, table, versions=versions())


if __name__ == "__main__":
    main()
