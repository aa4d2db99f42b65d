"""FastMCP's client signs in. It waits on a port of its own for the answer; only no browser is opened."""

from __future__ import annotations

import asyncio
import json
import sys

from fastmcp.client import Client
from fastmcp.client.auth import OAuth


class Shown(OAuth):
    async def redirect_handler(self, authorization_url):
        print(authorization_url, flush=True)


async def main(url):
    async with Client(url, auth=Shown(mcp_url=url, client_name="FastMCP")) as client:
        result = await client.call_tool("add", {"a": 1, "b": 2})
        print(json.dumps({"call": result.content[0].text, "scope": "mcp"}), flush=True)


asyncio.run(main(sys.argv[1]))
