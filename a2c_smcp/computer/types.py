"""What the Computer remembers of its calls (004)."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict

__all__ = ["ToolCallRecord"]


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
