"""What an agent waits for the tools and the desktop of a computer, ours beside the published package's.

All computers sit in one office of our Server, each with MCP servers of its own that are all the same program, and are
asked in turn by one bare client. The MCP servers count what they are asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.bare import BareAgent, bare_agent
from benchmarks.configuration import stdio_server, written
from benchmarks.processes import PROGRAM, ROOT, Running, hub, interpreter, running
from benchmarks.report import save
from benchmarks.table import Row, in_turn, median, options, per, ratio, report

HERE = Path(__file__).parent
PUBLISHED = ("0.1.2", "0.4.2")
OURS, OFFICE = "ours", "desk"
SERVERS, WINDOWS = 5, 10
FEW, MANY = 2, 100
"""Tools of each server."""

START = 60.0
POLL = 0.1
QUICK = 5

GET_FEW, GET_TOOLS = (f"get_tools, {SERVERS * tools} tools" for tools in (FEW, MANY))
GET_THREE = f"get_desktop(size=3), {SERVERS * WINDOWS} windows"
GET_DESKTOP = f"get_desktop(), {SERVERS * WINDOWS} windows"
OPERATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    GET_FEW: ("client:get_tools", {}),
    GET_TOOLS: ("client:get_tools", {}),
    GET_THREE: ("client:get_desktop", {"desktop_size": 3}),
    GET_DESKTOP: ("client:get_desktop", {}),
}
DESKS = {FEW: (GET_FEW,), MANY: (GET_TOOLS, GET_THREE, GET_DESKTOP)}
"""What is asked of computers whose servers have so many tools each."""

GOALS = {
    "computer.get_tools": GET_TOOLS,
    "computer.get_desktop": GET_DESKTOP,
    "computer.get_desktop_3": GET_THREE,
}
NEWEST = PUBLISHED[-1]


@asynccontextmanager
async def computers(url: str, tools: int, delay: float, versions: list[str]) -> AsyncIterator[dict[str, Running]]:
    """Ours and the published ones, by name, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        names = [f"desk{number}" for number in range(SERVERS)]
        servers = (stdio_server(name, "mcp_server.py", name, tools, WINDOWS, delay) for name in names)
        config = written(Path(folder) / "servers.json", servers)
        seat: list[str | Path] = ["--url", url, "--office", OFFICE, "--config", config]
        isolated = {"HOME": folder, "PYTHONPATH": str(ROOT / "tests/interop/peers")}
        async with AsyncExitStack() as stack:
            ours = running(PROGRAM, "computer", "--no-input", "--name", OURS, *seat, environment={"HOME": folder})
            found = {OURS: await stack.enter_async_context(ours)}
            for version in versions:
                command = (interpreter(version), HERE / "published_computer.py", "--name", version, *seat)
                found[version] = await stack.enter_async_context(running(*command, environment=isolated))
            yield found


async def complete(agent: BareAgent, name: str, process: Running, tools: int) -> None:
    """Waits until the computer shows everything that its servers have."""
    async with asyncio.timeout(START):
        while not process.has_ended:
            listed = (await agent.request("client:get_tools", name)).get("tools", [])
            if len(listed) == SERVERS * tools:
                shown = await agent.request("client:get_desktop", name)
                if len(shown.get("desktops", [])) == SERVERS * WINDOWS:
                    return
            await asyncio.sleep(POLL)
    raise ChildProcessError(f"the computer {name!r} has ended")


class MCPTraffic:
    """What the MCP servers of a computer are asked, as they say themselves."""

    def __init__(self, agent: BareAgent, computer: str) -> None:
        self._agent = agent
        self._computer = computer
        self._reporters: list[str] = []

    async def during(self, work: Callable[[], Awaitable[Any]]) -> Counter[str]:
        """What the work alone causes: the calls that ask for the counts are taken off, with all that they cause."""
        before = await self._asked()
        between = await self._asked()
        await work()
        return await self._asked() - between - (between - before)

    async def _asked(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for tool in await self._first_tools():
            result = await self._agent.call_tool(self._computer, tool, {"text": "counts"})
            total.update(json.loads(result["content"][0]["text"]))
        return total

    async def _first_tools(self) -> list[str]:
        """One of each server, under whatever name the computer gives it."""
        if not self._reporters:
            tools = (await self._agent.request("client:get_tools", self._computer))["tools"]
            self._reporters = [tool["name"] for tool in tools if tool["name"].endswith("_0")]
        return self._reporters


async def timed(agent: BareAgent, event: str, arguments: dict[str, Any], computer: str) -> float:
    start = time.perf_counter()
    await agent.request(event, computer, **arguments)
    return time.perf_counter() - start


async def compare(agent: BareAgent, processes: dict[str, Running], rounds: int, title: str) -> list[Row]:
    ask = partial(timed, agent, *OPERATIONS[title])
    before = {name: process.cpu for name, process in processes.items()}
    samples = await in_turn({name: name for name in processes}, rounds, ask)
    busy = {name: process.cpu_since(before[name]) for name, process in processes.items()}
    seconds = {name: median(found) for name, found in samples.items()}
    return [
        {
            "what": title,
            "computer": name,
            "ms": per(seconds[name], 1, 1e-3),
            "times ours": ratio(seconds[name], seconds[OURS]),
            "its CPU ms": per(busy[name], rounds, 1e-3),
            "requests to MCP servers": _told(await MCPTraffic(agent, name).during(partial(ask, name))),
        }
        for name in processes
    ]


def _told(traffic: Counter[str]) -> str:
    each = ", ".join(f"{count} {method}" for method, count in traffic.items())
    return f"{traffic.total()}: {each}" if each else "0"


async def measure(chosen: argparse.Namespace) -> list[Row]:
    desks = [MANY] if chosen.quick else DESKS
    async with hub() as (url, _), bare_agent(url, "planner", OFFICE) as agent:
        return [row for tools in desks for row in await measure_desk(url, agent, tools, chosen)]


async def measure_desk(url: str, agent: BareAgent, tools: int, chosen: argparse.Namespace) -> list[Row]:
    async with computers(url, tools, chosen.delay / 1000, chosen.versions) as processes:
        for name, process in processes.items():
            await complete(agent, name, process, tools)
        return [row for title in DESKS[tools] for row in await compare(agent, processes, chosen.rounds, title)]


def goals(rows: list[Row]) -> dict[str, float | None]:
    beside = {row["what"]: row["times ours"] for row in rows if row["computer"] == NEWEST}
    return {key: beside.get(title) for key, title in GOALS.items()}


def main() -> None:
    parser = options("Time to fetch the tools and the desktop of a computer.", rounds=30)
    parser.add_argument("--delay", type=float, default=0, metavar="MS", help="how long an MCP server takes to answer")
    parser.add_argument("--versions", nargs="*", default=PUBLISHED, help="of the published package (default: all)")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.versions = QUICK, [NEWEST]
    rows = uvloop.run(measure(chosen))
    report(rows, chosen)
    save("computer", chosen.title, rows, goals(rows))


if __name__ == "__main__":
    main()
