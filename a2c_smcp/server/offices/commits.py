"""Joining and leaving: read a snapshot, ask the protocol, commit, and again if somebody was faster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from a2c_smcp.errors import Unavailable
from a2c_smcp.protocol import offices as protocol
from a2c_smcp.protocol.offices import Change, Member, Office
from a2c_smcp.server.directory import Directory

__all__ = ["Offices"]

_TRIES = 100


class Offices:
    """The only writer of the directory. Each operation returns the change that it has committed.

    Two operations for one connection must not run at the same time: the directory compares offices, not connections.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    async def join(
        self,
        newcomer: Member,
        may_keep: Callable[[Member], bool] = lambda seat: True,
        most: int = protocol.MAX_SEATS,
    ) -> Change:
        async def decide() -> Change:
            holder = await self._directory.holder(newcomer.instance) if newcomer.instance else None
            ghost = None if holder == newcomer.sid else holder
            offices = {office.office_id: office for sid in (newcomer.sid, ghost) for office in await self._around(sid)}
            if newcomer.office_id not in offices:
                offices[newcomer.office_id] = await self._directory.office(newcomer.office_id)
            return protocol.join(newcomer, offices.values(), ghost, may_keep, most)

        return await self._commit(decide)

    async def leave(self, sid: str, office_id: str, *, is_lost: bool = False) -> Change:
        async def decide() -> Change:
            return protocol.leave(sid, await self._directory.office(office_id), is_lost=is_lost)

        return await self._commit(decide)

    async def vacate(self, sid: str) -> Change:
        """Of somebody who was lost."""

        async def decide() -> Change:
            return protocol.vacate(sid, await self._around(sid), is_lost=True)

        return await self._commit(decide)

    async def _around(self, sid: str | None) -> list[Office]:
        """The offices where this connection sits."""
        seats = await self._directory.seats(sid) if sid else ()
        return [await self._directory.office(seat.office_id) for seat in seats]

    async def _commit(self, decide: Callable[[], Awaitable[Change]]) -> Change:
        for _ in range(_TRIES):
            change = await decide()
            if await self._directory.commit(change):
                return change
        raise Unavailable("too many want to change this office at once, try again")
