"""The published package's computer, 0.1.2 or 0.4.2, with one real MCP server, driven by a test (see `lines`)."""

from __future__ import annotations

import lines  # isort: skip

import asyncio
import json
import sys
from typing import Any

from a2c_smcp.computer.computer import Computer as PublishedComputer
from a2c_smcp.computer.mcp_clients.model import StdioServerConfig
from a2c_smcp.computer.socketio.client import SMCPComputerClient


class Client(SMCPComputerClient):
    """The package's client. It reports the cancels that it receives; 0.1.2 has no handler for them."""

    if hasattr(SMCPComputerClient, "on_tool_call_cancel"):

        async def on_tool_call_cancel(self, data: Any) -> None:
            lines.heard("notify:tool_call_cancel", data)
            await super().on_tool_call_cancel(data)


class Computer(lines.Commands):
    async def join(self) -> Any:
        return await self.client.join_office(self.office)

    async def leave(self) -> Any:
        return await self.client.leave_office(self.office)

    async def update_config(self) -> Any:
        return await self.client.emit_update_config()

    async def update_tool_list(self) -> Any:
        return await self.client.emit_update_tool_list()

    async def update_desktop(self) -> Any:
        return await self.client.emit_refresh_desktop()


def mcp_server(program: str, *words: str) -> StdioServerConfig:
    """Nobody is there to approve calls, so the tools run without being asked about."""
    command = {"command": program, "args": [*words]}
    return StdioServerConfig.model_validate(
        {
            "name": "desk",
            "type": "stdio",
            "server_parameters": command,
            "default_tool_meta": {"auto_apply": True},
        }
    )


def another_server(name: str, *command: str) -> StdioServerConfig:
    parameters = {"command": sys.executable, "args": [*command]}
    config = {"name": name, "type": "stdio", "server_parameters": parameters}
    return StdioServerConfig.model_validate(config | {"default_tool_meta": {"auto_apply": True}})


def credentials(key: str | None) -> dict[str, Any]:
    """The package leaves these to its user: a header in the 0.1 generation, the `auth` object later."""
    if key is None:
        return {}
    return {"headers": {"x-api-key": key}} if lines.VERSION.startswith("0.1.") else {"auth": {"token": key}}


async def main() -> None:
    parser = lines.options()
    parser.add_argument("--mcp-server", type=json.loads, help="its command, a list in JSON")
    parser.add_argument("--marks", help="where the MCP server writes what becomes of its slow calls")
    parser.add_argument("--also", nargs="+", help="a script of another MCP server, and its arguments")
    args = parser.parse_args()
    desk = mcp_server(*args.mcp_server, *([args.marks] if args.marks else []))
    servers = {desk, *([another_server("skill srv!", *args.also)] if args.also else [])}
    computer = PublishedComputer(name=args.name, mcp_servers=servers, auto_connect=True)
    await computer.boot_up()
    computer.socketio_client = client = Client(computer=computer)
    connecting = client.connect(args.url, namespaces=[lines.NAMESPACE], **credentials(args.api_key))
    await lines.obey(Computer(client, args.name, args.office), connecting)


if __name__ == "__main__":
    asyncio.run(main())
