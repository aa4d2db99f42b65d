"""A computer whose MCP server changes its tools, and an owner who answers as he is told."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

from a2c_smcp.computer.calls.incoming import CallOptions
from a2c_smcp.computer.computer import Computer
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.mcp_host.config.servers import MCPServerConfig
from tests.computer.hosted import ready
from tests.computer.supervised import quick, script
from tests.waiting import until

AGENT = Caller("desk", "planner")
_ids = count()
_OF_SERVER = ("pin", "tool_meta", "default_tool_meta", "start", "idle_stop")


def tool(description: str = "Reads a file.", name: str = "read", **more: Any) -> dict[str, Any]:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}, **more}


class Shifting:
    """The tools of the server are in a file, which outlives the computer, as its state does.

    `words` are further words of the server's command line.
    """

    def __init__(self, folder: Path, server: str = "files", **options: Any) -> None:
        self.folder, self.server, self._file = folder, server, folder / "tools.json"
        of_server = {key: options.pop(key) for key in _OF_SERVER if key in options}
        state = options.pop("state_folder", folder / "state")
        self._words = options.pop("words", ())
        self.computer = Computer("laptop", policy=quick(), state_folder=state, **options)
        self.computer.add_server(self.config(server, **of_server))
        if not self._file.exists():
            self.write(tool())

    def config(self, name: str, **more: Any) -> MCPServerConfig:
        meta = {"announce": {"auto_apply": True}, **more.pop("tool_meta", {})}
        return script("shifting.py", self._file, *self._words, name=name, tool_meta=meta, **more)

    def write(self, *tools: dict[str, Any]) -> None:
        self._file.write_text(json.dumps(tools), "utf-8")

    async def __aenter__(self) -> Shifting:
        await self.computer.__aenter__()
        await self.computer.start()
        if self.computer.status()[self.server].state != "asleep":
            await ready(self.computer, self.server)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.computer.__aexit__(None, None, None)

    async def becomes(self, *tools: dict[str, Any]) -> None:
        """The server changes its tools, and says so."""
        self.write(*tools)
        await self.call("announce")
        wanted = {each["name"]: each.get("description", "") for each in tools}
        await until(lambda: {name: self.listed(name)["description"] for name in self.names} == wanted)

    @property
    def names(self) -> list[str]:
        return [each["name"] for each in self.computer.get_tools() if each["name"] != "announce"]

    def listed(self, name: str = "read") -> Any:
        return next(each for each in self.computer.get_tools() if each["name"] == name)

    def changed(self, name: str = "read") -> Any:
        """What agents are told in the list of tools."""
        told = self.listed(name)["meta"].get("a2c_changed")
        return told and json.loads(told)

    async def call(
        self, name: str = "read", caller: Caller = AGENT, options: CallOptions | None = None, **params: Any
    ) -> dict[str, Any]:
        more = {"options": options} if options else {}
        return await self.computer.execute_tool(caller, f"call-{next(_ids)}", name, params, 30, **more)
