"""What the Computer adds to the vocabulary: the tools it shows, and what it remembers of its calls (004)."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

from a2c_smcp.smcp import SMCPTool

__all__ = ["OwnedTool", "ToolCallRecord"]


class OwnedTool(SMCPTool):
    """`bundle_id` is the server's key in the configuration. 0.4 Servers do not pass on a list of tools without it."""

    bundle_id: str


class ToolCallRecord(TypedDict):
    """A call that has ended. `server` decides which windows come first on the desktop."""

    timestamp: str
    req_id: str
    server: str
    tool: str
    parameters: dict[str, Any]
    timeout: float | None
    success: bool
    error: str | None
