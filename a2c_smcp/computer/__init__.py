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
    "Answer": "a2c_smcp.protocol.questions",
    "ApprovalRequest": "a2c_smcp.computer.consent.approval",
    "Approvals": "a2c_smcp.computer.consent.approval",
    "BlobLimits": "a2c_smcp.computer.content.blob_handles",
    "CallOptions": "a2c_smcp.computer.calls.incoming",
    "Caller": "a2c_smcp.computer.consent.approval",
    "Computer": "a2c_smcp.computer.computer",
    "ComputerOptions": "a2c_smcp.computer.owner",
    "Configuration": "a2c_smcp.computer.configuration.files",
    "DecisionFor": "a2c_smcp.computer.consent.approval",
    "HostLimits": "a2c_smcp.mcp_host.limits",
    "InputState": "a2c_smcp.computer.configuration.resolver",
    "Inputs": "a2c_smcp.computer.configuration.resolver",
    "Question": "a2c_smcp.protocol.questions",
    "ServerStatus": "a2c_smcp.mcp_host.status",
    "SignInFailed": "a2c_smcp.mcp_host.failures",
    "Window": "a2c_smcp.computer.desktop.organize",
    "organize_desktop": "a2c_smcp.computer.desktop.organize",
    "parse_configuration": "a2c_smcp.computer.configuration.files",
    "read_configuration": "a2c_smcp.computer.configuration.files",
}


def __getattr__(name: str) -> Any:
    """Import on first use: the MCP SDK takes long to import, and many commands only read a configuration."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from a2c_smcp.installation import needs_extra

    with needs_extra("computer", "a Computer"):
        return getattr(import_module(_HOMES[name]), name)
