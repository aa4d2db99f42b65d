"""A store with a crowd in it: simulated nodes that keep their leases and hear what is published, and their members."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from secrets import token_urlsafe

from a2c_smcp.protocol.offices import Member, instance_digest
from a2c_smcp.server.cluster.memory import LeaseToken, Pace, new_sid
from a2c_smcp.server.cluster.mirror import SeatRecord
from a2c_smcp.server.cluster.store import Store, StoreConnection
from a2c_smcp.types import Role
from benchmarks.machine import measured_core
from benchmarks.processes import Running
from benchmarks.valkey import valkey

__all__ = [
    "BATCH",
    "PACE",
    "PATIENCE",
    "PREFIX",
    "TO_AN_OFFICE",
    "Spent",
    "Town",
    "lease_of",
    "lines_to",
    "member_of",
    "town",
]

PREFIX, PATIENCE = "a2c:", 60.0
TO_AN_OFFICE = 11
BATCH, AT_ONCE = 128, 64
PACE = Pace()


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds for each operation: of the store's process, in its scripts as it counts them, and until it was over."""

    cpu: float
    script: float
    wall: float

    def shared_by(self, parts: float) -> Spent:
        return Spent(self.cpu / parts, self.script / parts, self.wall / parts)


@dataclass(slots=True)
class Town:
    """The store and its simulated nodes, each with a line to hear on; and what members and offices take, in bytes."""

    process: Running
    url: str
    store: Store
    leases: list[LeaseToken]
    ears: list[StoreConnection]
    _line: StoreConnection
    seats: int = 0
    offices: list[str] = field(default_factory=list)
    followed: int = 0
    seat_bytes: int = 0
    followed_bytes: int = 0

    async def fill(self, seats: int) -> None:
        """Members come, office by office, each to a node that chance has chosen."""
        missing = -(-(seats - self.seats) // TO_AN_OFFICE)
        new = [f"office-{len(self.offices) + number}" for number in range(missing)]
        members = [each for office_id in new for each in _office(office_id, len(self.leases))]
        before = await self._memory()
        await self._follow({(member.office_id, node) for node, member in members})
        heard = await self._memory()
        for number, lease in enumerate(self.leases):
            await self._seat(lease, [SeatRecord(member, lease.node, 1) for node, member in members if node == number])
        self.followed_bytes += heard - before
        self.seat_bytes += await self._memory() - heard
        self.seats += len(members)
        self.offices += new

    async def spent(self, operations: int, do: Callable[[int], Awaitable[object]]) -> Spent:
        """What so many operations take, several under way at a time."""
        numbers = iter(range(operations))

        async def work() -> None:
            for number in numbers:
                await do(number)

        return (await self.measured(asyncio.gather(*(work() for _ in range(AT_ONCE))))).shared_by(operations)

    async def measured(self, work: Awaitable[object]) -> Spent:
        script, before, start = await self._script(), self.process.cpu, time.perf_counter()
        await work
        wall, cpu = time.perf_counter() - start, self.process.cpu_since(before)
        if cpu is None:
            raise SystemExit("the CPU time of the store cannot be read here: /proc/PID/task/*/schedstat is needed")
        return Spent(cpu, await self._script() - script, wall)

    async def beat(self) -> None:
        """All leases, at the pace of real nodes."""
        while True:
            await asyncio.gather(asyncio.sleep(PACE.beat), *(self.store.beat(each, PACE.lease) for each in self.leases))

    async def _follow(self, wanted: set[tuple[str, int]]) -> None:
        for office_id, node in wanted:
            self.ears[node].command(_nothing, "SUBSCRIBE", f"{PREFIX}at:{office_id}")
        self.followed += len(wanted)
        await asyncio.gather(*(ear.ask("PING") for ear in self.ears))

    async def _seat(self, lease: LeaseToken, seats: Sequence[SeatRecord]) -> None:
        for start in range(0, len(seats), BATCH):
            await self.store.restore(lease, [], seats[start : start + BATCH])

    async def _memory(self) -> int:
        return int(await self._fact("memory", "used_memory:"))

    async def _script(self) -> float:
        stats = await self._fact("commandstats", "cmdstat_evalsha:")
        return int(stats.partition("usec=")[2].partition(",")[0]) * 1e-6

    async def _fact(self, section: str, name: str) -> str:
        facts: str = await self._line.ask("INFO", section)
        return next(line.removeprefix(name) for line in facts.splitlines() if line.startswith(name))


@asynccontextmanager
async def town(nodes: int) -> AsyncIterator[Town]:
    """Empty at first. Its leases are kept until the end."""
    async with valkey() as (url, process), lines_to(url, 1) as (line,), lines_to(url, nodes) as ears:
        process.pin(measured_core())
        store = Store(line, PREFIX)
        await store.prepare()
        leases = [await lease_of(store, f"sim-{number}", PACE.lease) for number in range(nodes)]
        here = Town(process, url, store, leases, ears, line)
        beating = asyncio.create_task(here.beat())
        try:
            yield here
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)


@asynccontextmanager
async def lines_to(url: str, number: int) -> AsyncIterator[list[StoreConnection]]:
    async with AsyncExitStack() as stack:
        lines = []
        for _ in range(number):
            lines.append(await StoreConnection.open(url, PATIENCE))
            stack.push_async_callback(lines[-1].close)
        yield lines


async def lease_of(store: Store, node: str, ttl: float) -> LeaseToken:
    lease, _ = await store.register(node, node, "run", "", ttl, {"url": "", "started_at": "0"}, [])
    return lease


def member_of(node: str, name: str, office_id: str) -> Member:
    """A client of ours, which has an instance."""
    role: Role = "agent" if name == "agent" else "computer"
    instance = instance_digest("tenant", role, name, token_urlsafe())
    return Member(new_sid(node), role, name, office_id, instance, "tenant", "0.4.0")


def _office(office_id: str, nodes: int) -> list[tuple[int, Member]]:
    """An agent and its computers, each with the number of its node."""
    names = ["agent", *(f"computer-{number}" for number in range(1, TO_AN_OFFICE))]
    return [(node, member_of(f"sim-{node}", name, office_id)) for name in names for node in [random.randrange(nodes)]]


def _nothing(reply: object) -> None:
    return None
