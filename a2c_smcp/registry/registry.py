"""MCPRegistry: tools by name. Everything about a tool is worked out when it is registered."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from a2c_smcp.errors import SMCPError
from a2c_smcp.registry.calls.batch import Planned, call_each
from a2c_smcp.registry.calls.hooks import Hooks
from a2c_smcp.registry.calls.limits import Limit
from a2c_smcp.registry.calls.methods import Arguments
from a2c_smcp.registry.calls.pipeline import Rules, compile_entry, refusal
from a2c_smcp.registry.calls.retry import Retry
from a2c_smcp.registry.functions import FunctionTool
from a2c_smcp.registry.operations import read_operation
from a2c_smcp.registry.planning.provider_formats import Format
from a2c_smcp.registry.policy import Policy
from a2c_smcp.registry.results import envelope as enveloped
from a2c_smcp.registry.tool_info import as_words
from a2c_smcp.registry.toolset import Entry, ToolSet, unknown_tool

if TYPE_CHECKING:
    from a2c_smcp.registry.remote.attached import AttachedServer, AttachedServers, ServerOptions
    from a2c_smcp.registry.remote.servers import ServerConfig
    from a2c_smcp.registry.remote.serving import RegistryServer

__all__ = ["MCPRegistry"]

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])


class MCPRegistry:
    """In-process tools: registered, described to a planner, and called by name (001).

    A tool is any object with a `name` and `call(arguments)`; `description` and `input_schema` are shown if it has
    them. What a tool says of itself is read once, when it is registered. Usable from several threads.
    """

    def __init__(
        self,
        *,
        validate: bool = False,
        policy: Policy | None = None,
        timeout: float | None = None,
        retry: Retry | None = None,
        limit: Limit | None = None,
        hooks: Iterable[Any] = (),
    ) -> None:
        """Without arguments exactly 001; each of them is one of 001 §9's extensions.

        `validate`: defaults are filled in and arguments checked against the tool's schema. `timeout`: seconds for
        each attempt of a call. `limit`: calls at once and in line, for each tool. `hooks`: see `Hook`. Raises
        `ConfigError` for a timeout that leaves no time.
        """
        self._rules = Rules(validate, policy, timeout, retry, limit, Hooks(hooks))
        self._tools = ToolSet()
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._lock = Lock()

    def register(self, tool_obj: Any, *, timeout: float | None = None, limit: Limit | None = None) -> None:
        """Adds a tool, in place of one with the same name. Raises `TypeError` without `name` or `call`.

        `timeout` and `limit` are in place of the registry's own; an endless timeout (`math.inf`) is none.
        """
        self._change([compile_entry(tool_obj, self._rules, timeout=timeout, limit=limit)], ())

    def unregister(self, name: str) -> None:
        """Removes a tool. Raises `KeyError` if there is none."""
        if not self._change((), [name]):
            raise unknown_tool(name, [*self])

    def update(self, *, add: Iterable[Any] = (), remove: Iterable[str] = ()) -> None:
        """Adds and removes tools in one step: nobody sees the half of it. A name to remove may be unknown."""
        self._change([compile_entry(tool, self._rules) for tool in add], [*remove])

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Calls the listener after every change of the tools, in the thread that made it. Returns what ends it."""

        def end() -> None:
            with self._lock:
                self._listeners = tuple(other for other in self._listeners if other is not heard)

        def heard() -> None:
            listener()

        with self._lock:
            self._listeners = (*self._listeners, heard)
        return end

    @cached_property
    def mcp_servers(self) -> AttachedServers:
        """The MCP servers that were added, by name."""
        from a2c_smcp.registry.remote.attached import AttachedServers

        return AttachedServers(self)

    def add_mcp_server(self, config: ServerConfig, **options: Unpack[ServerOptions]) -> list[str]:
        """Adds all tools of an MCP server and keeps them current; the names they got (`<server>__<tool>` on a clash).

        `options` are `timeout` and `start_timeout` in seconds, `raw` for MCP's own results, and `trust_hints` for tools
        that may be called again because the server says so. It blocks until the server is ready, or raises; in an event
        loop, use `async with registry.mcp_server(config)`.
        """
        return self.mcp_servers.add(config, **options)

    def remove_mcp_server(self, name: str) -> None:
        """Removes the tools of a server, and ends it unless others use it. Raises `ServerNotFound`."""
        self.mcp_servers.remove(name)

    def mcp_server(self, config: ServerConfig, **options: Unpack[ServerOptions]) -> AttachedServer:
        """A context manager, sync and async: `add_mcp_server` for a while. Gives the names."""
        from a2c_smcp.registry.remote.attached import AttachedServer

        return AttachedServer(self, config, **options)

    def as_mcp_server(
        self, name: str = "registry", *, version: str = "", instructions: str | None = None
    ) -> RegistryServer:
        """This registry as an MCP server: `run_stdio()`, or `http_app()` for streamable HTTP."""
        from a2c_smcp.registry.remote.serving import RegistryServer

        return RegistryServer(self, name, version=version, instructions=instructions)

    @overload
    def tool(self, function: Function, /) -> Function: ...

    @overload
    def tool(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        limit: Limit | None = None,
        **meta: Any,
    ) -> Callable[[Function], Function]: ...

    def tool(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        limit: Limit | None = None,
        **meta: Any,
    ) -> Any:
        """Registers a function, which remains what it is: `@registry.tool` or `@registry.tool(name=…)`.

        `meta` may have `tags`, `idempotent`, `read_only` and whatever else is to be known of the tool.
        """

        def register(function: Function) -> Function:
            tool = FunctionTool(function, name=name, description=description, **meta)
            self.register(tool, timeout=timeout, limit=limit)
            return function

        return register if function is None else register(function)

    @overload
    def describe(self, format: None = None, *, tags: Iterable[str] | None = None) -> dict[str, dict[str, Any]]: ...

    @overload
    def describe(self, format: Format, *, tags: Iterable[str] | None = None) -> list[dict[str, Any]]: ...

    def describe(self, format: Format | None = None, *, tags: Iterable[str] | None = None) -> Any:  # noqa: A002
        """`{name: {description, input_schema}}`, or the list that a provider takes as its `tools`. Plain JSON.

        With `tags`, the tools that have any of them. The same snapshot until the tools change: do not edit it.
        Providers are shown names that they accept, and `call` knows those too.
        """
        return self._tools.describe(format, as_words(tags))

    def call(self, name: str, arguments: Arguments, *, envelope: bool = False) -> Any:
        """What the tool returns or raises. Raises `KeyError` for an unknown name.

        An async tool is run to its end, in an event loop of its own; `LoopIsRunning` where one is running already.
        With `envelope`, the result is `{"output": …, "meta": {…}}` (001 §7).
        """
        entry = self._tools.entries.get(name) or self._find(name)
        if not envelope:
            return entry.call(arguments)
        began = perf_counter()
        result = entry.call(arguments)
        return enveloped(result, tool=entry.traits.name, duration=perf_counter() - began)

    async def acall(self, name: str, arguments: Arguments, *, envelope: bool = False) -> Any:
        """As `call`, without blocking the loop: async tools are awaited, the others run in a thread."""
        entry = self._tools.entries.get(name) or self._find(name)
        if not envelope:
            return await entry.acall(arguments)
        began = perf_counter()
        result = await entry.acall(arguments)
        return enveloped(result, tool=entry.traits.name, duration=perf_counter() - began)

    async def call_many(self, calls: Iterable[Planned], *, at_once: int = 10, envelope: bool = False) -> list[Any]:
        """The results of several calls in their order, an exception in the place of a result that there is not.

        A call is `(name, arguments)` or `{"name": …, "arguments": …}`.
        """
        return await call_each(partial(self.acall, envelope=envelope), calls, at_once=at_once)

    def execute(self, payload: Any = None) -> Any:
        """One door for all that a planner does. Raises `UnknownOperation` for what is none of it.

        `None`, `"describe"` and `{"op": "describe"}` describe; `{"name", "arguments"}` and `{"op": "call", …}` call.
        """
        operation = read_operation(payload)
        return self.describe() if operation is None else self.call(operation.name, operation.arguments)

    def items(self) -> list[tuple[str, Any]]:
        """Names and tools, in the order of registration, as they are now."""
        return [(name, entry.tool) for name, entry in self._tools.entries.items()]

    def __getitem__(self, name: str) -> Any:
        """The tool of this name."""
        return self._tools.find(name).tool

    def __contains__(self, name: object) -> bool:
        return name in self._tools.entries

    def __len__(self) -> int:
        return len(self._tools.entries)

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of registration, as they are now."""
        return iter(self._tools.entries)

    def _find(self, name: str) -> Entry:
        try:
            return self._tools.find(name)
        except SMCPError as error:
            if self._rules.hooks:
                return refusal(name, error, self._rules.hooks)
            raise

    def _change(self, add: Iterable[Entry], remove: Iterable[str]) -> bool:
        """Whether it came to anything."""
        with self._lock:
            before, self._tools = self._tools, self._tools.changed(add, remove)
            has_changed, listeners = self._tools is not before, self._listeners
        for listener in listeners if has_changed else ():
            try:
                listener()
            except Exception:
                logger.exception("A listener to changes of the tools failed")
        return has_changed
