"""A Computer's process in small: starts the MCP servers given as JSON, says so, and waits to be killed."""

from __future__ import annotations

import asyncio
import json
import sys

from a2c_smcp.mcp_host.config.servers import parse_server
from a2c_smcp.mcp_host.manager import Manager


async def main() -> None:
    async with Manager() as manager:
        for config in json.loads(sys.argv[1]):
            manager.add(parse_server(config))
        await manager.start()
        pids = [status.diagnostics["pid"] for status in manager.status().values()]
        print(json.dumps(pids), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
