"""What a node knows of offices without asking the store: snapshots that follow what is published about them.

The store gives every change of an office a stamp (`at`), publishes it on the office's channel, and in it the version
that the change began from (`prev`) and led to. A node subscribes to the channel of an office before it reads the
office for the first time, so nothing between the two is missed. Its view of an office is in one of three states:

    unknown ── see ──► in step ── hear a change with another `prev` ──► behind ── see ──► in step

- In step: every change up to `at` is in the snapshot. A change whose `prev` is the snapshot's version is applied to
  it, and given to the node as it was published. Changes up to `at` were seen already, and are ignored: a node hears
  its own commits twice, in the answer of the commit and on the channel.
- Behind: a change was missed. The view is not given out, and only a fresh snapshot (`see`) heals it. The difference
  between the two snapshots is then given to the node as one change, so that it applies every change exactly once.
- A snapshot that is older than the view is ignored, because answers of the store may cross what it publishes.

The mirror also holds the seats of this node's own members. They outlive a lost store, to be seated again
(`seat_recovery`), and their offices are never dropped; other offices are, when there are too many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from a2c_smcp.protocol.offices import Change, Member, Office
from a2c_smcp.server.directory.records import PublishedChange, SeatRecord, difference

__all__ = ["Applied", "Mirror"]

Applied = tuple[Office, Change]
"""A new snapshot of an office, and the change that led to it."""


@dataclass(slots=True)
class _View:
    """An office as of the change stamped `at`. It is behind if a later change is known, stamped `heard`."""

    office: Office
    at: int
    heard: int = 0

    @property
    def is_in_step(self) -> bool:
        return self.heard <= self.at


class Mirror:
    """The offices that this node follows, at most `most` beside those of its own members."""

    def __init__(self, node: str, most: int) -> None:
        self._node = node
        self._most = most
        self._views: OrderedDict[str, _View] = OrderedDict()
        self._own: dict[str, dict[str, SeatRecord]] = {}
        self._own_members: dict[str, tuple[Member, ...]] = {}
        self._own_sids: dict[str, set[str]] = {}

    def __contains__(self, office_id: str) -> bool:
        return office_id in self._views

    def office(self, office_id: str) -> Office | None:
        view = self._views.get(office_id)
        return view.office if view and view.is_in_step else None

    def seats(self, sid: str) -> tuple[Member, ...] | None:
        """The seats of a connection of this node."""
        return self._own_members.get(sid)

    def own_seats(self) -> tuple[SeatRecord, ...]:
        """The seats of all members of this node."""
        return tuple(seat for seats in self._own.values() for seat in seats.values())

    def own_seat(self, sid: str, office_id: str) -> Member | None:
        """The seat that a member of this node has in an office."""
        seat = self._own.get(sid, {}).get(office_id)
        return seat.member if seat else None

    def own_offices(self) -> tuple[str, ...]:
        """The offices in which this node has members."""
        return tuple(self._own_sids)

    def is_behind(self, office_id: str) -> bool:
        """Whether this node follows the office, and has missed a change of it."""
        view = self._views.get(office_id)
        return view is not None and not view.is_in_step

    def see(self, office: Office, seats: Iterable[SeatRecord] | None, at: int) -> Applied | None:
        """Takes a snapshot from the store, with its seats unless its version was known. Returns what it changed."""
        view = self._views.get(office.office_id)
        if view and at < view.at:
            return None
        if seats is None:
            if view and view.office.version == office.version:
                view.at = at
            return None
        self._replace_own(office.office_id, seats)
        if view is None:
            self._views[office.office_id] = _View(office, at)
            return None
        change = difference(view.office, office)
        view.at, view.office = at, office
        return (office, change) if change.leaves or change.enters else None

    def hear(self, office_id: str, published: PublishedChange) -> Applied | None:
        """Applies a change that was published. If one before it was missed, the office is behind until seen again."""
        view = self._views.get(office_id)
        if view is None or published.at <= view.at:
            return None
        if published.prev != view.office.version or not view.is_in_step:
            view.heard = max(view.heard, published.at)
            return None
        before, after = view.office, published.applied_to(view.office)
        change = published.change(before, after)
        view.at, view.office = published.at, after
        if published.buried != self._node:  # else this node has lost its lease, and its members want their seats back
            for member in change.leaves:
                self.forget(member)
        for seat in published.enters:
            if seat.node == self._node:
                self._keep(seat)
        return after, change

    def forget(self, member: Member) -> None:
        """The member has lost this seat, or is no longer a member of this node."""
        seats = self._own.get(member.sid, {})
        if seats.pop(member.office_id, None) is None:
            return
        self._list_members(member.sid)
        self._own_sids[member.office_id].discard(member.sid)
        if not self._own_sids[member.office_id]:
            del self._own_sids[member.office_id]
            if member.office_id in self._views:
                self._views.move_to_end(member.office_id)

    def drop_excess(self) -> list[str]:
        """Drops offices if there are too many, those first in which this node had no member for longest."""
        excess = len(self._views) - len(self._own_sids) - self._most
        return self._drop(excess + self._most // 8) if excess > 0 else []

    def rewind(self) -> None:
        """Changes may have been missed, and the store may be another. Offices of our members stay, to be seen again."""
        self._drop(len(self._views))
        for view in self._views.values():
            view.at = view.heard = -1

    def _drop(self, count: int) -> list[str]:
        idle = [office_id for office_id in self._views if office_id not in self._own_sids][:count]
        for office_id in idle:
            del self._views[office_id]
        return idle

    def _replace_own(self, office_id: str, seats: Iterable[SeatRecord]) -> None:
        """The seats of this node's members in an office are exactly those."""
        own = {seat.member.sid: seat for seat in seats if seat.node == self._node}
        for sid in self._own_sids.get(office_id, set()) - own.keys():
            self.forget(self._own[sid][office_id].member)
        for seat in own.values():
            self._keep(seat)

    def _keep(self, seat: SeatRecord) -> None:
        sid, office_id = seat.member.sid, seat.member.office_id
        self._own.setdefault(sid, {})[office_id] = seat
        self._own_sids.setdefault(office_id, set()).add(sid)
        self._list_members(sid)

    def _list_members(self, sid: str) -> None:
        """Every call asks for the members of a connection, so they are listed here, once."""
        if seats := self._own[sid]:
            self._own_members[sid] = tuple(seat.member for seat in seats.values())
        else:
            del self._own[sid], self._own_members[sid]
