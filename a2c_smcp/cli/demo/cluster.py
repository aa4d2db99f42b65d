"""`a2c-smcp demo --cluster`: three nodes on one Valkey, one of which is killed while agents call tools."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from pathlib import Path

import typer

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.cli.demo.nodes import LoadBalancer, NodeProcess, running_nodes
from a2c_smcp.cli.demo.steps import DemoFailed, StepPrinter, running
from a2c_smcp.cli.serving.private_store import private_store
from a2c_smcp.cli.serving.stores import store_at
from a2c_smcp.cli.terminal import put_table
from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import cancel_and_wait
from a2c_smcp.mcp_host.processes.guard import ProcessGuard
from a2c_smcp.server.auth.api_keys import new_key
from a2c_smcp.server.directory.store import Store

__all__ = ["CallCounts", "Load", "NumberedCall", "run_cluster_demo"]

NODES = ("north", "east", "west")
OFFICES = ("desk", "attic", "cellar")
COMPUTERS = ("laptop", "tower")
RATE = 100.0
_MEMBERS = len(OFFICES) * (1 + len(COMPUTERS))
_CALM, _AFTERWARDS = 3.0, 3.0
_PATIENCE = 20.0
_TIMEOUT = 30


@dataclass(frozen=True)
class _Cluster:
    """The running cluster and the load on it."""

    printer: StepPrinter
    store: Store
    nodes: Sequence[NodeProcess]
    load: Load


async def run_cluster_demo(printer: StepPrinter) -> None:
    """Raises `DemoFailed` unless every call was answered and ran once."""
    typer.secho("A2C-SMCP: offices that span three nodes, one of which is killed under load", bold=True)
    printer.section("Starting")
    async with AsyncExitStack() as stack:
        demo = await _set_up(printer, stack)
        before = await _alive(demo.store)
        await _call_undisturbed(demo)
        await _kill_one(demo)
        await _end_load(demo)
        after = await _alive(demo.store)
    _put_figures(demo.load.counts, before, after)
    _check(demo.load.counts)
    printer.print_summary()
    typer.secho(f"\nall of this really happened, in {time.perf_counter() - printer.began:.1f} s", bold=True)


async def _set_up(printer: StepPrinter, stack: AsyncExitStack) -> _Cluster:
    guard, key = ProcessGuard(), new_key()
    stack.push_async_callback(guard.close)
    redis = await stack.enter_async_context(private_store(guard))
    store = await stack.enter_async_context(store_at(redis))
    await printer.step("store", "Valkey listens on a socket of its own")
    nodes = await stack.enter_async_context(running_nodes(guard, redis, key, *NODES))
    for node in nodes:
        await printer.step("node", f"{node.name!r} listens on {node.url} (process {node.pid}) and has a lease")
    url = await stack.enter_async_context(LoadBalancer(node.url for node in nodes).open())
    await printer.step("balancer", f"{url} passes connections on to them in turn, and knows nothing of sessions")
    counts = CallCounts()
    load = Load(await _join_members(stack, counts, url, key), RATE, counts)
    stack.push_async_callback(load.abandon)
    await _show_seats(printer, store)
    return _Cluster(printer, store, nodes, load)


async def _join_members(stack: AsyncExitStack, counts: CallCounts, url: str, key: str) -> list[NumberedCall]:
    """Put an agent and two computers into each office. Returns a call for each agent and computer of one office."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    for office in OFFICES:
        for name in COMPUTERS:
            computer = _computer(name, counts)
            await stack.enter_async_context(running(computer, url, office=office, key=key, folder=folder / office))
    agents = [AsyncSMCPAgentClient(f"agent-of-{office}", url=url, office=office, api_key=key) for office in OFFICES]
    for agent in agents:
        await stack.enter_async_context(agent)
    return [partial(_call, agent, name) for name in COMPUTERS for agent in agents]


def _computer(name: str, counts: CallCounts) -> Computer:
    computer = Computer(name)

    @computer.tool(auto_apply=True)
    def mark(number: int) -> str:
        """Answer with the number, and remember that this has run."""
        counts.runs[number] += 1
        return str(number)

    return computer


async def _call(agent: AsyncSMCPAgentClient, computer: str, number: int) -> str:
    return (await agent.emit_tool_call(computer, "mark", {"number": number}, timeout=_TIMEOUT)).text


async def _show_seats(printer: StepPrinter, store: Store) -> None:
    """Print where members are connected. Raises `DemoFailed` if no office spans two nodes: nothing would be shown."""
    spans = 0
    for office in OFFICES:
        _, found = await store.look(office)
        seats = found[1] if found else ()
        where = ", ".join(f"{seat.member.name} at {seat.node}" for seat in seats)
        await printer.step("store", f"office {office!r} has {where}")
        spans += len({seat.node for seat in seats}) > 1
    if not spans:
        raise DemoFailed("no office spans two nodes")
    await printer.step("store", f"{spans} of {len(OFFICES)} offices span nodes", proves="offices that span nodes")


async def _call_undisturbed(demo: _Cluster) -> None:
    printer, counts = demo.printer, demo.load.counts
    printer.section("Load")
    await printer.step("agent", f"all agents together make {RATE:.0f} calls a second from now on")
    demo.load.start()
    await asyncio.sleep(_CALM)
    _check(counts)
    message = f"{len(counts.waits)} answers so far, the slowest after {counts.longest * 1000:.0f} ms"
    await printer.step("agent", message, proves="calls from node to node")


async def _kill_one(demo: _Cluster) -> None:
    printer, victim = demo.printer, demo.nodes[0]
    printer.section("A node dies")
    (seats,) = [node.members for node in await demo.store.nodes() if node.name == victim.name]
    await victim.kill()
    killed = time.monotonic()
    await printer.step(
        "node", f"{victim.name!r} is killed (kill -9 {victim.pid}); {seats} members were connected to it"
    )
    await _until(partial(_are_all_back, demo.store, victim.name))
    took = time.monotonic() - killed
    message = f"{took:.1f} s later all members have their seats at other nodes, and the dead node's lease has lapsed"
    await printer.step("store", message, proves="a dead node's members come back elsewhere")
    await asyncio.sleep(_AFTERWARDS)


async def _end_load(demo: _Cluster) -> None:
    printer, counts = demo.printer, demo.load.counts
    await demo.load.end()
    message = f"{len(counts.waits)} answers to {counts.made} calls, the slowest after {counts.longest * 1000:.0f} ms"
    is_well = not (counts.lost or counts.doubled)
    await printer.step("agent", message, proves="no call lost, and none run twice" if is_well else "")


async def _are_all_back(store: Store, victim: str) -> bool:
    nodes = await store.nodes()
    return victim not in {node.name for node in nodes} and sum(node.members for node in nodes) == _MEMBERS


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not await condition():  # noqa: ASYNC110, for a person it is soon enough
            await asyncio.sleep(0.1)


async def _alive(store: Store) -> list[str]:
    return sorted(node.name for node in await store.nodes() if node.lease > 0)


def _check(counts: CallCounts) -> None:
    """Raises `DemoFailed` for calls that failed or ran twice. Calls in flight may still be answered."""
    if counts.failures:
        number, why = min(counts.failures.items())
        raise DemoFailed(f"{len(counts.failures)} of {counts.made} calls were lost, the first, number {number}: {why}")
    if counts.doubled:
        raise DemoFailed(f"{counts.doubled} of {counts.made} calls ran twice")


def _put_figures(counts: CallCounts, before: Sequence[str], after: Sequence[str]) -> None:
    typer.secho("\nFigures", bold=True)
    figures = {
        "calls made": counts.made,
        "answered": len(counts.waits),
        "lost": counts.lost,
        "run twice": counts.doubled,
        "longest wait for an answer": f"{counts.longest * 1000:.0f} ms",
        "nodes before": ", ".join(before),
        "nodes after": ", ".join(after),
    }
    put_table(("", ""), [(name, str(figure)) for name, figure in figures.items()])


NumberedCall = Callable[[int], Awaitable[str]]
"""Calls a tool with a number and returns its answer, which should be the same number."""


class CallCounts:
    """What became of each call, by its number. Runs are counted inside the tool, where a second run is noticed."""

    def __init__(self) -> None:
        self.made = 0
        self.runs: Counter[int] = Counter()
        self.waits: dict[int, float] = {}
        self.failures: dict[int, str] = {}

    @property
    def lost(self) -> int:
        return self.made - len(self.waits)

    @property
    def doubled(self) -> int:
        return sum(1 for runs in self.runs.values() if runs > 1)

    @property
    def longest(self) -> float:
        return max(self.waits.values(), default=0.0)


class Load:
    """Makes `rate` calls a second, by the callers in turn, whether or not earlier calls have been answered."""

    def __init__(self, callers: Sequence[NumberedCall], rate: float, counts: CallCounts) -> None:
        self.counts = counts
        self._callers = callers
        self._rate = rate
        self._calling: set[asyncio.Task[None]] = set()
        self._pacing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._pacing = asyncio.create_task(self._pace())

    async def end(self) -> None:
        """Make no more calls, and wait for those in flight."""
        if self._pacing:
            await cancel_and_wait(self._pacing)
        await asyncio.gather(*self._calling)

    async def abandon(self) -> None:
        """Make no more calls, and cancel those in flight."""
        tasks = [*self._calling, *([self._pacing] if self._pacing else [])]
        await cancel_and_wait(*tasks)

    async def _pace(self) -> None:
        began = time.monotonic()
        for number, call in zip(count(), cycle(self._callers)):
            await asyncio.sleep(max(0.0, began + number / self._rate - time.monotonic()))
            self.counts.made += 1
            calling = asyncio.create_task(self._make(number, call))
            self._calling.add(calling)
            calling.add_done_callback(self._calling.discard)

    async def _make(self, number: int, call: NumberedCall) -> None:
        began = time.monotonic()
        try:
            answer = await call(number)
        except SMCPError as error:
            self.counts.failures[number] = str(error)
            return
        if answer == str(number):
            self.counts.waits[number] = time.monotonic() - began
        else:
            self.counts.failures[number] = f"{answer!r} came back"
