"""The MCP servers that the registries of this program use, shared: one session per server, in a background loop.

- `ServerAddress` says where a server is. Two addresses with an equal `key` mean the same server.
- `ServerHandle` is one user's right to use a server. It counts from its first use until `release`, once. The server
  is started by its first user and stopped with the last handle; while there is one, the manager starts it again when it
  ends.
- All state is touched only in the background loop, so it needs no lock. Callers of other threads and loops wait with
  `background.wait` or `background.done`. The one exception is `ServerHandle.released`, which only ever becomes true.

A forked child starts with no servers: the threads and processes belong to its parent.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Self, TypeAlias

from a2c_smcp.errors import CallTimeout, ConfigError
from a2c_smcp.loops import BackgroundLoop
from a2c_smcp.mcp_host.config.fields import has_placeholder
from a2c_smcp.mcp_host.config.servers import BaseServerConfig, MCPServerConfig, parse_server, source
from a2c_smcp.mcp_host.failures import ServerNotReady
from a2c_smcp.mcp_host.manager import Manager
from a2c_smcp.mcp_host.sessions.offers import OfferChange
from a2c_smcp.mcp_host.sessions.tool_request import ToolRequest
from a2c_smcp.registry.calls.progress import OnProgress
from a2c_smcp.registry.toolset import unknown_tool

__all__ = ["ServerAddress", "ServerConfig", "ServerHandle", "SharedServers", "servers"]

ServerConfig: TypeAlias = MCPServerConfig | Mapping[str, Any]

_CLOSED_WITHIN = 10.0  # seconds


class ServerAddress:
    """Where an MCP server is, from any configuration of it. Addresses with an equal `key` share one session."""

    def __init__(self, config: ServerConfig) -> None:
        """Raises `ConfigError`, also for placeholders: a registry cannot ask for their values."""
        self.config = config if isinstance(config, BaseServerConfig) else parse_server(config)
        data = source(self.config)
        if has_placeholder(json.dumps(data)):
            raise ConfigError(f"server {self.config.name!r}: fill in ${{input:…}} first, a registry cannot ask for it")
        self.key = json.dumps([data["type"], data["server_parameters"]], sort_keys=True)

    @classmethod
    def of_command(cls, command: Sequence[str]) -> Self:
        if isinstance(command, str) or not command:
            raise TypeError(f'server_cmd is a list, such as ["python", "server.py"], not {command!r}')
        program, *args = map(str, command)
        parameters = {"command": program, "args": args}
        return cls({"name": os.path.basename(program) or "server", "server_parameters": parameters})  # noqa: PTH119


@dataclass(eq=False, slots=True)
class ServerHandle:
    """One user's right to use a server. It begins with the first use, ends with `release`, and never begins again."""

    address: ServerAddress
    released: bool = False


@dataclass(eq=False, slots=True)
class _SharedServer:
    """A server in use: its name in the manager, who uses it, and what to call when its tools change."""

    name: str
    handles: set[ServerHandle] = field(default_factory=set)
    watchers: dict[ServerHandle, Callable[[], None]] = field(default_factory=dict)


class SharedServers:
    """The MCP servers in use, each from its first user to its last. Coroutines run in `background`."""

    def __init__(self) -> None:
        self.background = BackgroundLoop("mcp-servers")
        self._manager = Manager(on_event=self._on_event)
        self._shared: dict[str, _SharedServer] = {}

    async def open(self, handle: ServerHandle, limit: float) -> str:
        """Starts the server if it is not ready. Returns its name in the manager.

        Raises `ServerNotReady` or `CallTimeout`.
        """
        name = self._used(handle).name
        try:
            async with asyncio.timeout(limit):
                state = (await self._manager.start(name))[name]
        except TimeoutError:
            raise CallTimeout(f"server {name!r} was not ready within {limit:g} s") from None
        if state != "ready":
            reason = self._manager.status()[name].reason
            raise ServerNotReady(f"{name!r} is {state}" + (f" ({reason})" if reason else ""), server=name)
        return name

    async def call(
        self,
        handle: ServerHandle,
        tool: str,
        arguments: dict[str, Any],
        limit: float,
        on_progress: OnProgress | None = None,
    ) -> dict[str, Any]:
        """Returns the MCP result. `limit` seconds include the start of a server that is not ready.

        Raises `UnknownTool`, `CallTimeout` or a `ServerFailure`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit
        name = await self.open(handle, limit)
        offered = [listed["name"] for listed in self._manager.tools(name)]
        if tool not in offered:
            raise unknown_tool(tool, offered, f"server {name!r} has no tool ")
        left = max(deadline - loop.time(), 0.001)
        request = ToolRequest(tool, arguments, left, on_progress=on_progress, extend=True)
        return await self._manager.call_tool(name, request)

    def tools(self, handle: ServerHandle) -> list[dict[str, Any]]:
        """The tools that the server lists now."""
        return self._manager.tools(self._used(handle).name)

    def watch(self, handle: ServerHandle, on_tools: Callable[[], None]) -> None:
        """Calls `on_tools` after every change of the tools, until the handle is released."""
        self._used(handle).watchers[handle] = on_tools

    async def release(self, handle: ServerHandle) -> None:
        """Ends a handle. The last one stops the server and all its processes."""
        handle.released = True
        shared = self._shared.get(handle.address.key)
        if shared is None or handle not in shared.handles:
            return
        shared.handles.discard(handle)
        shared.watchers.pop(handle, None)
        if shared.handles:
            return
        del self._shared[handle.address.key]
        await self._manager.remove(shared.name)
        if not self._shared:
            await self._manager.close()

    def close(self) -> None:
        self.background.close(self._manager.close(), _CLOSED_WITHIN)

    def _used(self, handle: ServerHandle) -> _SharedServer:
        address, config = handle.address, handle.address.config
        if handle.released or config.disabled:
            reason = "closed here" if handle.released else "disabled"
            raise ServerNotReady(f"{config.name!r} is {reason}", server=config.name)
        shared = self._shared.get(address.key)
        if shared is None:
            name = next(name for name in _numbered(config.name) if name not in self._manager)
            self._manager.add(config.model_copy(update={"name": name}))
            shared = self._shared[address.key] = _SharedServer(name)
        shared.handles.add(handle)
        return shared

    def _on_event(self, name: str, kind: OfferChange, about: str | None) -> None:
        if kind == "tools_changed":
            for shared in [shared for shared in self._shared.values() if shared.name == name]:
                for on_tools in [*shared.watchers.values()]:
                    on_tools()


def _numbered(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}-{number}" for number in count(2))


_current = SharedServers()


def servers() -> SharedServers:
    """The servers of this process."""
    return _current


def _renew() -> None:
    global _current
    _current = SharedServers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
atexit.register(lambda: servers().close())
