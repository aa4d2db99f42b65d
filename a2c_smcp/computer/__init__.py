"""The Computer: a person's machine that hosts MCP servers and keeps their credentials."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from a2c_smcp.computer.calls.incoming import CallOptions
    from a2c_smcp.computer.computer import Computer
    from a2c_smcp.computer.configuration.files import Configuration, parse_configuration, read_configuration
    from a2c_smcp.computer.configuration.resolver import Inputs, InputState
    from a2c_smcp.computer.consent.approval import ApprovalRequest, Approvals, Caller, DecisionFor
    from a2c_smcp.computer.content.blob_handles import BlobLimits
    from a2c_smcp.computer.desktop.organize import Window, organize_desktop
    from a2c_smcp.computer.owner import ComputerOptions
    from a2c_smcp.mcp_host.failures import SignInFailed
    from a2c_smcp.mcp_host.limits import HostLimits
    from a2c_smcp.mcp_host.status import ServerStatus
    from a2c_smcp.protocol.questions import Answer, Question

__all__ = [
    "Answer",
    "ApprovalRequest",
    "Approvals",
    "BlobLimits",
    "CallOptions",
    "Caller",
    "Computer",
    "ComputerOptions",
    "Configuration",
    "DecisionFor",
    "HostLimits",
    "InputState",
    "Inputs",
    "Question",
    "ServerStatus",
    "SignInFailed",
    "Window",
    "organize_desktop",
    "parse_configuration",
    "read_configuration",
]

_HOMES = {
    "computer.calls.incoming": ("CallOptions",),
    "computer.computer": ("Computer",),
    "computer.configuration.files": ("Configuration", "parse_configuration", "read_configuration"),
    "computer.configuration.resolver": ("InputState", "Inputs"),
    "computer.consent.approval": ("ApprovalRequest", "Approvals", "Caller", "DecisionFor"),
    "computer.content.blob_handles": ("BlobLimits",),
    "computer.desktop.organize": ("Window", "organize_desktop"),
    "computer.owner": ("ComputerOptions",),
    "mcp_host.failures": ("SignInFailed",),
    "mcp_host.limits": ("HostLimits",),
    "mcp_host.status": ("ServerStatus",),
    "protocol.questions": ("Answer", "Question"),
}


def __getattr__(name: str) -> Any:
    """Import on first use: the MCP SDK takes long to import, and many commands only read a configuration."""
    home = next((home for home, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from a2c_smcp.installation import needs_extra

    with needs_extra("computer", "a Computer"):
        return getattr(import_module(f"a2c_smcp.{home}"), name)
