"""What relaying a `client:tool_call` costs a server: ours beside the others, one core for it and another for the load.

Every round visits each server with a short burst of each kind; the numbers are medians over rounds. CPU is the server
process's own, all threads, as the kernel accounts for it; ratios compare calls per CPU-second within a round.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import quantiles

import uvloop

from benchmarks.contestants import CONTESTANTS, MOUNTED, NODE, PLAIN, PUBLISHED, RELAY, SERVER, Seated, seated, versions
from benchmarks.load import burst, result_of
from benchmarks.machine import pin_generator
from benchmarks.report import save
from benchmarks.table import Row, in_turn, median, options, per, ratio, report, told

OFFICES = 8
SETTLING = 4
KB = 1000


@dataclass(frozen=True, slots=True)
class Setting:
    """How much comes back for a request of about 200 bytes, and how many calls are under way at once."""

    kilobytes: float
    in_flight: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How long everything takes: `burst` and `warm_up` in seconds."""

    settings: tuple[Setting, ...]
    rounds: int
    burst: float
    warm_up: float


HEADLINE, LARGE, LARGEST = Setting(0.4, 64), Setting(100, 64), Setting(1000, 8)
FULL = Plan(
    settings=(
        *(Setting(size, at_once) for size in (0.4, 10, 100) for at_once in (1, 64, 256)),
        *(Setting(1000, at_once) for at_once in (1, 8, 64)),
    ),
    rounds=5,
    burst=0.2,
    warm_up=1.5,
)
QUICK = Plan(settings=(HEADLINE, LARGE, LARGEST), rounds=3, burst=0.15, warm_up=0.8)

GOALS = {
    "relay.node": (SERVER, NODE, HEADLINE),
    "relay.plain": (SERVER, PLAIN, HEADLINE),
    "relay.published": (SERVER, PUBLISHED, HEADLINE),
    "relay.bare": (SERVER, RELAY, HEADLINE),
    "relay.mounted_node": (MOUNTED, NODE, HEADLINE),
    "relay.mounted_plain": (MOUNTED, PLAIN, HEADLINE),
    "relay.node_100kB": (SERVER, NODE, LARGE),
    "relay.node_1MB": (SERVER, NODE, LARGEST),
}
"""Whose calls per CPU-second are divided by whose, and when."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A burst: seconds of CPU per call, the server's and ours that asks, and how long each call took."""

    cpu: float
    asking: float
    per_second: float
    seconds: list[float]


Samples = Mapping[Setting, Mapping[str, Sequence[Sample]]]


async def sample(contestant: Seated, setting: Setting, seconds: float) -> Sample:
    """A burst, after a shorter one that is not counted, so that nobody pays for what larger results left behind."""
    result = result_of(int(setting.kilobytes * KB))
    await burst(contestant.offices, in_flight=setting.in_flight, seconds=seconds / SETTLING, result=result)
    before = contestant.server.cpu
    found = await burst(contestant.offices, in_flight=setting.in_flight, seconds=seconds, result=result)
    cpu, calls = contestant.server.cpu_since(before), len(found.seconds)
    if cpu is None:
        raise SystemExit("the CPU time of a server cannot be read here: /proc/PID/task/*/schedstat is needed")
    return Sample(cpu / calls, found.asking / calls, calls / found.wall, found.seconds)


async def measure(plan: Plan) -> Samples:
    async with seated(CONTESTANTS, OFFICES) as contestants:
        for title, contestant in contestants.items():
            told(f"warming up {title}")
            await sample(contestant, HEADLINE, plan.warm_up)
            for setting in plan.settings:
                await sample(contestant, setting, plan.burst / 2)
        gc.disable()
        return await rounds(contestants, plan)


async def rounds(contestants: Mapping[str, Seated], plan: Plan) -> Samples:
    """One setting after another, each with all servers in turn, and all of that again in the next round."""
    found: dict[Setting, dict[str, list[Sample]]] = {
        setting: {title: [] for title in contestants} for setting in plan.settings
    }
    for number in range(plan.rounds):
        told(f"round {number + 1} of {plan.rounds}")
        for setting in plan.settings:
            visit = partial(sample, setting=setting, seconds=plan.burst)
            for title, samples in (await in_turn(contestants, 1, visit, first=number)).items():
                found[setting][title] += samples
        gc.collect()
    return found


def times(samples: Mapping[str, Sequence[Sample]], ours: str, other: str) -> float | None:
    """Calls per CPU-second of the one over those of the other: the median of what the rounds say."""
    if ours not in samples or other not in samples:
        return None
    pairs = zip(samples[ours], samples[other], strict=True)
    return ratio(median(theirs.cpu / mine.cpu for mine, theirs in pairs), 1)


def rows(found: Samples) -> list[Row]:
    return [_row(setting, title, samples) for setting, samples in found.items() for title in samples]


def _row(setting: Setting, title: str, samples: Mapping[str, Sequence[Sample]]) -> Row:
    some = samples[title]
    cpu, asking = (median(each.cpu for each in some), median(each.asking for each in some))
    p50, p99 = _percentiles(each for one in some for each in one.seconds)
    return {
        "result kB": setting.kilobytes,
        "in flight": setting.in_flight,
        "server": title,
        "CPU µs per call": per(cpu, 1, 1e-6),
        "times ours": times(samples, SERVER, title),
        "calls/s": per(median(each.per_second for each in some), 1),
        "p50 ms": per(p50, 1, 1e-3),
        "p99 ms": per(p99, 1, 1e-3),
        "asking µs": per(asking, 1, 1e-6),
        "": "asking costs more" if asking > cpu else "",
    }


def _percentiles(seconds: Iterable[float]) -> tuple[float, float]:
    cuts = quantiles(seconds, n=100, method="inclusive")
    return cuts[49], cuts[98]


def measured(found: Samples) -> dict[str, float | None]:
    return {key: times(found[setting], ours, other) for key, (ours, other, setting) in GOALS.items()}


def main() -> None:
    parser = options("CPU of relaying a call: this Server and others.", rounds=FULL.rounds)
    chosen = parser.parse_args()
    plan = QUICK if chosen.quick else Plan(FULL.settings, chosen.rounds, FULL.burst, FULL.warm_up)
    pin_generator()
    found = uvloop.run(measure(plan))
    table = rows(found)
    report(table, chosen)
    save("relay", chosen.title, table, measured(found), versions=versions())


if __name__ == "__main__":
    main()
