"""Who sits where: `join`, `leave` and `vacate` take snapshots and return the change to commit. They change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256

from a2c_smcp.errors import Forbidden, NameTaken, NotInOffice, OfficeHasAgent, RateLimited, WrongRole
from a2c_smcp.smcp import ENTER_OFFICE_NOTIFICATION, LEAVE_OFFICE_NOTIFICATION
from a2c_smcp.types import Role

__all__ = [
    "MAX_SEATS",
    "Change",
    "Member",
    "Notice",
    "Office",
    "entered",
    "instance_digest",
    "join",
    "leave",
    "left",
    "part_of",
    "seats_of",
    "vacate",
]

MAX_SEATS = 64
"""Of one connection, unless configured otherwise (WIRE §6)."""


@dataclass(frozen=True, slots=True)
class Member:
    """A seat: one connection in one office under one name.

    `instance` is a digest of principal, role, name and the secret of the client process: equal digests are the same
    client, back on another connection. `owner` is the principal, `version` the protocol generation it speaks.
    """

    sid: str
    role: Role
    name: str
    office_id: str
    instance: str | None = field(default=None, repr=False)
    owner: str = ""
    version: str = "0.1"


@dataclass(frozen=True, slots=True)
class Office:
    """A snapshot. Its shape allows one agent, and one computer of each name."""

    office_id: str
    agent: Member | None = None
    computers: Mapping[str, Member] = field(default_factory=dict)
    version: int = 0

    @property
    def members(self) -> tuple[Member, ...]:
        computers = tuple(self.computers.values())
        return (self.agent, *computers) if self.agent else computers

    def holder(self, role: Role, name: str) -> Member | None:
        """The member that has the seat which a newcomer of this role and name would take."""
        return self.agent if role == "agent" else self.computers.get(name)

    def seat_of(self, sid: str) -> Member | None:
        if self.agent and self.agent.sid == sid:
            return self.agent
        return next((computer for computer in self.computers.values() if computer.sid == sid), None)


@dataclass(frozen=True, slots=True)
class Notice:
    """What the other members of an office are told."""

    event: str
    office_id: str
    data: Mapping[str, object]
    skip_sid: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """It is committed as a whole, and only while every office in `expects` still has the version given there.

    `replaces` is the older connection whose seats the newcomer has taken over. With `is_lost` the connection of the
    members that leave was lost: they may come back.
    """

    expects: Mapping[str, int] = field(default_factory=dict)
    leaves: tuple[Member, ...] = ()
    enters: tuple[Member, ...] = ()
    notices: tuple[Notice, ...] = ()
    replaces: str | None = None
    is_lost: bool = False


def instance_digest(owner: str, role: Role, name: str, instance: str) -> str:
    """What a seat keeps of a client's secret. It is equal only for the same principal, role, name and instance."""
    return sha256("\0".join((owner, role, name, instance)).encode()).hexdigest()


def join(
    newcomer: Member,
    offices: Iterable[Office],
    ghost: str | None = None,
    may_keep: Callable[[Member], bool] = lambda seat: True,
    most: int = MAX_SEATS,
) -> Change:
    """`newcomer` takes a seat. Raises `WrongRole`, `OfficeHasAgent`, `NameTaken` or `RateLimited`.

    `ghost` is an older connection of the same client, whose seats the newcomer takes over. `offices` are the one that
    is joined and all in which either connection has a seat. The seats that the client has before are compared with
    those that it shall have after: members who see no difference hear no notice. A seat that the client `may_keep` no
    longer is given up. A connection has at most `most` seats.
    """
    by_id = {office.office_id: office for office in offices}
    mine = seats_of(newcomer.sid, by_id.values())
    before = mine + (seats_of(ghost, by_id.values()) if ghost else [])
    _check_seat(newcomer, mine, before, by_id[newcomer.office_id])
    after = [*_kept(newcomer, before, may_keep), newcomer]
    if len(after) > most:
        raise RateLimited(f"a connection has at most {most} seats, leave an office first")
    return Change(
        expects={office.office_id: office.version for office in by_id.values()},
        leaves=_without(before, after),
        enters=_without(after, before),
        notices=(
            *(left(seat, newcomer.sid) for seat in before if not _known(seat, after)),
            *(entered(seat) for seat in after if not _known(seat, before)),
        ),
        replaces=ghost,
    )


def _check_seat(newcomer: Member, mine: list[Member], before: list[Member], office: Office) -> None:
    """Raises what refuses the newcomer its seat: the connection has another role, or another client has the seat."""
    if any(seat.role != newcomer.role for seat in mine):
        raise WrongRole(f"this connection is already {mine[0].role} {mine[0].name!r}")
    holder = office.holder(newcomer.role, newcomer.name)
    if holder and holder not in before:
        raise _taken(newcomer, holder)


def _kept(newcomer: Member, before: list[Member], may_keep: Callable[[Member], bool]) -> list[Member]:
    """The other seats that the client keeps, on its new connection. A computer has one seat only."""
    if newcomer.role != "agent":
        return []
    elsewhere = [seat for seat in before if seat.office_id != newcomer.office_id and may_keep(seat)]
    return [replace(seat, sid=newcomer.sid, version=newcomer.version) for seat in elsewhere]


def _without(seats: list[Member], others: list[Member]) -> tuple[Member, ...]:
    return tuple(seat for seat in seats if seat not in others)


def leave(sid: str, office: Office, *, is_lost: bool = False) -> Change:
    """The connection gives up its seat in this office, or was lost. Raises `NotInOffice`."""
    if not office.seat_of(sid):
        raise NotInOffice(repr(office.office_id))
    return vacate(sid, [office], is_lost=is_lost)


def vacate(sid: str, offices: Iterable[Office], *, is_lost: bool = False) -> Change:
    """The connection gives up every seat it has in these offices, or was lost."""
    offices = tuple(offices)
    seats = seats_of(sid, offices)
    return Change(
        expects={office.office_id: office.version for office in offices},
        leaves=tuple(seats),
        notices=tuple(left(seat, sid, is_lost=is_lost) for seat in seats),
        is_lost=is_lost,
    )


def part_of(change: Change, office_id: str) -> Change:
    """The part of a change that concerns one of its offices."""
    return replace(
        change,
        leaves=tuple(seat for seat in change.leaves if seat.office_id == office_id),
        enters=tuple(seat for seat in change.enters if seat.office_id == office_id),
        notices=tuple(notice for notice in change.notices if notice.office_id == office_id),
    )


def seats_of(sid: str, offices: Iterable[Office]) -> list[Member]:
    return [seat for office in offices if (seat := office.seat_of(sid))]


def entered(member: Member) -> Notice:
    return Notice(ENTER_OFFICE_NOTIFICATION, member.office_id, _who(member), skip_sid=member.sid)


def left(member: Member, skip_sid: str, *, is_lost: bool = False) -> Notice:
    """Says `lost` if the connection was lost and its client has an instance: only such a client can come back."""
    lost = {"lost": True} if is_lost and member.instance else {}
    return Notice(LEAVE_OFFICE_NOTIFICATION, member.office_id, _who(member) | lost, skip_sid=skip_sid)


def _who(member: Member) -> dict[str, object]:
    return {"office_id": member.office_id, member.role: member.name}


def _known(seat: Member, among: list[Member]) -> bool:
    """Whether the other members already know this seat: they see its name, not its connection."""
    return any((other.office_id, other.name) == (seat.office_id, seat.name) for other in among)


def _taken(newcomer: Member, holder: Member) -> Forbidden:
    if newcomer.role == "agent":
        return OfficeHasAgent(f"office {newcomer.office_id!r} has an agent already, {holder.name!r}")
    return NameTaken(f"another computer is called {newcomer.name!r}")
