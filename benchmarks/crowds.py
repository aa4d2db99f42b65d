"""What many connections cost a Server: until they have joined, and when they then sit there. Ours beside others.

The crowd comes as most clients do, polling first, where nothing else is said, and reads every notice that it is sent.
Joining is over when the server has come to rest, so that notices which are still on their way are paid for too. CPU is
the server process's own; it has a core to itself.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import product

import aiohttp
import uvloop

from benchmarks.contestants import CONTESTANTS, LISTENING, NODE, PUBLISHED, SERVER, Contestant, seated, versions
from benchmarks.load import Socket, upgraded, websocket_first
from benchmarks.machine import pin_generator
from benchmarks.processes import Running
from benchmarks.report import save
from benchmarks.table import Row, median, options, per, ratio, report

__all__ = ["LOGGING", "allow_files", "busy_share", "url_of"]

MEASURED = tuple(each for each in CONTESTANTS if each.title in {SERVER, PUBLISHED, NODE})
AT_ONCE = 32
NOTICE = b'42/smcp,["notify:'
QUIET, AT_REST = 0.15, 0.1
BOUND = 60.0
LOGGING = ("A2C_SMCP_LOG_LEVEL", "error")
"""For the published Server: it logs to standard output, where nobody reads on, and would stop when that is full."""

KB = 1000
SPARE_FILES = 200


@dataclass(frozen=True, slots=True)
class Setting:
    """How many computers come, how many of them to an office, and for how long they then sit there."""

    computers: int
    to_an_office: int
    idle: float = 0.0
    by_websocket: bool = False

    def __str__(self) -> str:
        offices = -(-self.computers // self.to_an_office)
        where = "one office" if offices == 1 else f"{offices:,} offices"
        return f"{self.computers:,} computers, {where}{', websocket first' if self.by_websocket else ''}"


@dataclass(frozen=True, slots=True)
class Plan:
    settings: tuple[Setting, ...]
    rounds: int


WARM_UP = Setting(40, 40)
ONE_OFFICE = Setting(500, 500)
FULL = Plan(
    (Setting(2000, 10, idle=10), Setting(2000, 10, idle=10, by_websocket=True), ONE_OFFICE, Setting(500, 1)), rounds=1
)
QUICK = Plan((Setting(150, 10, idle=1), Setting(150, 10, idle=1, by_websocket=True), Setting(100, 100)), rounds=1)


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds until all had joined, the server's CPU for it, its memory for each, and its CPU per second after that."""

    seconds: float
    cpu: float
    memory: float
    idle: float | None
    notices: int


class Member(Socket):
    """A computer that reads what it is told, and only counts it."""

    notices = 0

    def hear(self, head: bytes) -> None:
        self.notices += head.startswith(NOTICE)
        super().hear(head)


@asynccontextmanager
async def crowd(url: str, setting: Setting) -> AsyncIterator[list[Member]]:
    """Lets them come, some at a time, and yields when all have joined."""
    turn, members = asyncio.Semaphore(AT_ONCE), list[Member]()

    async def come(number: int) -> None:
        async with turn:
            way = websocket_first(Member, url) if setting.by_websocket else upgraded(Member, session, url)
            member = await stack.enter_async_context(way)
            await member.join("computer", f"computer-{number}", f"office-{number // setting.to_an_office}")
            members.append(member)

    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with asyncio.TaskGroup() as group:
            for number in range(setting.computers):
                group.create_task(come(number))
        yield members


async def sample(server: Running, setting: Setting) -> Sample:
    await rest(server)
    memory, cpu, start = server.rss, server.cpu, time.perf_counter()
    async with crowd(url_of(server), setting) as members:
        seconds = time.perf_counter() - start
        await rest(server)
        busy, grown = server.cpu_since(cpu), server.rss
        if busy is None or memory is None or grown is None:
            raise SystemExit("the CPU time and memory of a server cannot be read here: /proc is needed")
        idle = await busy_share(server, setting.idle) if setting.idle else None
        notices = sum(member.notices for member in members)
        return Sample(seconds, busy, (grown - memory) / setting.computers, idle, notices)


async def busy_share(server: Running, seconds: float) -> float:
    """CPU seconds per second, for so long."""
    before, start = server.cpu, time.perf_counter()
    await asyncio.sleep(seconds)
    return (server.cpu_since(before) or 0) / (time.perf_counter() - start)


async def rest(server: Running) -> None:
    """Until it is done with whatever it was told."""
    async with asyncio.timeout(BOUND):
        while await busy_share(server, QUIET) > AT_REST:
            pass


async def visit(contestant: Contestant, setting: Setting) -> tuple[str, Sample] | None:
    """The setting at a fresh server: what another crowd has left behind is nobody's memory."""
    async with seated((contestant,), 0) as found:
        for title, seat in found.items():
            async with crowd(url_of(seat.server), WARM_UP):
                await rest(seat.server)
            return title, await sample(seat.server, setting)
    return None


def url_of(server: Running) -> str:
    return server.said.removeprefix(LISTENING)


async def measure(plan: Plan) -> dict[Setting, dict[str, list[Sample]]]:
    found: dict[Setting, dict[str, list[Sample]]] = {setting: {} for setting in plan.settings}
    for _, setting, contestant in product(range(plan.rounds), plan.settings, MEASURED):
        if visited := await visit(contestant, setting):
            title, each = visited
            found[setting].setdefault(title, []).append(each)
    return found


def rows(setting: Setting, samples: Mapping[str, Sequence[Sample]]) -> list[Row]:
    cpu = {title: median(each.cpu for each in some) for title, some in samples.items()}
    return [
        {
            "who joins": str(setting),
            "server": title,
            "joins/s": per(setting.computers, median(each.seconds for each in some)),
            "CPU s": per(cpu[title], 1),
            "CPU ms each": per(cpu[title], setting.computers, 1e-3),
            "times ours": ratio(cpu[title], cpu[SERVER]),
            "notices read": max(each.notices for each in some),
            **(_sitting(some) if setting.idle else {}),
        }
        for title, some in samples.items()
    ]


def _sitting(some: Sequence[Sample]) -> Row:
    return {
        "kB each": per(median(each.memory for each in some), 1, KB),
        "then idle, CPU ms/s": per(median(each.idle or 0 for each in some), 1, 1e-3),
    }


def goals(table: Sequence[Row], plan: Plan) -> dict[str, float | None]:
    """What joining one office costs is asked of 500: a first impression has no answer to that."""
    found = {(row["who joins"], row["server"]): row for row in table}
    published = found.get((str(ONE_OFFICE), PUBLISHED), {})
    polling, websocket = (found[str(setting), SERVER]["kB each"] for setting in plan.settings[:2])
    return {
        "crowds.joins": published.get("times ours"),
        "crowds.memory": polling,
        "crowds.memory_websocket": websocket,
    }


def allow_files(wanted: int) -> None:
    """Raises the limit on open files, for this process and the servers that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            sys.exit(f"{wanted} open files are needed and {hard} allowed: see `ulimit -n`")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main() -> None:
    parser = options("Many computers: joining, and idle connections.", rounds=FULL.rounds)
    chosen = parser.parse_args()
    plan = QUICK if chosen.quick else Plan(FULL.settings, chosen.rounds)
    os.environ.setdefault(*LOGGING)
    allow_files(max(setting.computers for setting in plan.settings) + SPARE_FILES)
    pin_generator()
    found = uvloop.run(measure(plan))
    table = [row for setting, samples in found.items() for row in rows(setting, samples)]
    report(table, chosen)
    save("crowds", chosen.title, table, goals(table, plan), versions=versions())


if __name__ == "__main__":
    main()
