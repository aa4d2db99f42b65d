"""MCPRegistry: the registry of 001, its options (001 §9), functions and MCP servers as tools, resources and prompts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack, overload

from a2c_smcp.errors import under_own_name
from a2c_smcp.loops import is_cancelled
from a2c_smcp.registry.calls.hooks import Hooks
from a2c_smcp.registry.calls.pipeline import Limit, Policy, Retry, Rules
from a2c_smcp.registry.functions import FunctionTool
from a2c_smcp.registry.tool_registry import ReadableRegistry, ToolRegistry

if TYPE_CHECKING:
    from a2c_smcp.registry.remote.mcp_server import RegistryServer, ServerIdentity
    from a2c_smcp.registry.remote.server_tools import MCPServers, MCPServerTools, ServerOptions
    from a2c_smcp.registry.remote.servers import ServerConfig


Function = TypeVar("Function", bound=Callable[..., Any])
CallSpec: TypeAlias = tuple[str, dict[str, Any]] | Mapping[str, Any]
"""A call to make: `(name, arguments)`, or an object with `name` and `arguments` like a plan's step."""


@under_own_name(ToolRegistry, ReadableRegistry)
class MCPRegistry(ReadableRegistry):
    """In-process tools: registered, described to a planner, and called by name (001). Resources and prompts, too.

    A tool is any object with a `name` and `call(arguments)`; `description` and `input_schema` are shown if it has
    them. These are read once, when the tool is registered. Usable from several threads.
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
        """Without arguments exactly 001; each argument is one of the extensions of 001 §9.

        `validate`: fill in defaults, and check arguments against the tool's schema. `policy`: which tools are shown
        and called. `timeout`: seconds for each attempt of a call. `retry`: when a failed call is made again. `limit`:
        calls of one tool that run or wait at the same time. `hooks`: objects that are told of every call, see `Hook`.
        Raises `ConfigError` for a timeout that is not positive.
        """
        super().__init__(Rules(validate, policy, timeout, retry, limit, Hooks(hooks)))

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
        """Registers a function and returns it unchanged: `@registry.tool` or `@registry.tool(name=…)`.

        `meta` may have `tags`, `idempotent`, `read_only` and anything else that should be known of the tool.
        """

        def register(function: Function) -> Function:
            tool = FunctionTool(function, name=name, description=description, **meta)
            self.register(tool, timeout=timeout, limit=limit)
            return function

        return register if function is None else register(function)

    async def call_many(self, calls: Iterable[CallSpec], *, at_once: int = 10, envelope: bool = False) -> list[Any]:
        """Makes several calls, `at_once` at the same time. Returns their results in the order of the calls.

        A call is `(name, arguments)` or `{"name": …, "arguments": …}`. The exception of a failed call is in the place
        of its result.
        """
        return await _call_each(partial(self.acall, envelope=envelope), calls, at_once=at_once)

    @cached_property
    def mcp_servers(self) -> MCPServers:
        """The MCP servers that were added, by name."""
        from a2c_smcp.registry.remote.server_tools import MCPServers

        return MCPServers(self)

    def add_mcp_server(self, config: ServerConfig, **options: Unpack[ServerOptions]) -> list[str]:
        """Adds all tools of an MCP server and keeps them current. Returns the names that they have here.

        A name that is taken becomes `<server>__<tool>`. `options` are `timeout` and `start_timeout` in seconds, `raw`
        for MCP's own results, and `trust_hints` to retry calls of tools that the server calls idempotent. Blocks until
        the server is ready, or raises; in an event loop, use `async with registry.mcp_server(config)`.
        """
        return self.mcp_servers.add(config, **options)

    def remove_mcp_server(self, name: str) -> None:
        """Removes the tools of a server, and ends it if nothing else uses it. Raises `ServerNotFound`."""
        self.mcp_servers.remove(name)

    def mcp_server(self, config: ServerConfig, **options: Unpack[ServerOptions]) -> MCPServerTools:
        """A context manager, sync and async: inside it, the tools of the server are registered. It gives the names."""
        from a2c_smcp.registry.remote.server_tools import MCPServerTools

        return MCPServerTools(self, config, self.mcp_servers, **options)

    def as_mcp_server(
        self, name: str = "registry", *, page_size: int = 1000, **identity: Unpack[ServerIdentity]
    ) -> RegistryServer:
        """This registry as an MCP server: `run_stdio()`, or `http_app()` for streamable HTTP.

        `identity` may have `version`, `title`, `description`, `instructions`, `website_url` and `icons`. `page_size` is
        the most items of a list in one answer.
        """
        from a2c_smcp.registry.remote.mcp_server import RegistryServer

        return RegistryServer(self, name, page_size=page_size, **identity)


async def _call_each(
    acall: Callable[[str, dict[str, Any]], Awaitable[Any]], calls: Iterable[CallSpec], *, at_once: int
) -> list[Any]:
    """Results in the order of the calls; the exception of a failed call is in the place of its result."""
    if at_once < 1:
        raise ValueError("call_many needs at least one call at once")
    pairs = ((call["name"], call.get("arguments")) if isinstance(call, Mapping) else call for call in calls)
    queue = [(name, {} if arguments is None else arguments) for name, arguments in pairs]
    outcomes: list[Any] = [None] * len(queue)
    waiting = iter(enumerate(queue))

    async def work() -> None:
        for place, (name, arguments) in waiting:
            try:
                outcomes[place] = await acall(name, arguments)
            except asyncio.CancelledError as error:
                if is_cancelled():
                    raise
                outcomes[place] = error
            except Exception as error:
                outcomes[place] = error

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(at_once, len(queue))):
            workers.create_task(work())
    return outcomes
