"""`a2c-smcp demo --cluster`: three nodes on one Valkey, one of which is killed while calls are under way."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from pathlib import Path

import typer

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.cli.demo.nodes import Front, NodeProcess, running_nodes
from a2c_smcp.cli.demo.steps import DemoFailed, Story, until
from a2c_smcp.cli.serving.private_store import private_store
from a2c_smcp.cli.serving.stores import store_at
from a2c_smcp.cli.terminal import put_table
from a2c_smcp.computer.computer import Computer
from a2c_smcp.errors import SMCPError
from a2c_smcp.mcp_host.processes.guard import ProcessGuard
from a2c_smcp.server.auth.authentication import new_key
from a2c_smcp.server.directory.store import Store

__all__ = ["Call", "Load", "Tally", "perform"]

NODES = ("north", "east", "west")
OFFICES = ("desk", "attic", "cellar")
COMPUTERS = ("laptop", "tower")
RATE = 100.0
_MEMBERS = len(OFFICES) * (1 + len(COMPUTERS))
_CALM, _AFTERWARDS = 3.0, 3.0
_PATIENCE = 20.0
_TIMEOUT = 30


@dataclass(frozen=True)
class _Stage:
    """Everything that takes part."""

    story: Story
    store: Store
    nodes: Sequence[NodeProcess]
    load: Load


async def perform(story: Story) -> None:
    """Raises `DemoFailed` unless every call was answered, and ran once."""
    typer.secho("A2C-SMCP: offices that span three nodes, one of which is killed under load", bold=True)
    story.chapter("Coming together")
    async with AsyncExitStack() as stack:
        stage = await _set_up(story, stack)
        before = await _alive(stage.store)
        await _call_in_peace(stage)
        await _kill_one(stage)
        await _account(stage)
        after = await _alive(stage.store)
    _put_figures(stage.load.tally, before, after)
    _check(stage.load.tally)
    story.sum_up()
    typer.secho(f"\nall of this really happened, in {time.perf_counter() - story.began:.1f} s", bold=True)


async def _set_up(story: Story, stack: AsyncExitStack) -> _Stage:
    guard, key = ProcessGuard(), new_key()
    stack.push_async_callback(guard.close)
    redis = await stack.enter_async_context(private_store(guard))
    store = await stack.enter_async_context(store_at(redis))
    await story.tell("store", "Valkey listens on a socket of its own")
    nodes = await stack.enter_async_context(running_nodes(guard, redis, key, *NODES))
    for node in nodes:
        await story.tell("node", f"{node.name!r} listens on {node.url} (process {node.pid}) and has a lease")
    url = await stack.enter_async_context(Front(node.url for node in nodes).open())
    await story.tell("front", f"{url} passes connections on to them in turn, and knows nothing of sessions")
    tally = Tally()
    load = Load(await _seat_everybody(stack, tally, url, key), RATE, tally)
    stack.push_async_callback(load.abandon)
    await _show_seats(story, store)
    return _Stage(story, store, nodes, load)


async def _seat_everybody(stack: AsyncExitStack, tally: Tally, url: str, key: str) -> list[Call]:
    """An agent and some computers in each office. How each agent calls each computer of its own."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    for office in OFFICES:
        for name in COMPUTERS:
            await stack.enter_async_context(_at_work(_computer(name, tally), url, office, key, folder / office))
    agents = [AsyncSMCPAgentClient(f"agent-of-{office}", url=url, office=office, api_key=key) for office in OFFICES]
    for agent in agents:
        await stack.enter_async_context(agent)
    return [partial(_call, agent, name) for name in COMPUTERS for agent in agents]


def _computer(name: str, tally: Tally) -> Computer:
    computer = Computer(name)

    @computer.tool(auto_apply=True)
    def mark(number: int) -> str:
        """Answer with the number, and remember that this has run."""
        tally.runs[number] += 1
        return str(number)

    return computer


async def _call(agent: AsyncSMCPAgentClient, computer: str, number: int) -> str:
    return (await agent.emit_tool_call(computer, "mark", {"number": number}, timeout=_TIMEOUT)).text


@asynccontextmanager
async def _at_work(computer: Computer, url: str, office: str, key: str, folder: Path) -> AsyncIterator[None]:
    """The computer in its office."""
    told: list[str] = []
    working = asyncio.create_task(
        computer.run(url, office=office, api_key=key, state_folder=folder, on_connection=told.append)
    )
    try:
        await until(lambda: working.done() or bool(told))
        if working.done():
            working.result()
        yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def _show_seats(story: Story, store: Store) -> None:
    """Offices span nodes, or the rest would prove nothing."""
    spans = 0
    for office in OFFICES:
        _, found = await store.look(office)
        seats = found[1] if found else ()
        where = ", ".join(f"{seat.member.name} at {seat.node}" for seat in seats)
        await story.tell("store", f"office {office!r} has {where}")
        spans += len({seat.node for seat in seats}) > 1
    if not spans:
        raise DemoFailed("no office spans two nodes")
    await story.tell("store", f"{spans} of {len(OFFICES)} offices span nodes", proves="offices that span nodes")


async def _call_in_peace(stage: _Stage) -> None:
    story, tally = stage.story, stage.load.tally
    story.chapter("Load")
    await story.tell("agent", f"all agents together make {RATE:.0f} calls a second from now on")
    stage.load.start()
    await asyncio.sleep(_CALM)
    _check(tally)
    told = f"{len(tally.waits)} answers so far, the slowest after {tally.longest * 1000:.0f} ms"
    await story.tell("agent", told, proves="calls from node to node")


async def _kill_one(stage: _Stage) -> None:
    story, victim = stage.story, stage.nodes[0]
    story.chapter("A node dies")
    (seats,) = [node.members for node in await stage.store.nodes() if node.name == victim.name]
    await victim.kill()
    killed = time.monotonic()
    await story.tell("node", f"{victim.name!r} is killed (kill -9 {victim.pid}); {seats} members were connected to it")
    await _until(partial(_are_all_back, stage.store, victim.name))
    took = time.monotonic() - killed
    told = f"{took:.1f} s later all members have their seats at other nodes, and the dead node's lease has lapsed"
    await story.tell("store", told, proves="a dead node's members come back elsewhere")
    await asyncio.sleep(_AFTERWARDS)


async def _account(stage: _Stage) -> None:
    story, tally = stage.story, stage.load.tally
    await stage.load.end()
    told = f"{len(tally.waits)} answers to {tally.made} calls, the slowest after {tally.longest * 1000:.0f} ms"
    is_well = not (tally.lost or tally.doubled)
    await story.tell("agent", told, proves="no call lost, and none run twice" if is_well else "")


async def _are_all_back(store: Store, victim: str) -> bool:
    nodes = await store.nodes()
    return victim not in {node.name for node in nodes} and sum(node.members for node in nodes) == _MEMBERS


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not await condition():  # noqa: ASYNC110, for a person it is soon enough
            await asyncio.sleep(0.1)


async def _alive(store: Store) -> list[str]:
    return sorted(node.name for node in await store.nodes() if node.lease > 0)


def _check(tally: Tally) -> None:
    """What was refused or answered wrongly, and what has run twice. What is still in flight may be answered yet."""
    if tally.failures:
        number, why = min(tally.failures.items())
        raise DemoFailed(f"{len(tally.failures)} of {tally.made} calls were lost, the first, number {number}: {why}")
    if tally.doubled:
        raise DemoFailed(f"{tally.doubled} of {tally.made} calls ran twice")


def _put_figures(tally: Tally, before: Sequence[str], after: Sequence[str]) -> None:
    typer.secho("\nFigures", bold=True)
    figures = {
        "calls made": tally.made,
        "answered": len(tally.waits),
        "lost": tally.lost,
        "run twice": tally.doubled,
        "longest wait for an answer": f"{tally.longest * 1000:.0f} ms",
        "nodes before": ", ".join(before),
        "nodes after": ", ".join(after),
    }
    put_table(("", ""), [(name, str(figure)) for name, figure in figures.items()])


Call = Callable[[int], Awaitable[str]]
"""Calls a tool with a number, on which it answers with the same number."""


class Tally:
    """By their numbers. What has run is counted inside the tool, where a second run cannot hide."""

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
    """Callers take turns, so many times a second, until it is ended."""

    def __init__(self, callers: Sequence[Call], rate: float, tally: Tally) -> None:
        self.tally = tally
        self._callers = callers
        self._rate = rate
        self._calling: set[asyncio.Task[None]] = set()
        self._pacing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._pacing = asyncio.create_task(self._pace())

    async def end(self) -> None:
        """No more are made; those in flight are waited for, each as long as it takes."""
        if self._pacing:
            self._pacing.cancel()
            await asyncio.gather(self._pacing, return_exceptions=True)
        await asyncio.gather(*self._calling)

    async def abandon(self) -> None:
        """Nobody waits any longer."""
        tasks = [*self._calling, *([self._pacing] if self._pacing else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pace(self) -> None:
        began = time.monotonic()
        for number, call in zip(count(), cycle(self._callers)):
            await asyncio.sleep(max(0.0, began + number / self._rate - time.monotonic()))
            self.tally.made += 1
            calling = asyncio.create_task(self._make(number, call))
            self._calling.add(calling)
            calling.add_done_callback(self._calling.discard)

    async def _make(self, number: int, call: Call) -> None:
        began = time.monotonic()
        try:
            answer = await call(number)
        except SMCPError as error:
            self.tally.failures[number] = str(error)
            return
        if answer == str(number):
            self.tally.waits[number] = time.monotonic() - began
        else:
            self.tally.failures[number] = f"{answer!r} came back"
