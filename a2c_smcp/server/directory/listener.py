"""What a node hears from a directory that it shares with others."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from a2c_smcp.errors import SMCPError
from a2c_smcp.protocol.offices import Member
from a2c_smcp.server.directory.mirror import Turn

__all__ = ["Listener"]


class Listener:
    """Override what matters. Nothing here may wait, except `survivors`, and nothing is called twice for one event."""

    def turned(self, turn: Turn) -> None:
        """An office that this node follows has moved on: in order, by whomever it was, this node included."""

    def announced(self, office_id: str, text: str) -> None:
        """Somebody has announced something to an office that this node follows."""

    def posted(self, message: bytes) -> None:
        """Another node has put something into this node's inbox."""

    def inherited(self, sids: Collection[str]) -> None:
        """A predecessor of this name has left seats, under sessions that have ended."""

    def returned(self, node: str) -> None:
        """Another node was out of reach, and has its members again. What it was asked meanwhile it has not heard."""

    def back(self) -> None:
        """This node itself was out of reach, and has caught up. What was announced meanwhile it has not heard."""

    def displaced(self, member: Member, why: SMCPError) -> None:
        """A member of this node has lost its seat, to an older member or to a newer connection of its own client."""

    def lost(self, error: Exception) -> None:
        """The store is out of reach, or this node's lease is lost. It comes back by itself."""

    async def survivors(self, members: Sequence[Member]) -> Collection[Member]:
        """The node is back: which of the members that it had are still to be seated."""
        return members
