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
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, Self, TypeAlias, TypedDict

from pydantic_core import PydanticSerializationError, to_jsonable_python

from a2c_smcp.errors import BadRequest, CallTimeout, ConfigError, SMCPError
from a2c_smcp.loops import BackgroundLoop, is_in_loop
from a2c_smcp.mcp_host.config.fields import has_placeholder
from a2c_smcp.mcp_host.config.servers import BaseServerConfig, MCPServerConfig, parse_server, source
from a2c_smcp.mcp_host.failures import INVALID_PARAMS, RESOURCE_NOT_FOUND, RequestRefused, ServerNotReady
from a2c_smcp.mcp_host.manager import Manager
from a2c_smcp.mcp_host.sessions.subscriptions import OfferChange
from a2c_smcp.mcp_host.sessions.tool_request import InputRefused, OnInput, ReadRequest, ToolRequest
from a2c_smcp.mcp_host.status import State
from a2c_smcp.protocol.questions import InputRequest
from a2c_smcp.registry.calls.context import OnProgress, ToolCaller, progress_listener, tool_caller
from a2c_smcp.registry.content import RawResult, note_result, value_of
from a2c_smcp.registry.functions import InvalidArguments
from a2c_smcp.registry.sources import UnknownResource
from a2c_smcp.registry.toolset import unknown_tool

ServerConfig: TypeAlias = MCPServerConfig | Mapping[str, Any]
ServerNews: TypeAlias = OfferChange | Literal["ready", "down"]
"""A change at a server: of its offers, or of its state."""
OnNews: TypeAlias = Callable[[ServerNews, str | None], None]
"""Called with a change; for `resource_updated` with the URI."""

_CLOSED_WITHIN = 10.0  # seconds
_OF_ONE_REGISTRY = (
    "name", "bundle_id", "disabled", "forbidden_tools", "tool_meta", "default_tool_meta", "vrl", "secrets",
    "questions_for_agents", "pin",
)  # fmt: skip
"""Fields that say how a registry offers a server. All others confine or identify its session."""


class ServerAddress:
    """The address of an MCP server, from any configuration of it. Addresses with an equal `key` share one session."""

    def __init__(self, config: ServerConfig) -> None:
        """Raises `ConfigError`, also for placeholders: a registry cannot ask for their values."""
        self.config = _placed(config if isinstance(config, BaseServerConfig) else parse_server(config))
        data = source(self.config)
        if has_placeholder(json.dumps(data)):
            raise ConfigError(f"server {self.config.name!r}: fill in ${{input:…}} first, a registry cannot ask for it")
        self.key = json.dumps({name: data[name] for name in data.keys() - {*_OF_ONE_REGISTRY}}, sort_keys=True)

    @classmethod
    def of_command(cls, command: Sequence[str]) -> Self:
        if isinstance(command, str) or not command:
            raise TypeError(f'server_cmd is a list, such as ["python", "server.py"], not {command!r}')
        program, *args = map(str, command)
        parameters = {"command": program, "args": args}
        return cls({"name": os.path.basename(program) or "server", "server_parameters": parameters})  # noqa: PTH119


def _placed(config: MCPServerConfig) -> MCPServerConfig:
    """Return the configuration with its working directory written out: this process may have another one later."""
    if config.type != "stdio":
        return config
    cwd = os.path.abspath(config.server_parameters.cwd or os.curdir)  # noqa: PTH100
    return config.model_copy(update={"server_parameters": config.server_parameters.model_copy(update={"cwd": cwd})})


@dataclass(eq=False, slots=True)
class ServerHandle:
    """One user's right to use a server. It begins with the first use, ends with `release`, and never begins again."""

    address: ServerAddress
    released: bool = False


@dataclass(eq=False, slots=True)
class _SharedServer:
    """A server in use: its name in the manager, its users, and the listeners to its changes.

    `subscriptions` are the users of each subscribed resource.
    """

    name: str
    handles: set[ServerHandle] = field(default_factory=set)
    watchers: dict[ServerHandle, OnNews] = field(default_factory=dict)
    subscriptions: dict[str, set[ServerHandle]] = field(default_factory=lambda: defaultdict(set))


class SharedServers:
    """The MCP servers in use, each from its first user to its last. Coroutines run in `background`."""

    def __init__(self) -> None:
        self.background = BackgroundLoop("mcp-servers")
        self._manager = Manager(on_event=self._tell, on_change=self._on_state)
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
        offered = [listed["name"] for listed in self._manager[name].tools]
        if tool not in offered:
            raise unknown_tool(tool, offered, f"server {name!r} has no tool ")
        left = max(deadline - loop.time(), 0.001)
        request = ToolRequest(tool, arguments, left, on_progress=on_progress, extend=True, **asking(caller))
        return await self._manager[name].requests.call_tool(request)

    def tools(self, handle: ServerHandle) -> list[dict[str, Any]]:
        """The tools that the server lists now."""
        return self._manager[self._used(handle).name].tools

    def declares(self, handle: ServerHandle, capability: str) -> bool:
        """True if the server has declared this capability of MCP."""
        return self._manager[self._used(handle).name].about.declares(capability)

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
            return await self._manager[name].requests.read(request)
        except RequestRefused as refusal:
            raise _refused(refusal, method, params) from None

    async def subscribe(self, handle: ServerHandle, uri: str, limit: float) -> None:
        """Has changes of a resource announced, until the handle unsubscribes or is released."""
        shared = self._used(handle)
        is_first = not shared.subscriptions[uri]
        shared.subscriptions[uri].add(handle)
        if is_first:
            await self._manager[shared.name].subscribe(uri, limit)

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
            name = next(name for name in numbered(config.name, mark="-") if name not in self._manager)
            self._manager.add(config.model_copy(update={"name": name}))
            shared = self._shared[address.key] = _SharedServer(name)
        shared.handles.add(handle)
        return shared

    def _on_state(self, name: str, state: State, reason: str) -> None:
        if state == "ready":
            self._tell(name, "ready", None)
        elif state not in ("starting", "asleep"):
            self._tell(name, "down", None)

    def _tell(self, name: str, kind: ServerNews, about: str | None) -> None:
        for shared in [shared for shared in self._shared.values() if shared.name == name]:
            for on_news in [*shared.watchers.values()]:
                on_news(kind, about)


def asking(caller: ToolCaller | None) -> _Asking:
    """Options of a request to a server, from its caller: the function that answers, and the capabilities."""
    if caller is None or not caller.capabilities:
        return {}

    async def on_input(request: InputRequest) -> dict[str, Any]:
        try:
            return await caller.request(request)
        except SMCPError as error:
            raise InputRefused(error.reason or error.message) from None

    return {"on_input": on_input, "capabilities": caller.capabilities}


class _Asking(TypedDict, total=False):
    on_input: OnInput
    capabilities: Mapping[str, Any]


def _refused(refusal: RequestRefused, method: str, params: Mapping[str, Any]) -> SMCPError:
    """The error for a request that the server refused: its object is unknown, or its parameters are wrong."""
    message, code = str(refusal.details.get("mcp_message", refusal.reason)), refusal.details.get("mcp_code")
    if (uri := params.get("uri")) is not None and code in (RESOURCE_NOT_FOUND, INVALID_PARAMS):
        return UnknownResource(repr(uri), uri=uri)
    return BadRequest(message) if code == INVALID_PARAMS else refusal


def numbered(*names: str, mark: str = "_") -> Iterator[str]:
    """The names, and then the last one with numbers."""
    yield from names
    yield from (f"{names[-1]}{mark}{number}" for number in count(2))


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

# RemoteMCPAdapter: one tool of an MCP server with the interface of a local tool (001 §5).

CALL_TIMEOUT = 60.0  # seconds


class RemoteMCPAdapter:
    """One tool of an MCP server, with the interface of a local one (001 §5).

    The first call starts the server; it is started again when it ends, and shared by all adapters that name it. `call`
    blocks and works in any thread; in an event loop, `await acall(…)`. With `raw`, results are MCP's own.
    """

    def __init__(
        self,
        name: str,
        description: str = "",
        input_schema: dict[str, Any] | None = None,
        server_cmd: Sequence[str] | None = None,
        *,
        config: ServerConfig | ServerHandle | None = None,
        tool: str | None = None,
        timeout: float = CALL_TIMEOUT,
        raw: bool = False,
    ) -> None:
        """`tool` is the server's name for the tool, if that is another one. Several adapters can share a handle.

        Raises `ConfigError`, or `TypeError` without a server.
        """
        self._handle = _handle(server_cmd, config)
        self.name = name
        self.description = description
        self.input_schema = input_schema or {}
        self.output_schema: dict[str, Any] | None = None
        self.origin = self._handle.address.config.name
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
        """Returns the tool's answer as a Python value: structured content, else text, else content blocks.

        Raises `ToolFailed` if the tool failed, and `LoopIsRunning`, `InvalidArguments`, `UnknownTool`, `CallTimeout`
        or a `ServerFailure` if it could not be called.
        """
        here = servers()
        return self._value(here.background.wait(self._request(here, arguments), "await acall instead of call"))

    async def acall(self, arguments: dict[str, Any]) -> Any:
        """As `call`, from any event loop, without blocking it. Cancelling it cancels the call at the server."""
        here = servers()
        return self._value(await here.background.done(self._request(here, arguments)))

    def close(self) -> None:
        """Stops using the server. The last user's `close` stops it; inside an event loop this does not wait for it."""
        here = servers()
        ending = here.background.submit(here.release(self._handle))
        if not is_in_loop():
            ending.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        here = servers()
        await here.background.done(here.release(self._handle))

    def _request(self, here: SharedServers, arguments: dict[str, Any]) -> Coroutine[Any, Any, dict[str, Any]]:
        """Listener and caller belong to this context, not to the loop in which the coroutine will run."""
        plain, listener, caller = _plain_json(arguments), progress_listener(), tool_caller()
        return here.call(self._handle, self.tool, plain, self._timeout, listener, caller)

    def _value(self, result: dict[str, Any]) -> Any:
        note_result(self, result)
        return RawResult(result) if self._raw else value_of(result)


def _handle(server_cmd: Sequence[str] | None, config: ServerConfig | ServerHandle | None) -> ServerHandle:
    if server_cmd is not None and config is None:
        return ServerHandle(ServerAddress.of_command(server_cmd))
    if config is None or server_cmd is not None:
        raise TypeError("an adapter needs either server_cmd or config")
    return config if isinstance(config, ServerHandle) else ServerHandle(ServerAddress(config))


def _plain_json(arguments: object) -> dict[str, Any]:
    """A copy made of JSON types, which the caller cannot change any more."""
    try:
        plain = to_jsonable_python(arguments, inf_nan_mode="null")
    except (PydanticSerializationError, ValueError, RecursionError):
        raise InvalidArguments.at([{"path": "", "message": "not JSON"}]) from None
    if not isinstance(plain, dict):
        raise InvalidArguments.at([{"path": "", "message": "not an object"}])
    return plain
