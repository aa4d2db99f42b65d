"""Python functions as tools of a Computer, beside those of its MCP servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from a2c_smcp.computer.calls.arguments import misfit
from a2c_smcp.mcp_host.config.servers import BaseServerConfig, ToolMeta
from a2c_smcp.registry import MCPRegistry
from a2c_smcp.registry.parameters import InvalidArguments, Parameters
from a2c_smcp.registry.wire import wire_call, wire_tools
from a2c_smcp.types import TOOL_NAME

__all__ = ["FUNCTIONS", "Functions"]

FUNCTIONS = "python"
"""The server that functions seem to belong to, unless one is configured under this name."""


class Functions:
    """Their arguments must fit the schema that agents see, and then whatever else their annotations ask for."""

    def __init__(self) -> None:
        self._registry = MCPRegistry()
        self._parameters: dict[TOOL_NAME, Parameters] = {}
        self._meta: dict[TOOL_NAME, ToolMeta] = {}

    def __len__(self) -> int:
        return len(self._registry)

    def add(self, function: Callable[..., Any], name: str | None, meta: ToolMeta) -> None:
        """Raises `TypeError` where no tool can be made of the function, and says why."""
        self._registry.tool(name=name)(function)
        name = name or function.__name__
        self._parameters[name] = Parameters(function, {})
        self._meta[name] = meta

    def offer(self) -> tuple[BaseServerConfig, list[dict[str, Any]]]:
        """What a server would have in its configuration, and what it would list."""
        return BaseServerConfig(name=FUNCTIONS, tool_meta=self._meta), wire_tools(self._registry)

    async def call(self, name: TOOL_NAME, params: dict[str, Any], begin: Callable[[], None]) -> dict[str, Any]:
        """The result in MCP's spelling. Raises `BadRequest` for arguments that the function would not take.

        `begin` is called directly before the function is.
        """
        try:
            self._parameters[name].bind(params)
        except InvalidArguments as error:
            raise misfit(error.details["errors"]) from None
        begin()
        return await wire_call(self._registry, name, params)
