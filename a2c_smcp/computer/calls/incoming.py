"""A tool call as it arrives, with what its agent asks for beside the result (WIRE §9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from a2c_smcp.computer.approval import Caller
from a2c_smcp.computer.calls.journal import Key
from a2c_smcp.mcp_host.own_keys import is_own_key
from a2c_smcp.types import TOOL_NAME

__all__ = ["CallOptions", "IncomingCall"]

_OPTIONS = frozenset(
    ("progress", "questions", "extend", "input_responses", "request_state", "client_capabilities", "_meta")
)
_NONE = (None, None, None)


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What an agent asks for beside the result.

    `progress`: to be told the progress. `questions`: `True`, to be asked what the tool asks; `"result"`, to get MCP's
    `InputRequiredResult` and ask again with `input_responses` and `request_state`; `client_capabilities` are what is
    declared to the MCP server then. `extend`: the timeout is the longest silence. `meta` is for the MCP server.
    """

    progress: bool = False
    questions: bool | Literal["result"] = False
    extend: bool = False
    input_responses: Mapping[str, Any] | None = field(default=None, repr=False)
    request_state: str | None = field(default=None, repr=False)
    client_capabilities: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def of_request(cls, data: Mapping[str, Any]) -> CallOptions | None:
        """The options in a decoded request; `None` if it has none."""
        if _OPTIONS.isdisjoint(data):
            return None
        return cls(
            progress=data.get("progress") is True,
            questions="result" if data.get("questions") == "result" else data.get("questions") is True,
            extend=data.get("extend") is True,
            input_responses=data.get("input_responses"),
            request_state=data.get("request_state"),
            client_capabilities=data.get("client_capabilities"),
            meta={key: value for key, value in (data.get("_meta") or {}).items() if not is_own_key(key)},
        )

    @property
    def is_live(self) -> bool:
        """Whether more has to be done for it than to pass on `meta` and the progress."""
        given = self.input_responses, self.request_state, self.client_capabilities
        return bool(self.questions or self.extend) or given != _NONE


@dataclass(frozen=True, slots=True)
class IncomingCall:
    """What an agent asks for. `timeout` is in seconds from now. `blobs`: it fetches large contents in chunks.

    `replaced` are the arguments that a scanner has put in place of `params`, by which the agent knows its call.
    """

    caller: Caller
    req_id: str
    name: TOOL_NAME
    params: dict[str, Any]
    timeout: float
    options: CallOptions | None = None
    blobs: bool = False
    replaced: dict[str, Any] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """What the tool is called with."""
        return self.params if self.replaced is None else self.replaced

    @property
    def key(self) -> Key:
        return self.caller.office, self.caller.agent, self.req_id

    @property
    def what(self) -> list[Any]:
        """What is called with which arguments: the same for duplicates of one call."""
        options = self.options
        if options is None or (options.input_responses is None and options.request_state is None):
            return [self.name, self.params]
        return [self.name, self.params, options.input_responses, options.request_state]
