"""Requests of callers to an MCP server, and the input requests by which the server asks back meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from a2c_smcp.mcp_host.transports.direct_requests import OnProgress
from a2c_smcp.protocol.operations import MCP_LISTS, MCP_OPERATIONS, READ_RESOURCE
from a2c_smcp.protocol.questions import InputRequest
from a2c_smcp.protocol.skills import SKILLS_EXTENSION

LIST_SKILLS = "skills/list"
READ_METHODS = {
    **{row.method: row.capability for row in MCP_LISTS},
    **{row.method: row.capability for row in MCP_OPERATIONS},
    LIST_SKILLS: f"extensions.{SKILLS_EXTENSION}",
}
"""The requests that only read, with the capability that a server must declare for each."""
UNDECLARED = {(operation.method, operation.undeclared_in) for operation in MCP_OPERATIONS}
"""Requests that a revision has without a capability."""


class InputRefused(Exception):
    """Raised by an `OnInput` that cannot answer. The text is for the server."""


OnInput = Callable[[InputRequest], Awaitable[dict[str, Any]]]
"""Returns MCP's result for an input request. It is cancelled when its call ends or the server withdraws it.

Raises `InputRefused` if there is no answer. Then an elicitation is answered with the action `cancel`, `roots/list`
with an empty list, and `sampling/createMessage` with an error.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The options of a request to a server: input requests, and what travels beside its parameters.

    `meta` is the caller's `_meta`, without keys that MCP reserves. Without `on_input` input requests are not answered.
    `on_unnamed` answers a question of which nobody can tell which of several calls it belongs to; an owner can.
    `capabilities` are declared for this request on 2026-07-28; `None` declares elicitation if there is an `on_input`.
    With `input_as_result` an `InputRequiredResult` is returned as it came; the next request answers it with
    `input_responses` and `request_state`.
    """

    meta: Mapping[str, Any] = field(default_factory=dict)
    on_input: OnInput | None = None
    on_unnamed: OnInput | None = None
    capabilities: Mapping[str, Any] | None = None
    input_as_result: bool = False
    input_responses: Mapping[str, Any] | None = None
    request_state: str | None = None


@dataclass(frozen=True, slots=True)
class ToolRequest(Asking):
    """A call of a tool, by the name that its server gives it.

    `timeout` counts from the beginning. With `extend` it counts from the last sign of life of the server (progress,
    the status of a task, an input request), and `cap` from the beginning; the default of `cap` is the policy's.
    `begin` is called directly before the request is written; if it raises, nothing is written.
    """

    tool: str
    arguments: Mapping[str, Any]
    timeout: float
    cap: float | None = None
    on_progress: OnProgress | None = None
    begin: Callable[[], None] = lambda: None
    extend: bool = False


@dataclass(frozen=True, slots=True)
class ReadRequest(Asking):
    """One of `READ_METHODS`, with MCP's parameters for it."""

    method: str
    params: Mapping[str, Any]
    timeout: float

    @classmethod
    def of_resource(cls, uri: str, timeout: float) -> ReadRequest:
        return cls(READ_RESOURCE.method, {"uri": uri}, timeout)
