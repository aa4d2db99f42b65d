"""Offices that span three nodes on one Valkey, one of which is killed while agents call tools.

    python examples/cluster.py

It needs the extra `workers`, and Linux or macOS. Each node is an `a2c-smcp server` in a process of its own. The program
fails unless every call was answered and ran once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count, cycle
from pathlib import Path
from urllib.parse import urlsplit

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.cli.errors import Failed
from a2c_smcp.cli.serving.node import private_store, store_at
from a2c_smcp.computer import Computer
from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import cancel_and_wait, run_program
from a2c_smcp.mcp_host.processes.guard import GuardedProcess, ProcessGuard
from a2c_smcp.server.auth.api_keys import new_key
from a2c_smcp.server.cluster.store import Store
from a2c_smcp.server.run import address_of

NODES = ("north", "east", "west")
OFFICES = ("desk", "attic", "cellar")
COMPUTERS = ("laptop", "tower")
RATE = 100.0
"""Calls a second."""
MEMBERS = len(OFFICES) * (1 + len(COMPUTERS))
CALM, AFTERWARDS = 3.0, 3.0
PATIENCE = 20.0
TIMEOUT = 30


class ExampleFailed(Exception):
    """Something that this program claims did not happen."""


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    try:
        run_program(kill_a_node())
    except (ExampleFailed, Failed, SMCPError, OSError, TimeoutError) as error:
        sys.exit(f"The example failed: {error or type(error).__name__}")


async def kill_a_node() -> None:
    """Raises `ExampleFailed` unless every call was answered and ran once."""
    async with AsyncExitStack() as stack:
        cluster = await start(stack)
        before = await alive(cluster.store)
        await call_undisturbed(cluster)
        await kill_one(cluster)
        await end_load(cluster)
        after = await alive(cluster.store)
    counts = cluster.load.counts
    print_figures(counts, before, after)
    check(counts)
    print("✓ no call lost, and none run twice")


@dataclass(frozen=True)
class Cluster:
    """The running cluster and the load on it."""

    store: Store
    nodes: Sequence[NodeProcess]
    load: Load


async def start(stack: AsyncExitStack) -> Cluster:
    guard, key = ProcessGuard(), new_key()
    stack.push_async_callback(guard.close)
    redis = await stack.enter_async_context(private_store(guard))
    store = await stack.enter_async_context(store_at(redis))
    say("store", "Valkey listens on a socket of its own")
    nodes = await stack.enter_async_context(running_nodes(guard, redis, key, *NODES))
    for node in nodes:
        say("node", f"{node.name!r} listens on {node.url} (process {node.pid}) and has a lease")
    url = await stack.enter_async_context(LoadBalancer(node.url for node in nodes).open())
    say("balancer", f"{url} passes connections on to them in turn, and knows nothing of sessions")
    counts = CallCounts()
    load = Load(await join_members(stack, counts, url, key), RATE, counts)
    stack.push_async_callback(load.abandon)
    await show_seats(store)
    return Cluster(store, nodes, load)


async def join_members(stack: AsyncExitStack, counts: CallCounts, url: str, key: str) -> list[NumberedCall]:
    """Put an agent and two computers into each office. Returns a call for each agent and computer of one office."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    for office in OFFICES:
        for name in COMPUTERS:
            await stack.enter_async_context(running(computer(name, counts), url, office, key, folder / office))
    agents = [AsyncSMCPAgentClient(f"agent-of-{office}", url=url, office=office, api_key=key) for office in OFFICES]
    for agent in agents:
        await stack.enter_async_context(agent)
    return [partial(call, agent, name) for name in COMPUTERS for agent in agents]


def computer(name: str, counts: CallCounts) -> Computer:
    made = Computer(name)

    @made.tool(auto_apply=True)
    def mark(number: int) -> str:
        """Answer with the number, and remember that this has run."""
        counts.runs[number] += 1
        return str(number)

    return made


@asynccontextmanager
async def running(computer: Computer, url: str, office: str, key: str, folder: Path) -> AsyncIterator[None]:
    """Run a computer in an office, which it has joined when the block begins."""
    joined = asyncio.Event()
    run = partial(computer.run, url, office=office, api_key=key, state_folder=folder)
    working = asyncio.create_task(run(on_connection=lambda _: joined.set()))
    try:
        async with asyncio.timeout(PATIENCE):
            await joined.wait()
        yield
    finally:
        await cancel_and_wait(working)


async def call(agent: AsyncSMCPAgentClient, computer: str, number: int) -> str:
    return (await agent.emit_tool_call(computer, "mark", {"number": number}, timeout=TIMEOUT)).text


async def show_seats(store: Store) -> None:
    """Print where members are connected. Raises `ExampleFailed` if no office spans two nodes."""
    spans = 0
    for office in OFFICES:
        _, found = await store.look(office)
        seats = found[1] if found else ()
        where = ", ".join(f"{seat.member.name} at {seat.node}" for seat in seats)
        say("store", f"office {office!r} has {where}")
        spans += len({seat.node for seat in seats}) > 1
    if not spans:
        raise ExampleFailed("no office spans two nodes")
    say("store", f"{spans} of {len(OFFICES)} offices span nodes")


async def call_undisturbed(cluster: Cluster) -> None:
    counts = cluster.load.counts
    say("agent", f"all agents together make {RATE:.0f} calls a second from now on")
    cluster.load.start()
    await asyncio.sleep(CALM)
    check(counts)
    say("agent", f"{len(counts.waits)} answers so far, the slowest after {counts.longest * 1000:.0f} ms")


async def kill_one(cluster: Cluster) -> None:
    victim = cluster.nodes[0]
    (seats,) = [node.members for node in await cluster.store.nodes() if node.name == victim.name]
    await victim.kill()
    killed = time.monotonic()
    say("node", f"{victim.name!r} is killed (kill -9 {victim.pid}); {seats} members were connected to it")
    async with asyncio.timeout(PATIENCE):
        while not await are_all_back(cluster.store, victim.name):  # noqa: ASYNC110, for a person it is soon enough
            await asyncio.sleep(0.1)
    took = time.monotonic() - killed
    say("store", f"{took:.1f} s later all members have their seats at other nodes, and the lease of the node has ended")
    await asyncio.sleep(AFTERWARDS)


async def are_all_back(store: Store, victim: str) -> bool:
    nodes = await store.nodes()
    return victim not in {node.name for node in nodes} and sum(node.members for node in nodes) == MEMBERS


async def end_load(cluster: Cluster) -> None:
    counts = cluster.load.counts
    await cluster.load.end()
    slowest = f"the slowest after {counts.longest * 1000:.0f} ms"
    say("agent", f"{len(counts.waits)} answers to {counts.made} calls, {slowest}")


async def alive(store: Store) -> list[str]:
    return sorted(node.name for node in await store.nodes() if node.lease > 0)


def check(counts: CallCounts) -> None:
    """Raises `ExampleFailed` for calls that failed or ran twice. Calls in flight may still be answered."""
    if counts.failures:
        number, why = min(counts.failures.items())
        lost = f"{len(counts.failures)} of {counts.made} calls were lost"
        raise ExampleFailed(f"{lost}, the first, number {number}: {why}")
    if counts.doubled:
        raise ExampleFailed(f"{counts.doubled} of {counts.made} calls ran twice")


def say(who: str, what: str) -> None:
    print(f"{who:<9} {what}", flush=True)


def print_figures(counts: CallCounts, before: Sequence[str], after: Sequence[str]) -> None:
    figures = {
        "calls made": counts.made,
        "answered": len(counts.waits),
        "lost": counts.lost,
        "run twice": counts.doubled,
        "longest wait for an answer": f"{counts.longest * 1000:.0f} ms",
        "nodes before": ", ".join(before),
        "nodes after": ", ".join(after),
    }
    print("\nFigures", *(f"{name:<28}{figure}" for name, figure in figures.items()), sep="\n")


# The load

NumberedCall = Callable[[int], Awaitable[str]]
"""Calls a tool with a number and returns its answer, which should be the same number."""


class CallCounts:
    """The outcome of each call, by its number. Runs are counted inside the tool, where a second run is noticed."""

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


# The nodes and the load balancer

NODE_OPTIONS = ("--port", "0", "--log-level", "warning")
START = 30.0
LAST_LINES = 20
DIAL = 2.0
CHUNK = 65536


@dataclass
class NodeProcess:
    """A Server in a process. Its last log lines are kept for the error message if it fails."""

    name: str
    url: str
    child: GuardedProcess
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))

    @property
    def pid(self) -> int:
        return self.child.pid

    async def kill(self) -> None:
        """Kill it like `kill -9`."""
        os.kill(self.child.pid, signal.SIGKILL)
        await self.child.exited.wait()


@asynccontextmanager
async def running_nodes(guard: ProcessGuard, redis: str, key: str, *names: str) -> AsyncIterator[list[NodeProcess]]:
    """Run Servers that share a store and accept one key."""
    theirs = {name: value for name, value in os.environ.items() if not name.startswith("A2C_")}
    environ = {**theirs, "A2C_SERVER_REDIS": redis, "A2C_SERVER_API_KEY": key}
    children = await asyncio.gather(*(launch(guard, name, environ) for name in names))
    listening: list[asyncio.Task[None]] = []
    try:
        nodes = [NodeProcess(name, "", child) for name, child in zip(names, children, strict=True)]
        listening = [asyncio.create_task(keep_log(node)) for node in nodes]
        await asyncio.gather(*map(read_url, nodes))
        yield nodes
    finally:
        await asyncio.gather(*(child.end(grace=0, term=5, limit=8) for child in children))
        await cancel_and_wait(*listening)


async def launch(guard: ProcessGuard, name: str, environ: dict[str, str]) -> GuardedProcess:
    words = [sys.executable, "-P", "-m", "a2c_smcp", "server", "--node", name, *NODE_OPTIONS]
    return await guard.launch(sys.executable, words, environ, str(Path.cwd()))


async def read_url(node: NodeProcess) -> None:
    """Read from its output where the node listens."""
    async with asyncio.timeout(START):
        line = (await node.child.stdout.readline()).decode()
    if not line.startswith("listening on "):
        raise ExampleFailed(f"node {node.name!r} did not start: {' '.join(node.lines)}")
    node.url = line.split()[2]


async def keep_log(node: NodeProcess) -> None:
    while line := await node.child.stderr.readline():
        node.lines.append(line.decode("utf-8", "replace").rstrip())


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class LoadBalancer:
    """Passes TCP connections to the nodes in turn, without sticky sessions. Skips nodes that do not accept."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._turns = deque(urls)
        self._connections: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Listen, and yield the URL."""
        listening = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        try:
            yield f"http://{address_of(listening.sockets[0])}"
        finally:
            listening.close()
            await cancel_and_wait(*self._connections)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._relay((reader, writer)))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _relay(self, client: Connection) -> None:
        node = await self._next_node()
        if node is None:
            client[1].close()
            return
        copies = [asyncio.create_task(copy_all(*copy)) for copy in ((client[0], node[1]), (node[0], client[1]))]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            for _, writer in (client, node):
                writer.close()

    async def _next_node(self) -> Connection | None:
        for _ in range(len(self._turns)):
            self._turns.rotate(-1)
            parts = urlsplit(self._turns[-1])
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(DIAL):
                    return await asyncio.open_connection(parts.hostname, parts.port)
        return None


async def copy_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()


if __name__ == "__main__":
    main()
