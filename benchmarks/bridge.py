"""What an MCP client pays for a bridge: a call through bridge, Server and computer, beside the direct call.

The MCP server is on the SDK and behind streamable HTTP; both ways are called by the SDK's client, in turn, for clients
of 2026-07-28 and of an older revision. Every part is a process of its own. Then a crowd: many MCP clients on one office
call at a steady rate while two of them do not read what they are sent, in every second round. They call a server that
answers at once over stdio, so that the machine has the time for the way there.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import product
from pathlib import Path

import uvloop

from benchmarks.bridge_crowd import Crowd
from benchmarks.calling import READY
from benchmarks.configuration import stdio_server, written
from benchmarks.end_to_end import Contestant, Found, compare
from benchmarks.processes import OURS as PYTHON
from benchmarks.processes import PATIENCE, PROGRAM, Running, hub, running
from benchmarks.report import save
from benchmarks.table import Row, options, per, ratio, report

__all__: list[str] = []

LISTENING = "listening on "
DIRECT, BRIDGE = "direct", "through a bridge"
ERAS = {"2026-07-28": "auto", "2025-11-25": "legacy"}
WAYS = {"one at a time": 1, "32 in flight": 32}
PARTS = ("bridge", "server", "computer")
TOOL, OFFICE = "echo", "desk"
CROWDED_TOOL = "bare_0"
WARM_UP = 96
QUICK = 2
CROWD = Crowd(clients=50, rate=20, slow=2, seconds=6, rounds=3)


@asynccontextmanager
async def upstream() -> AsyncIterator[str]:
    async with running(PYTHON, "-m", "benchmarks.http_echo_server", says=LISTENING) as server:
        yield server.said.removeprefix(LISTENING)


@asynccontextmanager
async def bridged(url: str, folder: Path) -> AsyncIterator[tuple[str, dict[str, Running]]]:
    """The URL of a bridge to an office with a computer that hosts the MCP server, and the parts between."""
    config = written(folder / "servers.json", [entry(url), stdio_server("bare", "mcp_server.py", "bare", 5, 0, 0)])
    home = {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    async with hub() as (place, server):
        seat = ("--url", place, "--office", OFFICE)
        door = ("--port", "0", "--no-key", "--log-level", "error")
        async with (
            running(PROGRAM, "computer", "--no-input", *seat, "--config", config, environment=home) as computer,
            running(PROGRAM, "bridge", *seat, *door, says=LISTENING, environment=home) as bridge,
        ):
            parts = {"bridge": bridge, "server": server, "computer": computer}
            yield bridge.said.removeprefix(LISTENING), parts


def entry(url: str) -> dict[str, object]:
    return {
        "name": TOOL,
        "type": "streamable",
        "server_parameters": {"url": url},
        "default_tool_meta": {"auto_apply": True},
    }


@asynccontextmanager
async def calling(url: str, mode: str, between: Mapping[str, Running]) -> AsyncIterator[Contestant]:
    async with running(PYTHON, "-m", "benchmarks.mcp_caller", url, mode, says=READY) as caller:
        contestant = Contestant(caller, between)
        async with asyncio.timeout(PATIENCE):
            while True:
                if await contestant.calls(TOOL, 1, 1):
                    break
                await asyncio.sleep(0.1)
        await contestant.calls(TOOL, WARM_UP, max(WAYS.values()))
        yield contestant


def rows(era: str, way: str, found: Mapping[str, Found]) -> list[Row]:
    direct = found[DIRECT]
    return [
        {
            "revision": era,
            "calls": way,
            "through": name,
            "p50 ms": per(each.p50, 1, 1e-3),
            "times direct": ratio(each.p50, direct.p50),
            "calls per s": per(each.throughput, 1),
            "of direct": ratio(each.throughput, direct.throughput),
            **{f"{part} CPU µs": each.busy.get(part) for part in PARTS},
        }
        for name, each in found.items()
    ]


async def measure(rounds: int) -> tuple[list[Row], dict[str, float | None]]:
    table: list[Row] = []
    measured: dict[str, float | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            url = await stack.enter_async_context(upstream())
            bridge, parts = await stack.enter_async_context(bridged(url, Path(folder)))
            for era, (way, at_once) in product(ERAS, WAYS.items()):
                async with calling(url, ERAS[era], {}) as direct, calling(bridge, ERAS[era], parts) as through:
                    found = await compare({DIRECT: direct, BRIDGE: through}, rounds, TOOL, at_once)
                table += rows(era, way, found)
                if era == "2026-07-28":
                    measured |= goals(at_once, found)
            crowd = await CROWD.measured(bridge, CROWDED_TOOL, TOOL)
            measured |= {"bridge.lost": crowd.lost, "bridge.slow": crowd.waited}
            table.append({"revision": "2026-07-28", "calls": str(CROWD), "through": BRIDGE, **crowd.row})
    return table, measured


def goals(at_once: int, found: Mapping[str, Found]) -> dict[str, float | None]:
    direct, through = found[DIRECT], found[BRIDGE]
    if at_once == 1:
        return {"bridge.p50": ratio(through.p50, direct.p50)}
    return {"bridge.throughput": ratio(through.throughput, direct.throughput)}


def main() -> None:
    chosen = options("A call through a bridge, compared with a direct MCP call over HTTP.", rounds=20).parse_args()
    table, measured = uvloop.run(measure(QUICK if chosen.quick else chosen.rounds))
    report(table, chosen)
    save("bridge", chosen.title, table, measured)


if __name__ == "__main__":
    main()
