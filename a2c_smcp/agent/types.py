"""What an agent hears of: the methods by which a program is told."""

from __future__ import annotations

from typing import Any, NamedTuple

from a2c_smcp.smcp import SMCPTool
from a2c_smcp.types import Desktop

__all__ = ["AgentEvents", "Seat"]


class Seat(NamedTuple):
    """A computer where it sits: names are unique in an office, and nowhere else."""

    office: str
    computer: str

    def __str__(self) -> str:
        return f"{self.office}/{self.computer}"


class AgentEvents:
    """Override what you want to hear of, in a subclass of a client or in an `event_handler` of your own.

    The methods may be async or not. They are called one at a time, in the order of what happened; one that raises is
    logged and harms nothing. What the agent itself does about an event it does anyway.
    """

    def on_computer_enter_office(self, data: dict[str, Any]) -> Any:
        """A computer came in, or was there when the agent did: `{"office_id", "computer"}`."""

    def on_computer_leave_office(self, data: dict[str, Any]) -> Any:
        """A computer is gone: `{"office_id", "computer"}`."""

    def on_computer_update_config(self, data: dict[str, Any]) -> Any:
        """A computer's configuration has changed: `{"office_id", "computer"}`."""

    def on_computer_update_mcp_config(self, data: dict[str, Any]) -> Any:
        """The same, under its older name (003)."""

    def on_tools_received(self, computer: str, tools: list[SMCPTool], office: str) -> Any:
        """The tools that a computer has now."""

    def on_desktop_updated(self, computer: str, desktops: list[Desktop], office: str) -> Any:
        """A desktop that was asked for before has changed."""

    def on_office_lost(self, office: str, error: Exception) -> Any:
        """After a lost connection the office would not have the agent back. It goes on trying."""

    def on_refused(self, error: Exception) -> Any:
        """After a lost connection the Server refuses the agent for good, such as a key that was revoked."""

    def on_notice(self, event: str, data: dict[str, Any]) -> Any:
        """Any `notify:*`, also of a kind newer than this client, as it came."""
