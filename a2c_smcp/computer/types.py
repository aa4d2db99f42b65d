"""Types that the Computer adds to those of the protocol."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, TypeAlias

from typing_extensions import TypedDict

from a2c_smcp.mcp_events import CallEnd, CallState
from a2c_smcp.smcp import SMCPTool

UpdateKind: TypeAlias = Literal["config", "tool_list", "desktop", "skills", "state"]


class ServerUpdate(NamedTuple):
    """The list of resources, or of prompts, of one MCP server has changed."""

    kind: Literal["resource_list", "prompts"]
    server: str


Update: TypeAlias = UpdateKind | ServerUpdate
"""A change that agents are notified of, with `server:update_<x>`."""


class OwnedTool(SMCPTool):
    """A tool, and its MCP server: its name, and the bundle id by which the published 0.4 generation knows it.

    0.4 Servers do not pass on a list of tools without bundle ids.
    """

    bundle_id: str
    mcp_server: str


class ToolCallRecord(TypedDict):
    """A tool call in the history (004). The desktop shows the windows of the server that was called last first."""

    timestamp: str
    req_id: str
    server: str
    tool: str
    parameters: dict[str, Any]
    timeout: float | None
    success: bool
    error: str | None


class AttributedCall(ToolCallRecord):
    """A call in the history with its `caller`: the agent, and the MCP client behind it; empty for the owner's own."""

    caller: str
    state: CallState | CallEnd
