"""What is told of a supervised MCP server: its state, and what changed about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from a2c_smcp.mcp_host.sessions.offers import OfferChange

__all__ = ["OnChange", "OnServerEvent", "ServerStatus", "State"]

State = Literal["disabled", "starting", "ready", "backoff", "auth_required", "failed", "stopped"]


class OnChange(Protocol):
    """Called in the event loop; it must return at once."""

    def __call__(self, name: str, state: State, reason: str) -> None: ...


class OnServerEvent(Protocol):
    """Called in the event loop; it must return at once. `about` is a window's URI, where there is one."""

    def __call__(self, name: str, kind: OfferChange, about: str | None) -> None: ...


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What a person wants to know of a server."""

    name: str
    state: State
    reason: str
    tools: int
    windows: int
    starts: int
    revision: str
    diagnostics: dict[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    """What the owner should know about its tools: which are left out, and why."""
