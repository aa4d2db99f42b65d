"""An agent and a computer in one process, whose calls have to wait: `waiting_program.py URL FILE STATE SERVER`.

It prints `running` when the tool `hold` runs. A line on stdin ends that call; then two calls go to an MCP server that
takes one at a time.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from opentelemetry import trace

from a2c_smcp.agent import AsyncSMCPAgentClient
from a2c_smcp.computer import Computer
from a2c_smcp.computer.consent.approval import approve_all
from a2c_smcp.mcp_host.limits import HostLimits
from a2c_smcp.telemetry.exporting import export_traces


async def main(url: str, state: Path, server: str) -> None:
    tracer = trace.get_tracer("program")
    computer = Computer("laptop", approve=approve_all, policy=HostLimits(calls_at_once=1))

    @computer.tool
    async def hold() -> str:
        """Holds a call until a line comes."""
        print("running", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        return "held"

    parameters = {"command": sys.executable, "args": [server]}
    computer.add_server({"name": "tools", "type": "stdio", "server_parameters": parameters})
    joined = asyncio.Event()

    def on_connection(what: str) -> None:
        print(what, flush=True)
        if what.startswith("joined"):
            joined.set()

    running = asyncio.create_task(computer.run(url, office="desk", state_folder=state, on_connection=on_connection))
    await joined.wait()
    async with AsyncSMCPAgentClient("planner", url=url, office="desk") as agent:
        with tracer.start_as_current_span("work that is sent again"):
            print((await agent.emit_tool_call("laptop", "hold", {}, timeout=60)).text, flush=True)
        with tracer.start_as_current_span("work in a queue"):
            calls = [agent.emit_tool_call("laptop", "slow", {"steps": 2, "pause": 0.1}, timeout=60) for _ in range(2)]
            await asyncio.gather(*calls)
            print("done", flush=True)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    export = export_traces("program", Path(sys.argv[2]))
    try:
        asyncio.run(main(sys.argv[1], Path(sys.argv[3]), sys.argv[4]))
    finally:
        export()
