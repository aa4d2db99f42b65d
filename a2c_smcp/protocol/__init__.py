"""The rules: who may send what to whom, decided by pure functions without await, socket, clock, chance or log."""

from a2c_smcp.protocol.events import EVENTS, Action, EventSpec, lookup
from a2c_smcp.protocol.offices import Change, Member, Notice, Office
from a2c_smcp.protocol.results import CallToolResult
from a2c_smcp.protocol.routing import Forward
from a2c_smcp.protocol.version import PROTOCOL_VERSION
from a2c_smcp.protocol.window_uri import WindowURI

__all__ = [
    "EVENTS",
    "PROTOCOL_VERSION",
    "Action",
    "CallToolResult",
    "Change",
    "EventSpec",
    "Forward",
    "Member",
    "Notice",
    "Office",
    "WindowURI",
    "lookup",
]
