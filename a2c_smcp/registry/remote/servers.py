"""Tools of MCP servers as tools of a registry. A server has one session in the background, whoever calls.

This is the one file of the registry that reaches out; it stands on `mcp_host`.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeAlias

from pydantic_core import PydanticSerializationError, to_jsonable_python

from a2c_smcp.errors import CallTimeout, ConfigError
from a2c_smcp.loops import BackgroundLoop, is_in_loop
from a2c_smcp.mcp_host.config.fields import has_placeholder
from a2c_smcp.mcp_host.config.servers import BaseServerConfig, MCPServerConfig, parse_server, source
from a2c_smcp.mcp_host.failures import ServerExists, ServerNotReady
from a2c_smcp.mcp_host.manager import Manager
from a2c_smcp.mcp_host.sessions.offers import OfferChange
from a2c_smcp.mcp_host.sessions.session import ToolRequest
from a2c_smcp.registry.parameters import InvalidArguments
from a2c_smcp.registry.results import RawResult, ToolFailed, value_of
from a2c_smcp.registry.toolset import UnknownTool, unknown_tool

__all__ = [
    "CALL_LIMIT",
    "START_LIMIT",
    "Address",
    "Lease",
    "RemoteMCPAdapter",
    "ServerConfig",
    "ServerExists",
    "ServerNotReady",
    "Servers",
    "ToolFailed",
    "servers",
]

ServerConfig: TypeAlias = MCPServerConfig | Mapping[str, Any]

CALL_LIMIT, START_LIMIT, FAREWELL = 60.0, 30.0, 10.0  # seconds


class Address:
    """Where an MCP server is, from any configuration of it. Equal `key`: one session serves both."""

    def __init__(self, config: ServerConfig) -> None:
        """Raises `ConfigError`, also for placeholders: a registry has nobody to ask for their values."""
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
class Lease:
    """The right to use a server, for one user. It begins with the first use, and does not begin again."""

    address: Address
    over: bool = False


@dataclass(eq=False, slots=True)
class _Shared:
    """A server in use: its name among those of the manager, who needs it, and who wants to hear of its tools."""

    name: str
    leases: set[Lease] = field(default_factory=set)
    watchers: dict[Lease, Callable[[], None]] = field(default_factory=dict)


class Servers:
    """The MCP servers that this process uses, each from its first user to its last. Coroutines run in `background`."""

    def __init__(self) -> None:
        self.background = BackgroundLoop("mcp-servers")
        self._manager = Manager(on_event=self._heard)
        self._shared: dict[str, _Shared] = {}

    async def open(self, lease: Lease, limit: float) -> str:
        """Has the server ready, and its name in the manager. Raises `ServerNotReady` or `CallTimeout`."""
        name = self._used(lease).name
        try:
            async with asyncio.timeout(limit):
                state = (await self._manager.start(name))[name]
        except TimeoutError:
            raise CallTimeout(f"server {name!r} was not ready within {limit:g} s") from None
        if state != "ready":
            reason = self._manager.status()[name].reason
            raise ServerNotReady(f"{name!r} is {state}" + (f" ({reason})" if reason else ""), server=name)
        return name

    async def call(self, lease: Lease, tool: str, arguments: dict[str, Any], limit: float) -> dict[str, Any]:
        """The raw result. The limit covers the start of a server that is not ready, too."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit
        name = await self.open(lease, limit)
        offers = [offer["name"] for offer in self._manager.tools(name)]
        if tool not in offers:
            raise _not_offered(tool, name, offers)
        return await self._manager.call_tool(name, ToolRequest(tool, arguments, max(deadline - loop.time(), 0.001)))

    def tools(self, lease: Lease) -> list[dict[str, Any]]:
        """What the server offers now, in its own words."""
        return self._manager.tools(self._used(lease).name)

    def watch(self, lease: Lease, on_tools: Callable[[], None]) -> None:
        """Tells of every change of the tools, as long as the lease lasts."""
        self._used(lease).watchers[lease] = on_tools

    async def release(self, lease: Lease) -> None:
        """Ends a lease. The last one stops the server, and all processes that came of it."""
        lease.over = True
        shared = self._shared.get(lease.address.key)
        if shared is None or lease not in shared.leases:
            return
        shared.leases.discard(lease)
        shared.watchers.pop(lease, None)
        if shared.leases:
            return
        del self._shared[lease.address.key]
        await self._manager.remove(shared.name)
        if not self._shared:
            await self._manager.close()

    def close(self) -> None:
        self.background.close(self._manager.close(), FAREWELL)

    def _used(self, lease: Lease) -> _Shared:
        address, config = lease.address, lease.address.config
        if lease.over or config.disabled:
            raise ServerNotReady(
                f"{config.name!r} is {'closed here' if lease.over else 'disabled'}", server=config.name
            )
        shared = self._shared.get(address.key)
        if shared is None:
            name = next(name for name in _variants(config.name) if name not in self._manager)
            self._manager.add(config.model_copy(update={"name": name}))
            shared = self._shared[address.key] = _Shared(name)
        shared.leases.add(lease)
        return shared

    def _heard(self, name: str, kind: OfferChange, about: str | None) -> None:
        if kind == "tools_changed":
            for shared in [shared for shared in self._shared.values() if shared.name == name]:
                for tell in [*shared.watchers.values()]:
                    tell()


class RemoteMCPAdapter:
    """One tool of an MCP server, with the interface of a local one (001 §5).

    The server is started with the first call, is started again when it ends, and is shared by all adapters that name
    it. `call` blocks and works in any thread; in an event loop, `await acall(…)`. With `raw`, results are MCP's own.
    """

    def __init__(
        self,
        name: str,
        description: str = "",
        input_schema: dict[str, Any] | None = None,
        server_cmd: Sequence[str] | None = None,
        *,
        config: ServerConfig | Lease | None = None,
        tool: str | None = None,
        timeout: float = CALL_LIMIT,
        raw: bool = False,
    ) -> None:
        """`tool` is the name that the server knows, where that is another. Several adapters can have one lease.

        Raises `ConfigError`, or `TypeError` without a server.
        """
        self._lease = _lease(server_cmd, config)
        self.name = name
        self.description = description
        self.input_schema = input_schema or {}
        self.output_schema: dict[str, Any] | None = None
        self.origin = self._lease.address.config.name
        self.tags: tuple[str, ...] = ()
        self.trusts_hints = True
        self.read_only: bool | None = None
        self.idempotent: bool | None = None
        self.meta: dict[str, Any] = {}
        self.tool = tool or name
        self._timeout = timeout
        self._raw = raw

    def __repr__(self) -> str:
        return f"RemoteMCPAdapter({self.name!r}, origin={self.origin!r})"

    def call(self, arguments: dict[str, Any]) -> Any:
        """What the tool answers, as Python has it (`value_of`). Raises `ToolFailed` if it failed, and `LoopIsRunning`,
        `UnknownTool`, `CallTimeout` or a `ServerFailure` where it could not be asked.
        """
        here = servers()
        return self._outcome(here.background.wait(self._request(here, arguments), "await acall instead of call"))

    async def acall(self, arguments: dict[str, Any]) -> Any:
        """As `call`, from any event loop, which it does not block. Cancelling it cancels the call at the server."""
        here = servers()
        return self._outcome(await here.background.done(self._request(here, arguments)))

    def close(self) -> None:
        """The last adapter of a server stops it. Inside an event loop this does not wait for the end."""
        here = servers()
        ending = here.background.submit(here.release(self._lease))
        if not is_in_loop():
            ending.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        here = servers()
        await here.background.done(here.release(self._lease))

    async def _request(self, here: Servers, arguments: dict[str, Any]) -> dict[str, Any]:
        return await here.call(self._lease, self.tool, _plain(arguments), self._timeout)

    def _outcome(self, result: dict[str, Any]) -> Any:
        return RawResult(result) if self._raw else value_of(result)


def _lease(server_cmd: Sequence[str] | None, config: ServerConfig | Lease | None) -> Lease:
    if server_cmd is not None and config is None:
        return Lease(Address.of_command(server_cmd))
    if config is None or server_cmd is not None:
        raise TypeError("an adapter needs either server_cmd or config")
    return config if isinstance(config, Lease) else Lease(Address(config))


def _plain(arguments: object) -> dict[str, Any]:
    """A copy made of what JSON knows, which nobody else changes."""
    try:
        plain = to_jsonable_python(arguments, inf_nan_mode="null")
    except (PydanticSerializationError, ValueError, RecursionError):
        raise InvalidArguments.at([{"path": "", "message": "not JSON"}]) from None
    if not isinstance(plain, dict):
        raise InvalidArguments.at([{"path": "", "message": "not an object"}])
    return plain


def _not_offered(tool: str, server: str, offers: list[str]) -> UnknownTool:
    return unknown_tool(tool, offers, f"server {server!r} has no tool ")


def _variants(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}-{number}" for number in count(2))


_current = Servers()


def servers() -> Servers:
    """Those of this process. A forked one begins anew, its parent's threads are not there."""
    return _current


def _begin_anew() -> None:
    global _current
    _current = Servers()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
atexit.register(lambda: servers().close())
