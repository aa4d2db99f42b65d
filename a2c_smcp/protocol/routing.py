"""Which events go where. A target is only ever looked up inside the sender's own offices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from typing_extensions import TypedDict

from a2c_smcp.errors import (
    AgentNotFound,
    AmbiguousComputer,
    ComputerNotFound,
    NameMismatch,
    NotInOffice,
    WrongRole,
)
from a2c_smcp.protocol.events import OLDER_FIELDS, EventSpec
from a2c_smcp.protocol.offices import Member, Notice, Office
from a2c_smcp.smcp import ListRoomRet, SessionInfo
from a2c_smcp.types import Role

__all__ = [
    "SENT_BEFORE",
    "Forward",
    "RoutingFields",
    "Tell",
    "broadcast",
    "cancel",
    "forward",
    "list_room",
    "seated",
    "tell",
]


_SPELLINGS = {role: (role, OLDER_FIELDS.get(role, role)) for role in ("agent", "computer")}


SENT_BEFORE = "sent_before"
"""A field of ours in `client:tool_call`: the agent has sent this `req_id` before, and has no answer.

A Server that does not know the call either passes it on only to a computer that deduplicates: the tool may have run.
"""


class RoutingFields(TypedDict, total=False):
    """The fields of a payload that decisions depend on, after `codec.decode` has checked them."""

    role: Role
    name: str
    office_id: str
    instance: str
    agent: str
    robot_id: str
    req_id: str
    computer: str
    tool_name: str
    timeout: int
    sent_before: object
    extend: bool
    kid: str


class Forward(NamedTuple):
    """Where a request goes: from an agent to a computer of the same office."""

    caller: Member
    target: Member


class Tell(NamedTuple):
    """A notice for one agent only."""

    notice: Notice
    agent: Member


def seated(event: EventSpec, seats: Sequence[Member], data: RoutingFields) -> list[Member]:
    """Those of a connection's seats that may send this event: of the right role, and with the name that it claims."""
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
        if office.office_id in seat_in and (target := office.computers.get(name))
    ]
    if not found:
        raise ComputerNotFound(repr(name), computer=name)
    if len(found) > 1:
        raise AmbiguousComputer(repr(name), offices=sorted(each.target.office_id for each in found))
    return found[0]


def broadcast(event: EventSpec, seats: Sequence[Member], data: RoutingFields) -> Notice:
    """The notice of a computer's update. Its office is added, for agents that have a seat in several."""
    (seat,) = seated(event, seats, data)
    assert event.notice
    return Notice(event.notice, seat.office_id, {**dict(data), "office_id": seat.office_id}, skip_sid=seat.sid)


def tell(event: EventSpec, seat: Member, office: Office, data: RoutingFields) -> Tell:
    """What a computer tells the agent of its office, which must be called as the computer says.

    The computer's name and office are added, so that the agent knows who told it.
    """
    names = {name for spelling in _SPELLINGS["agent"] if (name := data.get(spelling)) is not None}
    agent = office.agent
    if agent is None or names != {agent.name}:
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
    more = {"a2c_version": member.version} | ({"dedup": True} if member.instance else {})
    return {**info, **more}  # type: ignore[typeddict-item]
