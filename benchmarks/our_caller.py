"""Calls tools through our agent: `python -m benchmarks.our_caller URL OFFICE COMPUTER [e2e,verify]`."""

from __future__ import annotations

import asyncio
import sys

from a2c_smcp.agent.client import AsyncSMCPAgentClient
from benchmarks.calling import PARAMS, serve

__all__: list[str] = []


async def main(url: str, office: str, computer: str, options: str = "") -> None:
    known = {"e2e": "prefer", "verify": True}
    given = {name: known[name] for name in options.split(",") if name}
    async with AsyncSMCPAgentClient("planner", url=url, office=office, **given) as agent:

        async def call(tool: str) -> None:
            result = await agent.emit_tool_call(computer, tool, PARAMS, timeout=10)
            if result.is_error:
                raise RuntimeError(result.content)

        await serve(call)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
