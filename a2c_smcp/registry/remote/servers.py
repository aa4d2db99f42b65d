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
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, Self, TypeAlias, TypedDict

from a2c_smcp.errors import BadRequest, CallTimeout, ConfigError, SMCPError
from a2c_smcp.loops import BackgroundLoop
from a2c_smcp.mcp_host.config.fields import has_placeholder
from a2c_smcp.mcp_host.config.servers import BaseServerConfig, MCPServerConfig, parse_server, source
from a2c_smcp.mcp_host.failures import INVALID_PARAMS, RESOURCE_NOT_FOUND, RequestRefused, ServerNotReady
from a2c_smcp.mcp_host.manager import Manager
from a2c_smcp.mcp_host.sessions.offers import OfferChange
from a2c_smcp.mcp_host.sessions.tool_request import InputRefused, InputRequest, OnInput, ReadRequest, ToolRequest
from a2c_smcp.mcp_host.status import State
from a2c_smcp.registry.calls.caller import InputAsked, ToolCaller
from a2c_smcp.registry.calls.progress import OnProgress
from a2c_smcp.registry.readable.entries import UnknownResource
from a2c_smcp.registry.toolset import unknown_tool

__all__ = ["ServerAddress", "ServerConfig", "ServerHandle", "ServerNews", "SharedServers", "servers"]

ServerConfig: TypeAlias = MCPServerConfig | Mapping[str, Any]
ServerNews: TypeAlias = OfferChange | Literal["ready", "down"]
"""What has changed at a server: something that it offers, or that it is there."""
OnNews: TypeAlias = Callable[[ServerNews, str | None], None]
"""Told of changes; for `resource_updated` with the URI."""

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
    """A server in use: its name in the manager, who uses it, and who is told when something changes there.

    `subscriptions` are the users of each resource whose changes are wanted.
    """

    name: str
    handles: set[ServerHandle] = field(default_factory=set)
    watchers: dict[ServerHandle, OnNews] = field(default_factory=dict)
    subscriptions: dict[str, set[ServerHandle]] = field(default_factory=lambda: defaultdict(set))


class SharedServers:
    """The MCP servers in use, each from its first user to its last. Coroutines run in `background`."""

    def __init__(self) -> None:
        self.background = BackgroundLoop("mcp-servers")
        self._manager = Manager(on_event=self._on_event, on_change=self._on_state)
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
        caller: ToolCaller | None = None,
    ) -> dict[str, Any]:
        """Returns the MCP result. `limit` seconds include the start of a server that is not ready.

        The caller answers what the server asks meanwhile.

        Raises `UnknownTool`, `CallTimeout` or a `ServerFailure`.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit
        name = await self.open(handle, limit)
        offered = [listed["name"] for listed in self._manager.tools(name)]
        if tool not in offered:
            raise unknown_tool(tool, offered, f"server {name!r} has no tool ")
        left = max(deadline - loop.time(), 0.001)
        request = ToolRequest(tool, arguments, left, on_progress=on_progress, extend=True, **asking(caller))
        return await self._manager.call_tool(name, request)

    def tools(self, handle: ServerHandle) -> list[dict[str, Any]]:
        """The tools that the server lists now."""
        return self._manager.tools(self._used(handle).name)

    def declares(self, handle: ServerHandle, capability: str) -> bool:
        """Whether the server says that it has this capability of MCP."""
        return self._manager.about(self._used(handle).name).declares(capability)

    def watch(self, handle: ServerHandle, on_news: OnNews) -> None:
        """Calls `on_news` after every change, until the handle is released."""
        self._used(handle).watchers[handle] = on_news

    async def read(
        self,
        handle: ServerHandle,
        method: str,
        params: Mapping[str, Any],
        limit: float,
        caller: ToolCaller | None = None,
    ) -> dict[str, Any]:
        """Sends a request that only reads. Raises `CallTimeout` or a `ServerFailure`; for arguments `BadRequest`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit
        name = await self.open(handle, limit)
        request = ReadRequest(method, params, max(deadline - loop.time(), 0.001), **asking(caller))
        try:
            return await self._manager.read(name, request)
        except RequestRefused as refusal:
            raise _refused(refusal, method, params) from None

    async def subscribe(self, handle: ServerHandle, uri: str, limit: float) -> None:
        """Has changes of a resource announced, until the handle unsubscribes or is released."""
        shared = self._used(handle)
        is_first = not shared.subscriptions[uri]
        shared.subscriptions[uri].add(handle)
        if is_first:
            await self._manager.subscribe(shared.name, uri, limit)

    async def unsubscribe(self, handle: ServerHandle, uri: str) -> None:
        shared = self._shared.get(handle.address.key)
        if shared is None or handle not in shared.subscriptions[uri]:
            return
        shared.subscriptions[uri].discard(handle)
        if not shared.subscriptions[uri]:
            del shared.subscriptions[uri]
            await self._manager.unsubscribe(shared.name, uri)

    async def release(self, handle: ServerHandle) -> None:
        """Ends a handle. The last one stops the server and all its processes."""
        handle.released = True
        shared = self._shared.get(handle.address.key)
        if shared is None or handle not in shared.handles:
            return
        shared.handles.discard(handle)
        shared.watchers.pop(handle, None)
        for uri in [uri for uri, users in shared.subscriptions.items() if handle in users]:
            await self.unsubscribe(handle, uri)
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
        self._tell(name, kind, about)

    def _on_state(self, name: str, state: State, reason: str) -> None:
        if state == "ready":
            self._tell(name, "ready", None)
        elif state != "starting":
            self._tell(name, "down", None)

    def _tell(self, name: str, news: ServerNews, about: str | None) -> None:
        for shared in [shared for shared in self._shared.values() if shared.name == name]:
            for on_news in [*shared.watchers.values()]:
                on_news(news, about)


def asking(caller: ToolCaller | None) -> _Asking:
    """What a request to a server says of its caller: who answers, and what can be asked."""
    if caller is None or not caller.capabilities:
        return {}

    async def on_input(request: InputRequest) -> dict[str, Any]:
        try:
            return await caller.request(InputAsked(*request))
        except SMCPError as error:
            raise InputRefused(error.reason or error.message) from None

    return {"on_input": on_input, "capabilities": caller.capabilities}


class _Asking(TypedDict, total=False):
    on_input: OnInput
    capabilities: Mapping[str, Any]


def _refused(refusal: RequestRefused, method: str, params: Mapping[str, Any]) -> SMCPError:
    """The error for a request that the server refused: what it asks for is not there, or is wrong."""
    said, code = str(refusal.details.get("mcp_message", refusal.reason)), refusal.details.get("mcp_code")
    if method == "resources/read" and code in (RESOURCE_NOT_FOUND, INVALID_PARAMS):
        return UnknownResource(repr(params["uri"]), uri=params["uri"])
    return BadRequest(said) if code == INVALID_PARAMS else refusal


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
