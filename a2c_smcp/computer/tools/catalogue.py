"""The tools that a Computer offers now: those of its MCP servers and its Python functions, as one table."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from a2c_smcp.computer.secrets import TOOL, Mask
from a2c_smcp.computer.secrets.messages import NAME
from a2c_smcp.computer.tools.arguments import bad_arguments
from a2c_smcp.computer.tools.names import NameOrder
from a2c_smcp.computer.tools.table import ToolRoute, ToolTable, build_table, diff, fitted
from a2c_smcp.computer.types import OwnedTool
from a2c_smcp.errors import ToolNotFound
from a2c_smcp.mcp_host.config.servers import BaseServerConfig, ToolMeta
from a2c_smcp.mcp_host.status import State
from a2c_smcp.protocol.codec import Written, dumps
from a2c_smcp.registry import MCPRegistry, OnProgress
from a2c_smcp.registry.parameters import InvalidArguments, Parameters
from a2c_smcp.registry.results import mcp_result
from a2c_smcp.types import TOOL_NAME

if TYPE_CHECKING:
    from a2c_smcp.computer.hosting import Hosting

__all__ = ["FUNCTIONS", "Catalogue", "Functions"]

logger = logging.getLogger(__name__)

_HEAD_ROOM = 16 * 1024  # for the rest of the answer: its id, the servers that are starting


class Catalogue:
    """The table of tools. Call `refresh` whenever something may have changed."""

    def __init__(self, max_message: int) -> None:
        self.functions = Functions()
        self._room = max_message - min(_HEAD_ROOM, max_message // 8)
        self._table = ToolTable()
        self._name_order = NameOrder()
        self._known: dict[str, list[dict[str, Any]]] = {}
        self._logged: set[str] = set()
        self._starting: list[str] = []
        self._refreshed = asyncio.Event()
        self._written: tuple[ToolTable, int, list[str], Written] | None = None

    @property
    def warnings(self) -> list[str]:
        return self._table.warnings

    def resolve(self, name: TOOL_NAME) -> ToolRoute:
        """Raises `ToolNotFound` or `ToolForbidden`."""
        return self._table.resolve(name)

    async def await_tool(self, name: TOOL_NAME) -> ToolRoute:
        """As `resolve`, but waits while the tool may be one of a server that is starting."""
        while True:
            try:
                return self.resolve(name)
            except ToolNotFound:
                if not self._may_come(name):
                    raise
            await self._refreshed.wait()

    def _may_come(self, name: TOOL_NAME) -> bool:
        """Whether a server that is starting may have the tool: one that starts for the first time may have any."""
        if server := self._table.absent.get(name):
            return server in self._starting
        return any(not self._known[server] for server in self._starting)

    def refresh(self, hosting: Hosting | None) -> bool:
        """Rebuild the table. Returns whether agents see a difference."""
        waited_for, self._starting = self._starting, hosting.starting if hosting else []
        servers = self._servers(hosting)
        self._name_order.configured(servers)
        self._known = {name: self._known.get(name, []) for name in servers}
        down = {name for name, server in servers.items() if not self._learn(name, server)}
        offers = {name: (server.config, self._known[name]) for name, server in servers.items()}
        before = self._table
        table = build_table(offers, before, order=self._name_order.of, down=down)
        self._table = fitted(table, self._room)
        self._refreshed.set()
        self._refreshed = asyncio.Event()
        return bool(diff(before, self._table)) or not set(waited_for) <= set(self._starting)

    def warn(self) -> None:
        """Log each new warning once."""
        for warning in self._table.warnings:
            if warning not in self._logged:
                self._logged.add(warning)
                logger.warning("%s", warning)

    def shown(self, mask: Mask) -> list[OwnedTool]:
        """Each tool with its server, masked except for its name, by which it can be called."""
        routes = self._table.routes
        listed = [
            mask.data(tool, TOOL, route.server) for tool, route in zip(self._table.listed, routes.values(), strict=True)
        ]
        owned = [OwnedTool(**tool, bundle_id=route.server) for tool, route in zip(listed, routes.values(), strict=True)]
        for tool, name in zip(owned, routes, strict=True):
            tool["name"] = name
        return owned

    @property
    def routes(self) -> Mapping[TOOL_NAME, ToolRoute]:
        return self._table.routes

    def written(self, mask: Mask, req_id: str, approved: bool | list[TOOL_NAME]) -> Written:
        """The answer to a request for the tools. Its text is kept until the tools or the secrets change.

        In the answer, `starting` has the servers whose tools are still missing, if there are any; `approved` has the
        tools that this agent need not ask for.
        """
        table, version, starting = self._table, mask.version, self._starting
        if self._written is None or self._written[:3] != (table, version, starting):
            answer: dict[str, Any] = {"tools": self.shown(mask)}
            if starting:
                answer["starting"] = mask.data(starting, NAME)
            self._written = table, version, starting, Written(answer, dumps(answer))
        listed = self._written[3]
        own = {"req_id": req_id, **({"approved": approved} if approved else {})}
        return Written({**listed, **own}, f"{listed.text[:-1]},{dumps(own)[1:]}")

    def _learn(self, name: str, server: _Server) -> bool:
        """Take in the tools of a server. False if it is down; then its tools are those that it had before."""
        if server.tools or server.state in ("ready", "disabled"):
            self._known[name] = server.tools
            self._name_order.listed(name, [tool["name"] for tool in server.tools])
            return True
        if server.state in ("backoff", "failed", "auth_required"):
            self._name_order.failed(name)
        return False

    def _servers(self, hosting: Hosting | None) -> dict[str, _Server]:
        """The Python functions first, then the configured servers."""
        servers = {FUNCTIONS: _Server(*self.functions.offer(), "ready")} if len(self.functions) else {}
        if hosting is None:
            return servers
        manager = hosting.manager
        return servers | {
            name: _Server(manager.config(name), manager.tools(name), manager.state(name))
            if name in manager
            else _Server(config, [], "stopped")
            for name, config in hosting.configs.items()
        }


class _Server(NamedTuple):
    config: BaseServerConfig
    tools: list[dict[str, Any]]
    state: State


FUNCTIONS = "python"
"""The name of the server that Python functions belong to, unless a server is configured under this name."""


class Functions:
    """Python functions as tools. Arguments must fit the schema that agents see, and the annotations of the function."""

    def __init__(self) -> None:
        self._registry = MCPRegistry()
        self._parameters: dict[TOOL_NAME, Parameters] = {}
        self._meta: dict[TOOL_NAME, ToolMeta] = {}

    def __len__(self) -> int:
        return len(self._registry)

    def add(self, function: Callable[..., Any], name: str | None, meta: ToolMeta) -> None:
        """Raise `TypeError` if the parameters of the function cannot be described by a schema."""
        self._registry.tool(name=name)(function)
        name = name or function.__name__
        self._parameters[name] = Parameters(function, {})
        self._meta[name] = meta

    def offer(self) -> tuple[BaseServerConfig, list[dict[str, Any]]]:
        """The configuration and the tools of a server with these functions."""
        return BaseServerConfig(name=FUNCTIONS, tool_meta=self._meta), self._registry.describe("mcp")

    async def call(
        self,
        name: TOOL_NAME,
        params: dict[str, Any],
        begin: Callable[[], None],
        on_progress: OnProgress | None = None,
    ) -> dict[str, Any]:
        """The result as an MCP result. Raises `BadRequest` for arguments that the function does not accept.

        `begin` is called directly before the function is called, `on_progress` when it calls `report_progress`.
        """
        try:
            self._parameters[name].bind(params)
        except InvalidArguments as error:
            raise bad_arguments(error.details["errors"]) from None
        begin()
        return await mcp_result(name, self._registry.acall(name, params, on_progress=on_progress))
