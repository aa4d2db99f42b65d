"""The published package's computer, with the MCP servers of a file. Runs where that package is installed."""

from __future__ import annotations

import lines  # isort: skip  # before the package: see there

import asyncio
import json
from pathlib import Path

from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.mcp_clients.model import StdioServerConfig
from a2c_smcp.computer.socketio.client import SMCPComputerClient


async def main() -> None:
    parser = lines.options()
    parser.add_argument("--config", type=Path, required=True)
    args = parser.parse_args()
    servers = json.loads(args.config.read_text("utf-8"))
    configs = {StdioServerConfig.model_validate(server) for server in servers}
    computer = Computer(name=args.name, mcp_servers=configs, auto_connect=True)
    await computer.boot_up()
    computer.socketio_client = client = SMCPComputerClient(computer=computer)
    auth = {"token": args.api_key} if args.api_key else None
    await client.connect(args.url, namespaces=[lines.NAMESPACE], auth=auth)
    await client.join_office(args.office)
    await client.wait()


if __name__ == "__main__":
    asyncio.run(main())
