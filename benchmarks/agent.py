"""What our agent adds to a call: `AsyncSMCPAgentClient.emit_tool_call` beside a bare python-socketio client's `call`.

Both are in this process and take turns, through one Server, to computers of one other process that answer at once; each
agent has an office, and so a computer, of its own. CPU is this process's own.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import socketio
import uvloop

from benchmarks.bare import NAMESPACE, bare_agent, joined
from benchmarks.processes import hub, running
from benchmarks.report import save
from benchmarks.table import Row, in_turn, median, options, per, ratio, report

BARE, OURS = "bare python-socketio", "AsyncSMCPAgentClient"
OFFICES = {BARE: "bare", OURS: "ours"}
COMPUTER, TOOL, PARAMS = "laptop", "echo", {"text": "hello", "times": 3}
SAID = "hello hello hello"
ANSWER = {"content": [{"type": "text", "text": SAID}], "isError": False}
LISTED = {"name": TOOL, "description": "Says it again.", "params_schema": {"type": "object"}, "return_schema": None}
CALLS = 200
WAYS = {"one at a time": 1, "50 at once": 50}
READY = "ready"
QUICK = 3

Call = Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Sample:
    """A number of calls: CPU seconds of this process per call, and how long each took."""

    cpu: float
    seconds: list[float]


async def echo(url: str) -> None:
    """The other process: a computer in each office, until it is stopped."""
    async with AsyncExitStack() as stack:
        for office in OFFICES.values():
            client = socketio.AsyncClient(reconnection=False, handle_sigint=False)
            client.on("client:tool_call", lambda data: ANSWER, namespace=NAMESPACE)
            client.on("client:get_tools", listing, namespace=NAMESPACE)
            await stack.enter_async_context(joined(client, url, "computer", COMPUTER, office))
        print(READY, flush=True)
        await asyncio.Event().wait()


def listing(data: dict[str, Any]) -> dict[str, Any]:
    return {"tools": [LISTED], "req_id": data["req_id"]}


@asynccontextmanager
async def our_agent(url: str, name: str, office: str) -> AsyncIterator[Any]:
    from a2c_smcp.agent.client import AsyncSMCPAgentClient

    async with AsyncSMCPAgentClient(name, url=url, office=office) as agent:
        yield agent


async def calls(at_once: int, call: Call) -> Sample:
    seconds: list[float] = []

    async def some() -> None:
        for _ in range(CALLS // at_once):
            start = time.perf_counter()
            await call()
            seconds.append(time.perf_counter() - start)

    before = time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(some())
    return Sample((time.process_time() - before) / CALLS, seconds)


async def compare(contestants: dict[str, Call], rounds: int, title: str) -> list[Row]:
    some = partial(calls, WAYS[title])
    await in_turn(contestants, 1, some)
    samples = await in_turn(contestants, rounds, some)
    cpu = {name: median(sample.cpu for sample in found) for name, found in samples.items()}
    latency = {name: median(each for sample in found for each in sample.seconds) for name, found in samples.items()}
    return [
        {
            "calls": title,
            "agent": name,
            "its CPU µs per call": per(cpu[name], 1, 1e-6),
            "times bare": ratio(cpu[name], cpu[BARE]),
            "p50 µs": per(latency[name], 1, 1e-6),
            "p50 times bare": ratio(latency[name], latency[BARE]),
        }
        for name in contestants
    ]


async def measure(rounds: int) -> list[Row]:
    async with (
        hub() as (url, _),
        running(sys.executable, "-m", "benchmarks.agent", "--echo", url, says=READY),
        bare_agent(url, "planner", OFFICES[BARE]) as bare,
        our_agent(url, "planner", OFFICES[OURS]) as ours,
    ):
        contestants: dict[str, Call] = {
            BARE: lambda: bare.call_tool(COMPUTER, TOOL, PARAMS),
            OURS: lambda: ours.emit_tool_call(COMPUTER, TOOL, PARAMS, timeout=10),
        }
        for name, call in contestants.items():
            if SAID not in str(answer := await call()):
                raise RuntimeError(f"{name}: {answer!r} came back")
        return [row for title in WAYS for row in await compare(contestants, rounds, title)]


def main() -> None:
    parser = options("What our agent adds to a call.", rounds=15)
    parser.add_argument("--echo", metavar="URL", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.echo:
        uvloop.run(echo(chosen.echo))
    else:
        rows = uvloop.run(measure(QUICK if chosen.quick else chosen.rounds))
        report(rows, chosen)
        save("agent", chosen.title, rows)


if __name__ == "__main__":
    main()
