"""How the cost of a call grows with everything that could make it grow, each over a factor of a hundred.

The cost is CPU of the processes that do the work: the Server's, and a computer's where there is a real one. The
exponent is that of the power law that fits best: 0 is flat, 1 is proportional.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import log
from statistics import linear_regression
from typing import TypeVar

import uvloop

from benchmarks.crowds import allow_files
from benchmarks.desks import Desk, Request, Spent, desks
from benchmarks.load import Office, burst, offices, result_of
from benchmarks.machine import measured_core, pin_generator
from benchmarks.processes import Running, hub
from benchmarks.report import save
from benchmarks.table import Row, in_turn, median, options, per, report, told

__all__: list[str] = []

Contestant = TypeVar("Contestant")
Sample = TypeVar("Sample")

RELAY = "relay of a call: Server"
IN_FLIGHT, BUSY, RESULT = 32, 10, 400
SPARE_FILES = 200


@dataclass(frozen=True, slots=True)
class Plan:
    """The sizes that are tried, how often, and for how many seconds each."""

    offices: tuple[int, ...]
    tools: tuple[int, ...]
    windows: tuple[int, ...]
    payload: tuple[int, ...]
    rounds: int
    burst: float


FULL = Plan(
    offices=(10, 32, 100, 316, 1000),
    tools=(5, 16, 50, 158, 500),
    windows=(1, 3, 10, 32, 100),
    payload=(1_000, 3_160, 10_000, 31_600, 100_000),
    rounds=7,
    burst=0.2,
)
QUICK = Plan(
    offices=(2, 20, 200),
    tools=(5, 50, 500),
    windows=(1, 10, 100),
    payload=(1_000, 10_000, 100_000),
    rounds=2,
    burst=0.08,
)


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds of CPU by size. `goal` is the key of the goal that asks for its exponent."""

    what: str
    over: str
    costs: Mapping[int, float]
    goal: str | None = None

    @property
    def exponent(self) -> float:
        sizes, costs = map(log, self.costs), map(log, self.costs.values())
        return round(linear_regression([*sizes], [*costs]).slope, 3) + 0.0  # no minus before a zero


async def over_offices(plan: Plan) -> list[Curve]:
    """A Server for each number of offices. Ten of these are busy at a time, others in every burst."""
    result = result_of(RESULT)

    async def cost(contestant: tuple[Running, list[Office]]) -> float:
        server, there = contestant
        return await relayed(server, random.sample(there, min(BUSY, len(there))), result, plan.burst)

    async with AsyncExitStack() as stack:
        contestants = {}
        for number in plan.offices:
            told(f"{number} offices")
            url, server = await stack.enter_async_context(hub())
            server.pin(measured_core())
            contestants[number] = server, await stack.enter_async_context(offices(url, number))
        samples = await by_size(contestants, plan.rounds, cost)
    return [Curve(RELAY, "offices", medians(samples, float), "growth.offices")]


async def over_payload(plan: Plan) -> list[Curve]:
    """One Server, and results of each size through the same offices."""
    async with hub() as (url, server), offices(url, BUSY) as some:
        server.pin(measured_core())

        async def cost(result: bytes) -> float:
            return await relayed(server, some, result, plan.burst)

        samples = await by_size({size: result_of(size) for size in plan.payload}, plan.rounds, cost)
    return [Curve(RELAY, "bytes of its result", medians(samples, float))]


async def relayed(server: Running, some: Sequence[Office], result: bytes, seconds: float) -> float:
    """CPU of the Server per call."""
    before = server.cpu
    found = await burst(some, in_flight=IN_FLIGHT, seconds=seconds, result=result)
    return (server.cpu_since(before) or 0) / len(found.seconds)


async def over_tools_and_windows(plan: Plan) -> list[Curve]:
    """Real computers, each with more tools and windows than the one before."""
    told("computers with more and more tools and windows")
    async with desks(zip(plan.tools, plan.windows, strict=True)) as found:

        async def spent(request: Callable[[Desk], Request], in_flight: int, desk: Desk) -> Spent:
            return await desk.spent(request(desk), in_flight=in_flight, seconds=plan.burst)

        by_tools, by_windows = {desk.tools: desk for desk in found}, {desk.windows: desk for desk in found}
        calls = await by_size(by_tools, plan.rounds, partial(spent, Desk.tool_call, IN_FLIGHT))
        lists = await by_size(by_tools, plan.rounds, partial(spent, Desk.get_tools, 1))
        shows = await by_size(by_windows, plan.rounds, partial(spent, Desk.get_desktop, 1))
    return [
        Curve("tool call: Server", "tools", medians(calls, lambda each: each.server)),
        Curve("tool call: Server and computer", "tools", medians(calls, both), "growth.tools"),
        Curve("get_tools: Server and computer", "tools", medians(lists, both)),
        Curve("get_desktop: Server and computer", "windows", medians(shows, both)),
    ]


async def by_size(
    contestants: Mapping[int, Contestant], rounds: int, measure: Callable[[Contestant], Awaitable[Sample]]
) -> dict[int, list[Sample]]:
    """Samples of rounds in turn, after one that does not count."""
    named = {str(size): contestant for size, contestant in contestants.items()}
    await in_turn(named, 1, measure)
    return {int(size): samples for size, samples in (await in_turn(named, rounds, measure)).items()}


def medians(samples: Mapping[int, Sequence[Sample]], cost: Callable[[Sample], float]) -> dict[int, float]:
    return {size: median(map(cost, some)) for size, some in samples.items()}


def both(each: Spent) -> float:
    return each.server + each.computer


def row(curve: Curve) -> Row:
    first, *_, last = curve.costs
    return {
        "CPU of": curve.what,
        "over": curve.over,
        "from": first,
        "to": last,
        "µs at first": per(curve.costs[first], 1, 1e-6),
        "µs at last": per(curve.costs[last], 1, 1e-6),
        "exponent": curve.exponent,
    }


async def measure(plan: Plan) -> list[Curve]:
    parts = (over_offices, over_tools_and_windows, over_payload)
    return [curve for part in parts for curve in await part(plan)]


def main() -> None:
    parser = options("How the cost of a call grows.", rounds=FULL.rounds)
    chosen = parser.parse_args()
    plan = QUICK if chosen.quick else replace(FULL, rounds=chosen.rounds)
    allow_files(2 * sum(plan.offices) + SPARE_FILES)
    pin_generator()
    curves = uvloop.run(measure(plan))
    table = [row(curve) for curve in curves]
    report(table, chosen)
    save("growth", chosen.title, table, {curve.goal: curve.exponent for curve in curves if curve.goal})


if __name__ == "__main__":
    main()
