"""What the operator's console costs, and how soon it shows what happens: a real Server with 1,000 computers at work.

The client is a program that loads pages and follows their streams as a browser does. The first paint is that of a real
Chromium, if there is one and what drives it (`make bench-console` installs it). An update is late by the time from the
first byte that a member sends until the region with it has come. CPU is the Server's, with one page open less that
without, while the same calls go on.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count

import uvloop

from benchmarks.console_browser import Browser, Loaded, signed_in
from benchmarks.contestants import LISTENING, SERVE
from benchmarks.crowds import allow_files, busy_share, url_of
from benchmarks.load import ACK, KEY, REQUEST, Computer, Refused, Socket, result_of, websocket_first
from benchmarks.machine import measured_core, pin_generator
from benchmarks.processes import PATIENCE, ROOT, Running, running
from benchmarks.report import save
from benchmarks.table import Row, in_turn, median, options, per, report, told

__all__: list[str] = []

ADMIN_KEY, KEYS = "operator-0123456789", (KEY, *(f"{KEY}-{number}" for number in range(40)))
PAGES = {
    "overview": "/",
    "offices": "/offices",
    "members": "/members",
    "calls": "/calls",
    "refusals": "/refusals",
    "keys": "/keys",
}
NO_PAGE = "no page open"
BROWSER = ROOT / ".cache" / "browser"
COMPUTERS, OFFICES, RATE = 1000, 20, 100
REFUSED_EVERY = 20
"""Of so many calls one is to a computer that is not there, so that there are refusals to show."""
AT_ONCE, SPARE_FILES = 32, 200
SETTLING = 0.7
ENOUGH = 0.95
KB = 1000


@dataclass(frozen=True, slots=True)
class Plan:
    """How often pages are loaded, how many updates are awaited, and how often and long CPU is read for each page."""

    loads: int
    updates: int
    rounds: int
    seconds: float


FULL = Plan(loads=15, updates=20, rounds=5, seconds=2.5)
QUICK = Plan(loads=5, updates=8, rounds=2, seconds=2.0)


class Agent(Socket):
    """Calls without waiting for answers, which it counts."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = 0
        self._ids = count(1)

    def hear(self, head: bytes) -> None:
        self.answers += head.startswith(ACK)
        super().hear(head)

    def call(self, office: int, computer: str, tool: str = "search_notes") -> bytes:
        """Sends a call, and returns how its answer begins."""
        number = next(self._ids)
        sent = {"agent": f"agent-{office}", "req_id": f"{office}-{number}", "computer": computer, "tool_name": tool}
        body = json.dumps(["client:tool_call", {**sent, "params": {"query": "green tea"}, "timeout": 10}])
        self.say(REQUEST + b"%d" % number + body.encode())
        return ACK + b"%d[" % number


@dataclass(frozen=True, slots=True)
class Inhabited:
    """The Server, the agents of its offices, and computers that are connected and have not joined yet."""

    server: Running
    agents: list[Agent]
    probes: list[Computer]

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Calls go on until the block ends. Raises `Refused` if the Server or this process did not keep up."""
        working, start = asyncio.create_task(self._work()), time.perf_counter()
        try:
            yield
            wanted, answers = RATE * (time.perf_counter() - start), sum(agent.answers for agent in self.agents)
            if answers < ENOUGH * wanted:
                raise Refused(f"of {wanted:.0f} calls {answers} were sent and answered: too few for this measurement")
        finally:
            working.cancel()
            await asyncio.wait([working])

    async def _work(self) -> None:
        """Calls at a steady rate, over all offices and computers."""
        start, to_an_office = time.perf_counter(), COMPUTERS // OFFICES
        for number in count():
            await asyncio.sleep(max(0.0, start + number / RATE - time.perf_counter()))
            office, place = number % OFFICES, (number // OFFICES) % to_an_office
            is_refused = number % REFUSED_EVERY == 0
            self.agents[office].call(office, "nobody" if is_refused else f"computer-{office * to_an_office + place}")


@dataclass(frozen=True, slots=True)
class Found:
    """By page: what loading it took, seconds until its first paint, until its updates came, and the Server's CPU."""

    loads: dict[str, list[Loaded]]
    paints: dict[str, list[float]]
    lags: dict[str, list[float]]
    busy: dict[str, list[float]]

    def added(self, page: str) -> float:
        return median(each - none for each, none in zip(self.busy[page], self.busy[NO_PAGE], strict=True))


@asynccontextmanager
async def inhabited(plan: Plan) -> AsyncIterator[Inhabited]:
    """A Server with all its members, and with computers that will join while updates are measured."""
    turn = asyncio.Semaphore(AT_ONCE)
    keys = (option for key in KEYS for option in ("--api-key", key))
    command = (*SERVE, "--console", "--admin-key", ADMIN_KEY, *keys)
    async with running(*command, says=LISTENING) as server, AsyncExitStack() as stack:
        server.pin(measured_core())
        url = url_of(server)

        async def come(number: int) -> None:
            async with turn:
                computer = await stack.enter_async_context(websocket_first(Computer, url))
                computer.result = result_of(400)
                await computer.join("computer", f"computer-{number}", f"office-{number // (COMPUTERS // OFFICES)}")

        async with asyncio.TaskGroup() as group:
            for number in range(COMPUTERS):
                group.create_task(come(number))
        agents = [await stack.enter_async_context(websocket_first(Agent, url)) for _ in range(OFFICES)]
        for number, agent in enumerate(agents):
            await agent.join("agent", f"agent-{number}", f"office-{number}")
        probes = [await stack.enter_async_context(websocket_first(Computer, url)) for _ in range(plan.updates)]
        yield Inhabited(server, agents, probes)


async def updates(place: Inhabited, browser: Browser) -> dict[str, list[float]]:
    """A computer joins and is called, again and again, while three pages are open. It is not in step with anything."""
    lags: dict[str, list[float]] = {"overview": [], "members": [], "calls": []}
    chance = random.Random(1)
    async with (
        browser.open("/") as overview,
        browser.open("/members?search=probe") as members,
        browser.open("/calls?search=probe") as calls,
    ):
        for number, probe in enumerate(place.probes, 1):
            name = f"probe-{number:03}"
            tile = f'<dt>Computers</dt><dd class="number">{COMPUTERS + number:,}</dd>'
            listed = {"overview": overview.shows("numbers", tile), "members": members.shows("members", f">{name}<")}
            start = time.perf_counter()
            await probe.join("computer", name, "office-0")
            for page, shown in listed.items():
                lags[page].append(await asyncio.wait_for(shown, PATIENCE) - start)
            await asyncio.sleep(chance.random())
            ended = calls.shows("ended", f">use_{name}<")
            start = time.perf_counter()
            place.agents[0].call(0, name, f"use_{name}")
            lags["calls"].append(await asyncio.wait_for(ended, PATIENCE) - start)
            await asyncio.sleep(chance.random())
    return lags


async def cpu(place: Inhabited, browser: Browser, plan: Plan) -> dict[str, list[float]]:
    """The Server's share of a core with each page open, and with none, in turn."""

    async def read(path: str) -> float:
        async with AsyncExitStack() as stack:
            if path:
                await stack.enter_async_context(browser.open(path))
            await asyncio.sleep(SETTLING)
            return await busy_share(place.server, plan.seconds)

    return await in_turn({NO_PAGE: "", **PAGES}, plan.rounds, read)


async def first_paints(browser: Browser, loads: int) -> dict[str, list[float]]:
    """Seconds until Chromium has painted something of each page; nothing without it."""
    if not (BROWSER / ".ready").exists():
        told("no first paint: `make bench-console` installs what drives the browser")
        return {}
    command = (BROWSER / "python" / "bin" / "python", "-m", "benchmarks.first_paint")
    paths = {f"/console{path}": page for page, path in PAGES.items()}
    process = await asyncio.create_subprocess_exec(
        *command, browser.url, browser.secret, str(loads), *paths, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    return {paths[path]: seconds for path, seconds in json.loads(printed).items()} if process.returncode == 0 else {}


async def measure(plan: Plan) -> Found:
    told(f"{COMPUTERS:,} computers come")
    async with inhabited(plan) as place, place.at_work():
        browser = await signed_in(url_of(place.server), ADMIN_KEY)
        await asyncio.sleep(SETTLING)
        told("pages")
        loads = await in_turn(PAGES, plan.loads, browser.load)
        told("first paints")
        paints = await first_paints(browser, plan.loads)
        told("updates")
        lags = await updates(place, browser)
        told("CPU")
        return Found(loads, paints, lags, await cpu(place, browser, plan))


def rows(found: Found) -> list[Row]:
    first: Row = {"page": NO_PAGE, "Server's CPU, % of a core": per(median(found.busy[NO_PAGE]), 1, 0.01)}
    return [first, *(_row(page, found) for page in PAGES)]


def _row(page: str, found: Found) -> Row:
    loads, paints, lags = found.loads[page], found.paints.get(page), found.lags.get(page)
    return {
        "page": page,
        "Server's CPU, % of a core": per(median(found.busy[page]), 1, 0.01),
        "more than without": per(found.added(page), 1, 0.01),
        "whole page, p50 ms": per(median(each.seconds for each in loads), 1, 1e-3),
        "first paint, p50 ms": per(median(paints), 1, 1e-3) if paints else None,
        "kB": per(median(each.size for each in loads), 1, KB),
        "update": {"overview": "a join", "members": "a join", "calls": "a call"}.get(page, ""),
        "lag p50 ms": per(median(lags), 1, 1e-3) if lags else None,
        "lag max ms": per(max(lags), 1, 1e-3) if lags else None,
    }


def goals(found: Found) -> Mapping[str, float | None]:
    """Of the page that is the worst."""
    lags: Sequence[float] = [each for some in found.lags.values() for each in some]
    return {
        "operator_console.page": per(max(median(each.seconds for each in some) for some in found.loads.values()), 1),
        "operator_console.paint": per(max(map(median, found.paints.values())), 1) if found.paints else None,
        "operator_console.lag": per(max(lags), 1),
        "operator_console.cpu": per(max(found.added(page) for page in PAGES), 1),
    }


def main() -> None:
    title = f"The operator's console: {COMPUTERS:,} computers, {RATE} calls per second."
    chosen = options(title, rounds=FULL.rounds).parse_args()
    plan = QUICK if chosen.quick else Plan(FULL.loads, FULL.updates, chosen.rounds, FULL.seconds)
    allow_files(COMPUTERS + SPARE_FILES)
    pin_generator()
    found = uvloop.run(measure(plan))
    table = rows(found)
    report(table, chosen)
    save("operator_console", title, table, goals(found))


if __name__ == "__main__":
    main()
