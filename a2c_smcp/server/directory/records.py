"""The records of the store as text and as Python values: seats, offices, changes to commit and changes published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from a2c_smcp.protocol.codec import dumps, loads
from a2c_smcp.protocol.offices import Change, Member, Office, entered, left
from a2c_smcp.types import Role

__all__ = ["PublishedChange", "SeatRecord", "change_text", "difference", "field_of", "office_of", "seat_text"]

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
    """With notices only of differences that others see: a name that stays with its client has not left."""
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
    """Whether the same client has this name in `office`: on the same connection, with the same instance, or because it
    moved between these two connections."""
    other = office.holder(member.role, member.name)
    if other is None or other.name != member.name:
        return False
    is_resumed = member.instance is not None and member.instance == other.instance
    return is_resumed or member.sid == other.sid or {member.sid, other.sid} <= moved
