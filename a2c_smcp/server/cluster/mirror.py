"""A node's copy of offices: snapshots that follow the changes that the store publishes.

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
(`recover_seats`), and their offices are never dropped; other offices are, when there are too many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from a2c_smcp.protocol.codec import dumps, loads
from a2c_smcp.protocol.offices import Change, Member, Office, entered, left
from a2c_smcp.types import Role

# The records of the store as text and as Python values: seats, offices, changes to commit and changes published.

_AGENT = "A"
_COMPUTER = "c:"
_VERSION = "v"


@dataclass(frozen=True, slots=True)
class SeatRecord:
    """A seat: its member, the node whose lease it belongs to, since when its client has it, and when it was written."""

    member: Member
    node: str
    since: int
    at: int = 0

    @classmethod
    def read(cls, office_id: str, field: str, value: str) -> SeatRecord:
        at, since, node, text = value.split(" ", 3)
        sid, instance, owner, version, name = loads(text)
        role: Role = "agent" if field == _AGENT else "computer"
        return cls(Member(sid, role, name, office_id, instance, owner, version), node, int(since), int(at))


@dataclass(frozen=True, slots=True)
class PublishedChange:
    """A change of one office as a script has published it, from version `prev` to `version`.

    `by` is the connection that made it, `buried` the node whose lease has ended, `displaced` the connections that lost
    a seat to an older member.
    """

    at: int
    prev: int
    version: int
    leaves: tuple[str, ...]
    enters: tuple[SeatRecord, ...]
    by: str | None = None
    replaces: str | None = None
    buried: str | None = None
    displaced: tuple[str, ...] = ()
    is_lost: bool = False

    @classmethod
    def read(cls, office_id: str, text: str) -> PublishedChange:
        told = loads(text)
        return cls(
            int(told["at"]),
            int(told["prev"]),
            int(told["version"]),
            tuple(told["leaves"]),
            tuple(SeatRecord.read(office_id, field, value) for field, value in told["enters"]),
            told.get("by"),
            told.get("replaces"),
            told.get("buried"),
            tuple(sid for office, sid in told.get("displaced") or () if office == office_id),
            bool(told.get("lost")),
        )

    def change(self, before: Office, after: Office) -> Change:
        """The change for members who know the office as it was before."""
        roles: list[tuple[Role, str]] = [
            ("agent", "") if field == _AGENT else ("computer", field.removeprefix(_COMPUTER)) for field in self.leaves
        ]
        gone = tuple(member for role, name in roles if (member := before.holder(role, name)))
        come = tuple(seat.member for seat in self.enters)
        return _change(before, after, gone, come, self.by, self.replaces, is_lost=self.is_lost)

    def applied_to(self, office: Office) -> Office:
        gone = {field.removeprefix(_COMPUTER) for field in self.leaves if field != _AGENT}
        agent = None if _AGENT in self.leaves else office.agent
        computers = {name: member for name, member in office.computers.items() if name not in gone}
        for member in (seat.member for seat in self.enters):
            if member.role == "agent":
                agent = member
            else:
                computers[member.name] = member
        return Office(office.office_id, agent, computers, self.version)


def field_of(member: Member) -> str:
    """The field of an office's hash that holds this member: one for the agent, one for each name of a computer."""
    return _AGENT if member.role == "agent" else _COMPUTER + member.name


def seat_text(member: Member) -> str:
    return dumps([member.sid, member.instance, member.owner, member.version, member.name])


def office_of(office_id: str, fields: Mapping[str, str]) -> tuple[Office, tuple[SeatRecord, ...]]:
    """An office from its hash, with computers in the order in which they joined."""
    read = (SeatRecord.read(office_id, field, value) for field, value in fields.items() if field != _VERSION)
    seats = tuple(sorted(read, key=lambda seat: seat.at))
    agent = next((seat.member for seat in seats if seat.member.role == "agent"), None)
    computers = {seat.member.name: seat.member for seat in seats if seat.member.role == "computer"}
    return Office(office_id, agent, computers, int(fields.get(_VERSION, 0))), seats


def change_text(change: Change) -> str:
    """A change as `commit.lua` reads it. All members that enter do so on one connection."""
    by = change.enters[0].sid if change.enters else change.leaves[0].sid if change.leaves else None
    movers = {member.sid for member in change.enters} | ({change.replaces} if change.replaces else set())
    return dumps(
        {
            "by": by,
            "replaces": change.replaces,
            "lost": change.is_lost,
            "expects": [[office_id, str(version)] for office_id, version in change.expects.items()],
            "movers": sorted(movers),
            "instances": sorted({member.instance for member in change.enters if member.instance}),
            "leaves": [[member.office_id, field_of(member)] for member in change.leaves],
            "enters": [[member.office_id, field_of(member), seat_text(member)] for member in change.enters],
        }
    )


def difference(before: Office, after: Office) -> Change:
    """The change between two snapshots, as if it had been committed at once."""
    return _change(before, after, _missing(before, after), _missing(after, before), is_lost=True)


def _change(
    before: Office,
    after: Office,
    gone: tuple[Member, ...],
    come: tuple[Member, ...],
    by: str | None = None,
    replaces: str | None = None,
    *,
    is_lost: bool,
) -> Change:
    """Return a change with notices of what others see: a name that stays with its client has not left."""
    moved = {by, replaces}
    return Change(
        expects={before.office_id: before.version},
        leaves=gone,
        enters=come,
        notices=(
            *(left(member, by or member.sid, is_lost=is_lost) for member in gone if not _stays(member, after, moved)),
            *(entered(member) for member in come if not _stays(member, before, moved)),
        ),
        replaces=replaces,
        is_lost=is_lost,
    )


def _missing(office: Office, other: Office) -> tuple[Member, ...]:
    """The members of an office that are not exactly so in the other."""
    pairs = ((member, other.holder(member.role, member.name)) for member in office.members)
    return tuple(member for member, there in pairs if member is not there and member != there)


def _stays(member: Member, office: Office, moved: set[str | None]) -> bool:
    """True if the same client has this name in `office`: with the same instance, or without one on the same connection,
    or because it moved between these two connections."""
    other = office.holder(member.role, member.name)
    if other is None or (other.name, other.instance) != (member.name, member.instance):
        return False
    return member.instance is not None or member.sid == other.sid or {member.sid, other.sid} <= moved


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
        """True if this node follows the office, and has missed a change of it."""
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
