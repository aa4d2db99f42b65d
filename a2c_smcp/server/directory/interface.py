"""What a directory of offices must answer. Decisions are made elsewhere, on its snapshots."""

from __future__ import annotations

from typing import Protocol

from a2c_smcp.protocol.offices import Change, Member, Office
from a2c_smcp.server.directory.listener import Listener

__all__ = ["Directory"]


class Directory(Protocol):
    """Who sits where. The only writer is `commit`, which is compare-and-swap, and the `listener` hears of all of it."""

    listener: Listener

    async def office(self, office_id: str) -> Office:
        """A snapshot; an office nobody sits in is empty, with the version that it will be compared by."""

    async def seats(self, sid: str) -> tuple[Member, ...]:
        """Every seat of a connection."""

    def office_at_hand(self, office_id: str) -> Office | None:
        """The same without waiting, `None` where it has to be asked for."""

    def seats_at_hand(self, sid: str) -> tuple[Member, ...] | None:
        """The same without waiting, `None` where they have to be asked for."""

    async def holder(self, instance: str) -> str | None:
        """The connection that sits somewhere with this instance digest."""

    async def commit(self, change: Change) -> bool:
        """All of the change, or `False` and nothing of it if an office has moved on since its snapshot.

        A directory that waits between snapshot and commit must also refuse a change that `replaces` a connection which
        has taken another seat meanwhile.
        """

    async def close(self) -> None:
        """Lets go of whatever it holds open."""
