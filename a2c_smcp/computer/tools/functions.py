"""Python functions as tools of a Computer. They are called like the tools of an MCP server: by a `ToolRequest`.

A function that takes a `ToolContext` may report progress, log and ask. Its log is one of those that the Computer keeps
for each server, and its questions take the way of a server's questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from a2c_smcp.computer.tools.arguments import bad_arguments
from a2c_smcp.mcp_host.config.servers import BaseServerConfig, ToolMeta
from a2c_smcp.mcp_host.sessions.logs import LogMessage, ServerLog
from a2c_smcp.mcp_host.sessions.tool_request import InputRefused, InputRequest, ToolRequest
from a2c_smcp.mcp_host.status import OnServerLog
from a2c_smcp.registry import CannotAsk, MCPRegistry
from a2c_smcp.registry.calls.caller import InputAsked, ToolCaller, called_by
from a2c_smcp.registry.parameters import InvalidArguments, Parameters
from a2c_smcp.registry.results import mcp_result
from a2c_smcp.types import TOOL_NAME

__all__ = ["FUNCTIONS", "Functions"]

FUNCTIONS = "python"
"""The name of the server that Python functions belong to, unless a server is configured under this name."""


class Functions:
    """Python functions as tools. Arguments must fit the schema that agents see, and the annotations of the function."""

    def __init__(self) -> None:
        self.on_log: OnServerLog = lambda name, message: None
        self._registry = MCPRegistry()
        self._parameters: dict[TOOL_NAME, Parameters] = {}
        self._meta: dict[TOOL_NAME, ToolMeta] = {}
        self._log = ServerLog(self._logged)

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

    async def call_tool(self, server: str, request: ToolRequest) -> dict[str, Any]:
        """The result as an MCP result. Raises `TimeoutError`, and `BadRequest` for arguments that do not fit.

        With `extend`, the timeout begins again with each report of progress and with each question and answer.
        """
        name, loop = request.tool, asyncio.get_running_loop()
        params = dict(request.arguments)
        try:
            self._parameters[name].bind(params)
        except InvalidArguments as error:
            raise bad_arguments(error.details["errors"]) from None
        async with asyncio.timeout(request.timeout) as limit:

            def extend() -> None:
                if request.extend and not limit.expired():
                    limit.reschedule(loop.time() + request.timeout)

            def on_progress(progress: float, total: float | None, message: str | None) -> None:
                extend()
                if request.on_progress is not None:
                    request.on_progress(progress, total, message)

            async def on_input(asked: InputAsked) -> dict[str, Any]:
                extend()
                try:
                    return await _answered(request, asked)
                finally:
                    extend()

            request.begin()
            asking = on_input if request.on_input else None
            caller = ToolCaller(on_log=self._say, on_input=asking, capabilities=request.capabilities, loop=loop)
            is_followed = request.extend or request.on_progress is not None
            with called_by(caller):
                call = self._registry.acall(name, params, on_progress=on_progress if is_followed else None)
                return await mcp_result(name, call)

    def _say(self, level: str, data: Any, logger: str | None) -> None:
        self._log.add({"level": level, "data": data, "logger": logger})

    def _logged(self, message: LogMessage) -> None:
        self.on_log(FUNCTIONS, message)


async def _answered(request: ToolRequest, asked: InputAsked) -> dict[str, Any]:
    assert request.on_input
    try:
        return await request.on_input(InputRequest(asked.method, asked.params))
    except InputRefused as refusal:
        raise CannotAsk(str(refusal), method=asked.method) from None
