"""Seats in offices: `join`, `leave` and `vacate` take snapshots, and return the change to commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import NamedTuple

from typing_extensions import TypedDict

from a2c_smcp.errors import (
    AgentNotFound,
    AmbiguousComputer,
    ComputerNotFound,
    NameMismatch,
    NameTaken,
    NotInOffice,
    OfficeHasAgent,
    RateLimited,
    WrongRole,
)
from a2c_smcp.protocol.events import OLDER_FIELDS, EventSpec
from a2c_smcp.smcp import ENTER_OFFICE_NOTIFICATION, LEAVE_OFFICE_NOTIFICATION, ListRoomRet, SessionInfo
from a2c_smcp.types import Role

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

    @property
    def seat(self) -> str:
        """The identity of the seat, for others: the same for a client that is back, another for any other client.

        A client is recognised by its instance. One without an instance cannot come back: its seat ends with its
        connection. The text is a digest of what only this Server knows, and it opens nothing (WIRE §4).
        """
        client = self.instance or self.sid
        return sha256("\0".join(("seat", self.office_id, self.role, self.name, client)).encode()).hexdigest()[:32]


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
    """A notice to the other members of an office."""

    event: str
    office_id: str
    data: Mapping[str, object]
    skip_sid: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A change, committed as a whole and only while every office in `expects` still has the version given there.

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
    """The hash of a client's secret that a seat keeps: equal only for the same principal, role, name and instance."""
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
        if newcomer.role == "agent":
            raise OfficeHasAgent(f"office {newcomer.office_id!r} has an agent already, {holder.name!r}")
        raise NameTaken(f"another computer is called {newcomer.name!r}")


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


def present(office: Office) -> Notice:
    """For a computer that has joined: the agent that it finds, or that there is none."""
    if office.agent:
        return entered(office.agent)
    return Notice(LEAVE_OFFICE_NOTIFICATION, office.office_id, {"office_id": office.office_id, "lost": True})


def left(member: Member, skip_sid: str, *, is_lost: bool = False) -> Notice:
    """Says `lost` if the connection was lost and its client has an instance: only such a client can come back."""
    lost = {"lost": True} if is_lost and member.instance else {}
    return Notice(LEAVE_OFFICE_NOTIFICATION, member.office_id, _who(member) | lost, skip_sid=skip_sid)


def _who(member: Member) -> dict[str, object]:
    return {"office_id": member.office_id, member.role: member.name, "seat": member.seat}


def _known(seat: Member, among: list[Member]) -> bool:
    """True if the other members already know this seat: they see its name and its client, not its connection."""
    who = seat.office_id, seat.name, seat.instance
    return any((other.office_id, other.name, other.instance) == who for other in among)


# Which events go where. A target is only ever looked up inside the sender's own offices.

_SPELLINGS = {role: (role, OLDER_FIELDS.get(role, role)) for role in ("agent", "computer")}


SENT_BEFORE = "sent_before"
"""A field of ours in `client:tool_call`: the agent has sent this `req_id` before, and has no answer.

A Server that does not know the call either passes it on only to a computer that deduplicates: the tool may have run.
With `seat`, that of the computer that it was first sent to, it goes to no other computer that has its name by now.
"""


class RoutingFields(TypedDict, total=False):
    """The fields of a payload that decisions depend on, after `codec.decode` has checked them."""

    role: Role
    name: str
    office_id: str
    instance: str
    seats: bool
    agent: str
    robot_id: str
    req_id: str
    computer: str
    tool_name: str
    timeout: int
    sent_before: object
    extend: bool
    kid: str
    seat: str


class Forward(NamedTuple):
    """Where a request goes: from an agent to a computer of the same office."""

    caller: Member
    target: Member


class Tell(NamedTuple):
    """A notice for one agent only; for nobody if it is meant for a seat that this agent does not have."""

    notice: Notice
    agent: Member | None


def seated(event: EventSpec, seats: Sequence[Member], data: RoutingFields) -> list[Member]:
    """The seats of a connection that may send this event: of the right role, and with the name that it claims."""
    if not seats:
        raise NotInOffice("join an office first")
    if seats[0].role not in event.senders:
        raise WrongRole(f"{event.name} is not for a {seats[0].role}")
    speaker = seats[0].role
    claims = [claim for spelling in _SPELLINGS[speaker] if (claim := data.get(spelling)) is not None]
    speaking = [seat for seat in seats if claims.count(seat.name) == len(claims)]
    if not speaking:
        names = {seat.name for seat in seats}
        stranger = next((claim for claim in claims if claim not in names), claims[0])
        raise NameMismatch(f"this connection is not {speaker} {stranger!r}")
    return speaking


def forward(event: EventSpec, seats: Sequence[Member], offices: Iterable[Office], data: RoutingFields) -> Forward:
    """Where an agent's request goes. A computer of another office is not found, like one that does not exist."""
    wanted, name = data.get("office_id"), data["computer"]
    callers = seated(event, seats, data)
    if wanted is not None:
        callers = [seat for seat in callers if seat.office_id == wanted]
        if not callers:
            raise NotInOffice(repr(wanted))
    seat_in = {caller.office_id: caller for caller in callers}
    found = [
        Forward(seat_in[office.office_id], target)
        for office in offices
        if office.office_id in seat_in and (target := _meant(office, data))
    ]
    if not found:
        raise ComputerNotFound(repr(name), computer=name)
    if len(found) > 1:
        raise AmbiguousComputer(repr(name), offices=sorted(each.target.office_id for each in found))
    return found[0]


def _meant(office: Office, data: RoutingFields) -> Member | None:
    """The computer that a request names. With another `seat` than its own it is refused, later if it may have run."""
    target = office.computers.get(data["computer"])
    is_meant = target and (data.get("seat") in (None, target.seat) or data.get(SENT_BEFORE) is True)
    return target if is_meant else None


def broadcast(event: EventSpec, seats: Sequence[Member], data: RoutingFields) -> Notice:
    """The notice of a computer's update. Its office is added, for agents that have a seat in several."""
    (seat,) = seated(event, seats, data)
    assert event.notice
    return Notice(event.notice, seat.office_id, {**dict(data), "office_id": seat.office_id}, skip_sid=seat.sid)


def tell(event: EventSpec, seat: Member, office: Office, data: RoutingFields) -> Tell:
    """Route a tell of a computer to the agent of its office, which must have the name that the computer gives.

    A computer that also gives a `seat` means that agent only, not the next one of this name (WIRE §4). The computer's
    name and office are added, so that the agent knows who told it.
    """
    names = {name for spelling in _SPELLINGS["agent"] if (name := data.get(spelling)) is not None}
    agent = office.agent
    if data.get("seat") is not None:
        agent = agent if agent and names == {agent.name} and data["seat"] == agent.seat else None
    elif agent is None or names != {agent.name}:
        stranger = next((name for name in names if not (agent and name == agent.name)), "")
        raise AgentNotFound(repr(stranger), agent=stranger)
    assert event.notice
    told = {**dict(data), "computer": seat.name, "office_id": seat.office_id}
    return Tell(Notice(event.notice, seat.office_id, told, skip_sid=seat.sid), agent)


def cancel(
    event: EventSpec, seats: Sequence[Member], data: RoutingFields, offices: Collection[str] = ()
) -> list[Notice]:
    """The notices of a cancel: to the offices of the call, or to every office of the agent if the call is unknown."""
    assert event.notice
    return [
        Notice(event.notice, seat.office_id, dict(data), skip_sid=seat.sid)
        for seat in seated(event, seats, data)
        if not offices or seat.office_id in offices
    ]


def list_room(event: EventSpec, seats: Sequence[Member], office: Office, data: RoutingFields) -> ListRoomRet:
    """All members of an office, for its agent."""
    if not any(seat.office_id == office.office_id for seat in seated(event, seats, data)):
        raise NotInOffice(repr(office.office_id))
    return ListRoomRet(sessions=[_session(member) for member in office.members], req_id=data["req_id"])


def _session(member: Member) -> SessionInfo:
    """`dedup` says that its client recognises a call that is sent again (WIRE §5)."""
    info = SessionInfo(sid=member.sid, name=member.name, role=member.role, office_id=member.office_id)
    more = {"a2c_version": member.version, "seat": member.seat} | ({"dedup": True} if member.instance else {})
    return {**info, **more}  # type: ignore[typeddict-item]
