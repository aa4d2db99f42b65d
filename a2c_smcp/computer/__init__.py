"""The Computer: a person's machine that hosts MCP servers and keeps their credentials."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from a2c_smcp.computer.approval import Caller
    from a2c_smcp.computer.calls.incoming import CallOptions
    from a2c_smcp.computer.computer import Computer
    from a2c_smcp.mcp_host.failures import SignInFailed
    from a2c_smcp.protocol.questions import Answer, Question

__all__ = ["Answer", "CallOptions", "Caller", "Computer", "Question", "SignInFailed"]

_HOMES = {
    "Answer": "a2c_smcp.protocol.questions",
    "CallOptions": "a2c_smcp.computer.calls.incoming",
    "Caller": "a2c_smcp.computer.approval",
    "Computer": "a2c_smcp.computer.computer",
    "Question": "a2c_smcp.protocol.questions",
    "SignInFailed": "a2c_smcp.mcp_host.failures",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the MCP SDK takes long to import, and many commands only read a configuration."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from a2c_smcp.installation import needs_extra

    with needs_extra("computer", "a Computer"):
        return getattr(import_module(_HOMES[name]), name)
