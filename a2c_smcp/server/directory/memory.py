"""The directory of one process."""

from __future__ import annotations

from dataclasses import replace

from a2c_smcp.protocol.offices import Change, Member, Office, part_of
from a2c_smcp.server.directory.interface import DirectoryListener

__all__ = ["MemoryDirectory"]


class MemoryDirectory:
    """Offices as immutable snapshots, replaced on commit. Nothing here waits, so nothing interleaves.

    Versions come from one counter: an office that was emptied and filled again never shows an old one.
    """

    def __init__(self) -> None:
        self._offices: dict[str, Office] = {}
        self._seats: dict[str, dict[str, Member]] = {}
        self._holders: dict[str, str] = {}
        self._version = 0
        self.listener = DirectoryListener()

    async def office(self, office_id: str) -> Office:
        return self.cached_office(office_id)

    async def seats(self, sid: str) -> tuple[Member, ...]:
        return self.cached_seats(sid)

    def cached_office(self, office_id: str) -> Office:
        return self._offices.get(office_id) or Office(office_id)

    def cached_seats(self, sid: str) -> tuple[Member, ...]:
        return tuple(self._seats.get(sid, {}).values())

    def own_members(self) -> tuple[Member, ...]:
        return tuple(member for seats in self._seats.values() for member in seats.values())

    async def holder(self, instance: str) -> str | None:
        return self._holders.get(instance)

    async def commit(self, change: Change) -> bool:
        for office_id, version in change.expects.items():
            if (await self.office(office_id)).version != version:
                return False
        for member in change.leaves:
            self._unseat(member)
        for member in change.enters:
            self._seat(member)
        for office_id in dict.fromkeys(member.office_id for member in (*change.leaves, *change.enters)):
            self.listener.office_changed(self.cached_office(office_id), part_of(change, office_id))
        return True

    async def close(self) -> None:
        return None

    def _seat(self, member: Member) -> None:
        office = self._offices.get(member.office_id) or Office(member.office_id)
        self._put(
            replace(office, agent=member)
            if member.role == "agent"
            else replace(office, computers={**office.computers, member.name: member})
        )
        self._seats.setdefault(member.sid, {})[member.office_id] = member
        if member.instance:
            self._holders[member.instance] = member.sid

    def _unseat(self, member: Member) -> None:
        office = self._offices[member.office_id]
        if member.role == "agent":
            self._put(replace(office, agent=None))
        else:
            others = dict(office.computers)
            del others[member.name]
            self._put(replace(office, computers=others))
        seats = self._seats[member.sid]
        del seats[member.office_id]
        if not seats:
            del self._seats[member.sid]
        if member.instance and not any(seat.instance == member.instance for seat in seats.values()):
            self._holders.pop(member.instance, None)

    def _put(self, office: Office) -> None:
        self._version += 1
        if office.members:
            self._offices[office.office_id] = replace(office, version=self._version)
        else:
            self._offices.pop(office.office_id, None)
