"""Requests that read from MCP servers: how they are sent, and what becomes of a server's refusal.

A refusal becomes an error with a code that agents know, where MCP says enough: a resource that is unknown, arguments
that are wrong, a method that the server does not have. Any other keeps MCP's code and data in its details.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from a2c_smcp.computer.calls.incoming import CallOptions, IncomingCall
from a2c_smcp.computer.calls.live import LiveCalls
from a2c_smcp.computer.consent.approval import Caller
from a2c_smcp.computer.hosting import HostedServers
from a2c_smcp.computer.questions.answering import Answering
from a2c_smcp.computer.secrets.mask import Mask
from a2c_smcp.errors import BadRequest, CallTimeout, CapabilityNotSupported, ResourceNotFound, SMCPError
from a2c_smcp.mcp_host.failures import INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND, RequestRefused
from a2c_smcp.mcp_host.sessions.tool_request import ReadRequest
from a2c_smcp.protocol.operations import MCP_OPERATIONS, MCPOperation
from a2c_smcp.protocol.structure import ANSWER

_UNKNOWN = re.compile(r"\b(unknown|not found|no such)\b", re.IGNORECASE)
_AT_FAULT = {each.method: each.at_fault for each in MCP_OPERATIONS}
"""The field that is wrong if an MCP server refuses the parameters; of a list it is the cursor."""

Result: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReadCall:
    """An agent's request. `server` is the configured name of the MCP server, `called` what the agent calls it."""

    caller: Caller
    data: Mapping[str, Any]
    server: str
    called: str
    deadline: float

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return max(self.deadline - asyncio.get_running_loop().time(), 0.001)


class ServerReads:
    """`host` is called for each request: a Computer gets a new one whenever it is started."""

    def __init__(self, host: Callable[[], HostedServers], live: LiveCalls, answering: Answering) -> None:
        self._host = host
        self._live = live
        self._answering = answering

    async def read(self, server: str, request: ReadRequest) -> Result:
        """MCP's result. Raises `SMCPError`."""
        try:
            return await self._host().manager[server].requests.read(request)
        except RequestRefused as refusal:
            has_answers = request.input_responses is not None or request.request_state is not None
            uri = None if has_answers else request.params.get("uri")
            raise refused_read(refusal, request.method, server, uri) from None

    async def ask(self, operation: MCPOperation, asked: ReadCall, params: Result) -> Result:
        """MCP's result, or, if the server may have questions about it first, its `InputRequiredResult`."""
        request = ReadRequest(operation.method, params, asked.left)
        if operation.options is None:
            return await self.read(asked.server, request)
        options, what = CallOptions.of_request(asked.data), f"{operation.noun} {asked.data[operation.key]}"
        call = IncomingCall(asked.caller, asked.data["req_id"], what, params, asked.left, options)
        on_input = self._answering.of_call(call, asked.server, asked.deadline)
        request = replace(request, on_input=on_input, on_unnamed=self._answering.of_owner(asked.server))
        if options is None:
            return await self.read(asked.server, request)
        try:
            return await self._live.read(call, asked.server, asked.deadline, request, partial(self.read, asked.server))
        except TimeoutError:
            raise CallTimeout(f"{asked.called!r} did not answer in time") from None


def refused_read(refusal: RequestRefused, method: str, server: str, uri: str | None = None) -> SMCPError:
    """The error for a refused request. `uri` is given if nothing else in the request can be wrong."""
    details, said = refusal.details, str(refusal.details.get("mcp_message", refusal.reason))
    code = details.get("mcp_code")
    if code == METHOD_NOT_FOUND:
        return CapabilityNotSupported(repr(server), mcp_server=server, capability=method)
    if uri is not None and (
        code in (RESOURCE_NOT_FOUND, INVALID_PARAMS) or (code == 0 and _UNKNOWN.search(said) is not None)
    ):
        return ResourceNotFound(repr(uri), **details, mcp_server=server, uri=uri)
    if code == INVALID_PARAMS:
        return BadRequest(said, **details, mcp_server=server, field=_AT_FAULT.get(method, "cursor"))
    return refusal


def masked_error(error: SMCPError, mask: Mask, server: str | None) -> SMCPError:
    """The same error without the secrets of the server that it is about."""
    error.message = mask.text(error.message, server)
    error.reason = mask.text(error.reason, server)
    error.details = mask.data({"details": error.details}, ANSWER, server)["details"]
    error.args = (error.message,)
    return error
