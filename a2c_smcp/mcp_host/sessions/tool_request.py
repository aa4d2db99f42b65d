"""What a caller asks of an MCP server, and how the server may ask back in the middle of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from a2c_smcp.mcp_host.transports.in_flight_request import OnProgress

__all__ = ["READ_METHODS", "Asking", "InputRefused", "InputRequest", "OnInput", "ReadRequest", "ToolRequest"]

READ_METHODS = {
    "resources/list": "resources",
    "resources/templates/list": "resources",
    "resources/read": "resources",
    "prompts/list": "prompts",
    "prompts/get": "prompts",
    "completion/complete": "completions",
}
"""The requests that only read, with the capability that a server must declare for each."""


class InputRequest(NamedTuple):
    """One thing that a server asks in the middle of a request.

    `method` is `elicitation/create`, `sampling/createMessage` or `roots/list`; `params` are as MCP spells them, and
    come from the server unchecked.
    """

    method: str
    params: dict[str, Any]


class InputRefused(Exception):
    """Raised by an `OnInput`: nobody can answer. The text is for the server."""


OnInput = Callable[[InputRequest], Awaitable[dict[str, Any]]]
"""Returns MCP's result for an input request. It is cancelled when its call ends or the server withdraws it.

Raises `InputRefused` where nobody can answer. Then an elicitation is answered with the action `cancel`, `roots/list`
with an empty list, and `sampling/createMessage` with an error.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What a request to a server says about input requests, and what travels beside its parameters.

    `meta` is the caller's `_meta`; keys that MCP reserves are not taken. Without `on_input` nobody can answer.
    `capabilities` are declared for this request on 2026-07-28; `None` declares elicitation if there is an `on_input`.
    With `input_as_result` an `InputRequiredResult` is returned as it came; the next request answers it with
    `input_responses` and `request_state`.
    """

    meta: Mapping[str, Any] = field(default_factory=dict)
    on_input: OnInput | None = None
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
