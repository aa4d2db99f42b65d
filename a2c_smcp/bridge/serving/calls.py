"""One tool call of an MCP client, made by the agent: progress, logs and questions on the way, and how it ends.

What the tool answers is passed on as it is; a JSON-RPC error of its MCP server is one here. Whatever else goes wrong
(the computer has left, its owner refuses, time is over) is an error result, which a model can read, and says what to
do. A client that cancels its request cancels the call, down to the MCP server.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from secrets import token_hex
from typing import Any, cast

from mcp.shared.exceptions import MCPError

from a2c_smcp.agent import EmitOptions, ReadOptions
from a2c_smcp.bridge.offers import Target
from a2c_smcp.bridge.office.office import BridgedOffice
from a2c_smcp.bridge.serving.logs import CallLogs
from a2c_smcp.bridge.serving.questions import answered
from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.protocol.results import CallToolResult
from a2c_smcp.registry.calls.caller import CannotAsk
from a2c_smcp.registry.remote.announcing import Announcer, Request, is_modern
from a2c_smcp.registry.remote.rounds import Round, wants_progress

__all__ = ["ClientCalls", "failed_result"]

_OF_REQUEST = "progressToken"
_RESERVED = "io.modelcontextprotocol/"


class ClientCalls:
    """Makes the calls of all clients."""

    def __init__(self, office: BridgedOffice, announcer: Announcer) -> None:
        self._office, self._announcer = office, announcer
        self._agent = office.agent
        self._logs = CallLogs(office.agent, office.name)
        self._tasks = OwnedTasks()

    def open(self) -> None:
        self._logs.open()

    async def close(self) -> None:
        self._logs.close()
        await self._tasks.close()

    async def call(self, context: Request, target: Target, arguments: dict[str, Any]) -> dict[str, Any]:
        """MCP's result. Raises `MCPError` if that is what the MCP server has answered."""
        round_ = Round(context, self._announcer)
        server, level = self._office.server_of(target), self._announcer.log_level(context)
        client = self._announcer.identity(context)
        logs = self._logs.of_call(client, target, server, level, round_) if level else nullcontext()
        try:
            async with logs:
                return await self._office.membership.guard(self._answered(context, target, arguments, server, round_))
        except CannotAsk:
            if is_modern(context):
                raise
            return failed_result("The MCP client could not answer what the tool has asked.")
        except SMCPError as error:
            return failed_result(self._office.explain(error), error)
        finally:
            if level or wants_progress(context):
                await round_.finish()

    async def _answered(
        self, context: Request, target: Target, arguments: dict[str, Any], server: str | None, round_: Round
    ) -> dict[str, Any]:
        common, req_id = _options(context, round_), ""

        async def send(options: ReadOptions) -> dict[str, Any]:
            nonlocal req_id
            req_id = token_hex(16)
            result = await self._agent.emit_tool_call(
                target.computer,
                target.tool,
                arguments,
                self._office.options.timeout,
                office=self._office.name,
                req_id=req_id,
                **cast(EmitOptions, {**common, **options}),
            )
            return self._office.readables.linked(target, server, _as_mcp(result))

        return await answered(context, send, lambda: self._tasks.spawn(self._cancel(req_id)))

    async def _cancel(self, req_id: str) -> None:
        """End a call on the computer that waits for answers."""
        with suppress(SMCPError):
            await self._agent.cancel(req_id)


def failed_result(text: str, error: SMCPError | None = None) -> dict[str, Any]:
    """An error result. Programs find the code in `_meta`, and whether the tool has run."""
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": True}
    if error is not None:
        result["_meta"] = {"a2c_error": {"code": error.code, "outcome": error.outcome}}
    return result


def _options(context: Request, round_: Round) -> EmitOptions:
    options: EmitOptions = {}
    if meta := _meta(context.params or {}):
        options["meta"] = meta
    if wants_progress(context):
        options["on_progress"] = round_.report
        options["extend"] = True
    return options


def _meta(params: Mapping[str, Any]) -> dict[str, Any]:
    """The client's `_meta` for the MCP server, without what belongs to this request."""
    meta = params.get("_meta")
    if not isinstance(meta, Mapping):
        return {}
    return {key: value for key, value in meta.items() if key != _OF_REQUEST and not key.startswith(_RESERVED)}


def _as_mcp(result: CallToolResult) -> dict[str, Any]:
    """MCP's result. Raises `MCPError` for a JSON-RPC error of the MCP server."""
    error = result.mcp_error
    if error is not None and type(error.get("code")) is int:
        raise MCPError(error["code"], str(error.get("message")), error.get("data"))
    if result.is_input_required:
        return dict(result.extra)
    return result.to_wire()
