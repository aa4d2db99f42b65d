"""The directory of many nodes under a crowd: the real scripts in a real Valkey, as many seats as one machine can hold.

A real node joins, leaves and looks among simulated ones, others die; what that takes is measured as the store fills.
`script` is what the store counts for its scripts, at best, CPU all of its process. Ends with what this would mean for a
million computers.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from secrets import token_urlsafe

import uvloop

from a2c_smcp.server.cluster.memory import Pace
from a2c_smcp.server.cluster.mirror import Mirror, SeatRecord
from a2c_smcp.server.cluster.redis import RedisDirectory
from a2c_smcp.server.cluster.store import Store, StoreConnection
from a2c_smcp.server.seating import Offices
from benchmarks.growth import Curve
from benchmarks.machine import pin_generator
from benchmarks.paper import CLUSTERS, Costs, Message, tell
from benchmarks.table import Row, median, per, show, told
from benchmarks.town import (
    BATCH,
    PACE,
    PATIENCE,
    PREFIX,
    TO_AN_OFFICE,
    Spent,
    Town,
    lease_of,
    lines_to,
    member_of,
    town,
)

__all__: list[str] = []

JOIN, LEAVE, RESTORE, BURY = "join", "leave", "restore, a seat", "bury, a seat"
PUBLISHERS = 64
MESSAGE = b"m" * 600
"""About what a request and its answer are, at the middle."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`seats` are the sizes at which everything is measured, `rounds` times with `operations` each."""

    nodes: int
    seats: tuple[int, ...]
    rounds: int
    operations: int


FULL = Plan(nodes=100, seats=(1_000, 3_160, 10_000, 31_600, 100_000), rounds=5, operations=640)
QUICK = Plan(nodes=20, seats=(500, 2_000, 8_000), rounds=2, operations=256)

Samples = Mapping[int, Mapping[str, Sequence[Spent]]]
"""By the number of seats, and by operation."""


class Probes:
    """What is done as the store fills: `node` is a real one, and those that die have been back for a moment."""

    def __init__(self, here: Town, node: RedisDirectory, operations: int) -> None:
        self._town = here
        self._node = node
        self._operations = operations
        self._offices = Offices(node)

    async def rounds(self, number: int) -> dict[str, list[Spent]]:
        found = [{**await self._visits(), **await self._death()} for _ in range(number)]
        return {what: [each[what] for each in found] for what in found[0]}

    async def _visits(self) -> dict[str, Spent]:
        """A join is all that is asked for one: what the client holds already, the office, the commit."""
        here, most, leases = self._town, self._operations, self._town.leases
        guests = [member_of(self._node.node, f"guest-{n}", random.choice(here.offices)) for n in range(most)]
        return {
            JOIN: await here.spent(most, lambda n: self._offices.join(guests[n])),
            LEAVE: await here.spent(most, lambda n: self._offices.vacate(guests[n].sid)),
            "look": await here.spent(most, lambda n: here.store.look(random.choice(here.offices))),
            "beat": await here.spent(most, lambda n: here.store.beat(leases[n % len(leases)], PACE.lease)),
        }

    async def _death(self) -> dict[str, Spent]:
        """Each member has an office of its own, which is the worst: every one of them is told."""
        here, lease = self._town, await lease_of(self._town.store, f"mortal-{token_urlsafe(6)}", PATIENCE)
        offices = random.choices(here.offices, k=self._operations)
        seats = [
            SeatRecord(member_of(lease.node, f"mortal-{n}", office), lease.node, 1) for n, office in enumerate(offices)
        ]
        batches = [seats[start : start + BATCH] for start in range(0, len(seats), BATCH)]
        restored = await here.spent(len(batches), lambda n: here.store.restore(lease, [], batches[n]))
        await here.store.beat(lease, 0)
        buried = await here.measured(here.store.bury(lease.node))
        return {
            RESTORE: restored.shared_by(len(seats) / len(batches)),
            BURY: buried.shared_by(len(seats)),
        }


@dataclass(frozen=True, slots=True)
class Once:
    """The store's CPU for messages, in a crowd of them and alone, and for a beat and a look among so many nodes."""

    crowded: Message
    alone: Message
    beats: dict[int, float]
    looks: dict[int, float]


async def once(here: Town, operations: int) -> Once:
    """What does not depend on seats."""
    async with lines_to(here.url, PUBLISHERS) as lines:
        await asyncio.gather(*(ear.ask("SUBSCRIBE", f"one-{number}") for number, ear in enumerate(here.ears)))
        among = {nodes: await _among(here, lines[0], nodes, operations) for nodes in CLUSTERS}
        return Once(
            await message(here, lines, 16 * operations),
            await message(here, lines[:1], 2 * operations),
            {nodes: beat for nodes, (beat, _) in among.items()},
            {nodes: look for nodes, (_, look) in among.items()},
        )


async def message(here: Town, lines: Sequence[StoreConnection], number: int) -> Message:
    """Each line says something to one node, and then to all that follow an office."""
    ones = [f"one-{each % len(here.ears)}" for each in range(len(lines))]
    offices = [f"{PREFIX}at:{office_id}" for office_id in random.sample(here.offices, len(lines))]
    to_one = (await here.measured(published(lines, ones, number))).cpu / number
    to_all = (await here.measured(published(lines, offices, number))).cpu / number
    return Message(to_one, (to_all - to_one) / (here.followed / len(here.offices) - 1))


async def published(lines: Sequence[StoreConnection], channels: Sequence[str], number: int) -> None:
    """Each line publishes to its channel as soon as it was answered, as nodes with much to say do."""
    left, over = number, asyncio.get_running_loop().create_future()

    def publish(line: StoreConnection, channel: str) -> None:
        line.command(partial(again, line, channel), "PUBLISH", channel, MESSAGE)

    def again(line: StoreConnection, channel: str, reply: object) -> None:
        nonlocal left
        left -= 1
        if left >= len(lines):
            publish(line, channel)
        elif not left:
            over.set_result(None)

    for line, channel in zip(lines, channels, strict=True):
        publish(line, channel)
    await over


async def _among(here: Town, line: StoreConnection, nodes: int, operations: int) -> tuple[float, float]:
    """A beat among so many leases, and asking who reads as many inboxes."""
    prefix = f"of-{nodes}:"
    store, inboxes = Store(line, prefix), [f"{prefix}in:{number}" for number in range(nodes)]
    leases = await asyncio.gather(*(lease_of(store, f"n{number}", PATIENCE) for number in range(nodes)))
    for inbox in inboxes:
        await here.ears[0].ask("SUBSCRIBE", inbox)
    beat = await here.spent(operations, lambda n: store.beat(leases[n % nodes], PATIENCE))
    look = await here.spent(operations, lambda n: store.listeners(inboxes))
    return beat.cpu, look.cpu


async def mirrored(here: Town, most: int) -> float:
    """Bytes that an office takes in the mirror of a node."""
    mirror, offices = Mirror("nobody", most), here.offices[:most]
    tracemalloc.start()
    for office_id in offices:
        at, seen = await here.store.look(office_id)
        if seen:
            mirror.see(*seen, at)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / len(offices)


async def simulate(plan: Plan) -> tuple[Samples, Once, Costs]:
    found: dict[int, dict[str, list[Spent]]] = {}
    async with town(plan.nodes) as here:
        node = RedisDirectory(here.url, node="real", prefix=PREFIX, pace=Pace(patience=PATIENCE))
        await node.start()
        try:
            for seats in plan.seats:
                told(f"{seats:,} seats")
                await here.fill(seats)
                found[here.seats] = await Probes(here, node, plan.operations).rounds(plan.rounds)
        finally:
            await node.close()
        told("messages, leases, mirror")
        beside, mirror = await once(here, plan.operations), await mirrored(here, plan.operations)
    return found, beside, costs_of(here, found[here.seats], beside, mirror)


def report(plan: Plan, found: Samples, beside: Once, costs: Costs) -> None:
    print(f"\nThe directory with up to {max(found):,} seats of {plan.nodes} nodes\n")
    show([row for seats, by_operation in found.items() for row in rows(seats, by_operation)])
    print("\nHow much longer it takes as the store fills: 0 is not at all, 1 is in proportion\n")
    show(exponents(found))
    print("\nEverything else\n")
    show(rest(costs, beside))
    tell(costs)


def rows(seats: int, by_operation: Mapping[str, Sequence[Spent]]) -> list[Row]:
    return [
        {
            "seats": seats,
            "operation": what,
            "script µs": per(min(each.script for each in some), 1, 1e-6),
            "CPU µs": per(median(each.cpu for each in some), 1, 1e-6),
            "a second, by its CPU": per(1, median(each.cpu for each in some)),
            "a second, seen from here": per(1, median(each.wall for each in some)),
        }
        for what, some in by_operation.items()
    ]


def exponents(found: Samples) -> list[Row]:
    return [
        {
            "operation": what,
            "script": _curve(what, {seats: min(each.script for each in by[what]) for seats, by in found.items()}),
            "CPU": _curve(what, {seats: median(each.cpu for each in by[what]) for seats, by in found.items()}),
        }
        for what in next(iter(found.values()))
    ]


def _curve(what: str, costs: Mapping[int, float]) -> float:
    return Curve(what, "seats", costs).exponent


def costs_of(here: Town, at_last: Mapping[str, Sequence[Spent]], beside: Once, mirror: float) -> Costs:
    cpu = {what: median(each.cpu for each in some) for what, some in at_last.items()}
    few, many = min(beside.looks), max(beside.looks)
    watched = (beside.looks[many] - beside.looks[few]) / (many - few)
    return Costs(
        join=cpu[JOIN],
        leave=cpu[LEAVE],
        bury=cpu[BURY],
        restore=cpu[RESTORE],
        crowded=beside.crowded,
        alone=beside.alone,
        beat=beside.beats,
        watch=beside.looks[few] - few * watched,
        watched=watched,
        seat=here.seat_bytes / here.seats,
        subscription=here.followed_bytes / here.followed,
        mirrored_office=mirror,
    )


def rest(costs: Costs, beside: Once) -> list[Row]:
    found = {
        f"a message of {len(MESSAGE)} bytes to one node, in a crowd, CPU µs": costs.crowded.first / 1e-6,
        "the same alone, CPU µs": costs.alone.first / 1e-6,
        "to each further node, in a crowd, CPU µs": costs.crowded.further / 1e-6,
        "the same alone, CPU µs each": costs.alone.further / 1e-6,
        **{f"a beat among {nodes:,} leases, CPU µs": cost / 1e-6 for nodes, cost in beside.beats.items()},
        **{f"who reads {nodes:,} inboxes, CPU µs": cost / 1e-6 for nodes, cost in beside.looks.items()},
        "a seat in the store, bytes": costs.seat,
        "an office that a node follows, in the store, bytes": costs.subscription,
        f"an office of {TO_AN_OFFICE} in a node's mirror, bytes": costs.mirrored_office,
    }
    return [{"what": what, "": per(value, 1)} for what, value in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description="The directory of many nodes under a crowd, and a million on paper.")
    parser.add_argument("--quick", action="store_true", help="a first impression in seconds: fewer of everything")
    plan = QUICK if parser.parse_args().quick else FULL
    pin_generator()
    report(plan, *uvloop.run(simulate(plan)))


if __name__ == "__main__":
    main()
