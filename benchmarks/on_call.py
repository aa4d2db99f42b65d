"""Ten MCP servers over stdio that start on call: what they cost while they are asleep, and what their first call costs.

The servers are written by hand in Python and have 20 tools each. The first call of a server that is asleep is compared
with a start of the same server and a call of it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from a2c_smcp.mcp_host.config.servers import MCPServerConfig, parse_server
from a2c_smcp.mcp_host.limits import HostLimits
from a2c_smcp.mcp_host.manager import Manager
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from a2c_smcp.mcp_host.supervisor import SeenServers
from benchmarks.report import save
from benchmarks.table import Row, in_turn, median, options, per, ratio, report

ROUNDS, QUICK = 40, 8
SERVERS, TOOLS = 10, 20
SERVER = Path(__file__).with_name("mcp_server.py")
MIB = 2**20


def config(number: int, start: str) -> MCPServerConfig:
    args = [str(SERVER), f"desk{number}", str(TOOLS), "0", "0"]
    return parse_server({"command": sys.executable, "args": args, "start": start, "protocol": "older"}, f"desk{number}")


@asynccontextmanager
async def managed(folder: Path, count: int, start: str, idle: float | None = None) -> AsyncIterator[Manager]:
    async with Manager(policy=HostLimits(idle_stop=idle), seen=SeenServers("bench", folder)) as manager:
        for number in range(count):
            manager.add(config(number, start))
        await manager.start()
        yield manager


async def see_all(folder: Path) -> None:
    """All servers have been seen, and are asleep."""
    async with managed(folder, SERVERS, "on_call", 0.2) as manager:
        while any(status.state != "asleep" for status in manager.status().values()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def descendants(of: int) -> list[int]:
    children = Path(f"/proc/{of}/task/{of}/children").read_text().split()
    return [each for child in children for each in (int(child), *descendants(int(child)))]


def resident(pids: list[int]) -> int:
    """Bytes in memory that these processes share with no other."""
    lines = [line.split() for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(words[1]) * 1024 for words in lines if words[0] in ("Private_Clean:", "Private_Dirty:"))


def is_server(pid: int) -> bool:
    return str(SERVER) in Path(f"/proc/{pid}/cmdline").read_text().split("\0")


async def cost_of(folder: Path, start: str) -> Row:
    gc.collect()
    before = resident([os.getpid()])
    async with managed(folder, SERVERS, start) as manager:
        pids = descendants(os.getpid())
        servers = sum(is_server(pid) for pid in pids)
        gc.collect()
        used = resident([os.getpid(), *pids]) - before
        state = manager.status()["desk0"].state
    return {"ten servers": state, "processes": servers, "MiB each": used / SERVERS / MIB}


async def first_call(folder: Path, start: str) -> float:
    """Seconds until a call has its answer: with the start before it, or as the first call of a server asleep."""
    async with Manager(seen=SeenServers("bench", folder)) as manager:
        manager.add(config(0, start))
        if start == "on_call":
            await manager.start()
        begin = time.perf_counter()
        if start == "always":
            await manager.start()
        await manager["desk0"].requests.call_tool(ToolRequest("desk0_0", {"text": "x"}, 30))
        return time.perf_counter() - begin


async def compared(rounds: int) -> tuple[list[Row], dict[str, float]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        await see_all(folder)
        rows = [await cost_of(folder, start) for start in ("on_call", "always")]
        kinds = {"always": "always", "on_call": "on_call"}
        samples = await in_turn(kinds, rounds, lambda start: first_call(folder, start))
    started, asleep = median(samples["always"]), median(samples["on_call"])
    rows[0]["first call ms"], rows[1]["first call ms"] = per(asleep, 1, 1e-3), per(started, 1, 1e-3)
    rows[0]["× start and call"] = ratio(asleep, started)
    numbers = {"on_call.processes": rows[0]["processes"], "on_call.memory": rows[0]["MiB each"]}
    return rows, {**numbers, "on_call.first": round(asleep / started, 2)}


def main() -> None:
    chosen = options("MCP servers that start on call, asleep and awake", rounds=ROUNDS).parse_args()
    rows, numbers = asyncio.run(compared(QUICK if chosen.quick else chosen.rounds))
    save("on_call", chosen.title, rows, numbers)
    report(rows, chosen)


if __name__ == "__main__":
    main()
