"""Types that the Computer adds to those of the protocol."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from typing_extensions import TypedDict

from a2c_smcp.smcp import SMCPTool

__all__ = ["OwnedTool", "ToolCallRecord", "Update"]

Update: TypeAlias = Literal["config", "tool_list", "desktop"]
"""What has changed for agents: they are notified with `server:update_<x>`."""


class OwnedTool(SMCPTool):
    """A tool with the name of its MCP server in `bundle_id`. 0.4 Servers do not pass on a list of tools without it."""

    bundle_id: str


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
