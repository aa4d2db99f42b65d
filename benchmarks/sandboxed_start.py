"""Starting an MCP server over stdio: without a sandbox, and in a strict one, until it has answered its first request.

The server is written by hand and costs nearly nothing, so that what the sandbox adds can be seen.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from a2c_smcp.mcp_host.config.servers import MCPServerConfig, parse_server
from a2c_smcp.mcp_host.limits import HostLimits
from a2c_smcp.mcp_host.manager import transport_for
from a2c_smcp.mcp_host.processes.guard import ProcessGuard
from a2c_smcp.mcp_host.processes.plan import possible
from a2c_smcp.mcp_host.sessions.session import MCPSession
from benchmarks.report import save
from benchmarks.table import Row, in_turn, median, options, per, report

ROUNDS, QUICK = 60, 10
SERVER = Path(__file__).with_name("mcp_server.py")


def config(sandbox: str | None) -> MCPServerConfig:
    args = [str(SERVER), "desk", "1", "0", "0"]
    return parse_server({"command": sys.executable, "args": args, "sandbox": sandbox, "protocol": "older"}, "desk")


async def started(guard: ProcessGuard, server: MCPServerConfig) -> tuple[float, float]:
    """The seconds until it can be used, and those until it is gone again."""
    session = MCPSession(
        "desk", lambda: transport_for(server, guard), on_event=lambda *_: None, policy=HostLimits(), legacy=True
    )
    begin = time.perf_counter()
    try:
        await session.start(30)
        ready = time.perf_counter()
    finally:
        await session.stop()
    return ready - begin, time.perf_counter() - ready


async def compared(rounds: int) -> list[Row]:
    guard = ProcessGuard()
    servers = {"without a sandbox": config(None), "in a strict sandbox": config("strict")}
    try:
        await in_turn(servers, 2, lambda server: started(guard, server))  # the guard process starts with the first
        samples = await in_turn(servers, rounds, lambda server: started(guard, server))
    finally:
        await guard.close()
    return [
        {
            "server": name,
            "start ms": per(median(start for start, _ in found), 1, 1e-3),
            "end ms": per(median(end for _, end in found), 1, 1e-3),
        }
        for name, found in samples.items()
    ]


def main() -> None:
    chosen = options("Start of an MCP server, in a sandbox and without one", rounds=ROUNDS).parse_args()
    if not possible().ports:
        sys.exit("this kernel cannot enforce a strict sandbox")
    rows = asyncio.run(compared(QUICK if chosen.quick else chosen.rounds))
    plain, boxed = (row["start ms"] for row in rows)
    save("sandboxed_start", chosen.title, rows, {"sandboxed_start.added": round(boxed - plain, 2)})
    report(rows, chosen)


if __name__ == "__main__":
    main()
