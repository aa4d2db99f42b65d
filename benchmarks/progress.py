"""How soon an agent hears of progress and of changed resources: from the MCP server's write to the agent's callback.

Server, computer and MCP server are processes of their own; the agent is in this one. Every message says when it was
written, by a clock that all processes share. The way of the answer, from the same MCP server to the same agent, is
measured in the same calls: what progress takes beyond that is its own cost.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from a2c_smcp.agent.client import AsyncSMCPAgentClient
from benchmarks.configuration import stdio_server, written
from benchmarks.processes import PATIENCE, PROGRAM, hub, running
from benchmarks.progress_server import CLOCK, EVERY, STEPS
from benchmarks.report import save
from benchmarks.table import Row, median, options, per, report

__all__: list[str] = []

OFFICE, COMPUTER = "desk", "laptop"
CALLS, CHANGES = 50, 10
QUICK = 2
POLL = 0.1
PAUSE = 0.11  # seconds: changes of one resource are told ten times a second at most


@dataclass(slots=True)
class Delays:
    """Seconds from the MCP server to the agent."""

    progress: list[float] = field(default_factory=list)
    answer: list[float] = field(default_factory=list)
    change: list[float] = field(default_factory=list)


def since(stamp: str) -> float:
    return (time.monotonic_ns() - int(stamp)) * 1e-9


@asynccontextmanager
async def agent_at_work() -> AsyncIterator[AsyncSMCPAgentClient]:
    with tempfile.TemporaryDirectory() as folder:
        config = written(Path(folder) / "servers.json", [stdio_server("progress", "progress_server.py")])
        async with hub() as (url, _):
            seat = ("--url", url, "--office", OFFICE, "--name", COMPUTER, "--config", config)
            async with (
                running(PROGRAM, "computer", "--no-input", *seat, environment={"HOME": folder}),
                AsyncSMCPAgentClient("planner", url=url, office=OFFICE) as agent,
            ):
                await started(agent)
                yield agent


async def started(agent: AsyncSMCPAgentClient) -> None:
    """The computer and its MCP server come up in their own time."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if "step" in agent.registry:
                return
            await asyncio.sleep(POLL)


async def step(agent: AsyncSMCPAgentClient, delays: Delays) -> None:
    def heard(progress: float, total: float | None, message: str | None) -> None:
        delays.progress.append(since(message or "0"))

    result = await agent.emit_tool_call(COMPUTER, "step", {}, 10, on_progress=heard)
    delays.answer.append(since(result.text))


async def count(agent: AsyncSMCPAgentClient) -> int:
    """How many of the reports of a second an agent hears."""
    heard: list[float] = []
    await agent.emit_tool_call(COMPUTER, "count", {}, 10, on_progress=lambda progress, *_: heard.append(progress))
    return len(heard)


async def touch(agent: AsyncSMCPAgentClient, delays: Delays, rounds: int) -> None:
    """Has a resource changed that the agent has subscribed to."""
    heard = asyncio.Queue[int]()
    await agent.subscribe_resource(
        COMPUTER, "progress", CLOCK, on_update=lambda _: heard.put_nowait(time.monotonic_ns())
    )
    for _ in range(rounds):
        result = await agent.emit_tool_call(COMPUTER, "touch", {}, 10)
        delays.change.append((await heard.get() - int(result.text)) * 1e-9)
        await asyncio.sleep(PAUSE)


def row(what: str, delays: list[float]) -> Row:
    in_order = sorted(delays)
    return {
        "what": what,
        "p50 ms": per(median(in_order), 1, 1e-3),
        "p95 ms": per(in_order[int(len(in_order) * 0.95)], 1, 1e-3),
        "number": len(in_order),
    }


async def measure(rounds: int) -> tuple[list[Row], dict[str, float | None]]:
    async with agent_at_work() as agent:
        await step(agent, Delays())
        delays = Delays()
        for _ in range(rounds * CALLS):
            await step(agent, delays)
        await touch(agent, delays, rounds * CHANGES)
        heard = [await count(agent) for _ in range(min(rounds, 3))]
    rows = [
        row("progress, MCP server to callback", delays.progress),
        row("answer, MCP server to agent", delays.answer),
        row("change of a resource, MCP server to callback", delays.change),
        {"what": f"reports heard of {STEPS} in {STEPS * EVERY:g} s", "number": median(heard)},
    ]
    return rows, {
        "progress.p50": per(median(delays.progress) - median(delays.answer), 1, 1e-3),
        "progress.change": per(median(delays.change), 1, 1e-3),
    }


def main() -> None:
    chosen = options("How soon an agent hears of progress and of changed resources.", rounds=10).parse_args()
    rows, measured = uvloop.run(measure(QUICK if chosen.quick else chosen.rounds))
    report(rows, chosen)
    save("progress", chosen.title, rows, measured)


if __name__ == "__main__":
    main()
