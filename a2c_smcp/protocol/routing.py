"""Which events go where. A target is only ever looked up inside the sender's own offices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from a2c_smcp.errors import AmbiguousComputer, ComputerNotFound, NameMismatch, NotInOffice, WrongRole
from a2c_smcp.protocol.events import OLDER_FIELDS, Event
from a2c_smcp.protocol.offices import Member, Notice, Office
from a2c_smcp.smcp import ListRoomRet, SessionInfo

__all__ = ["SENT_BEFORE", "Forward", "broadcast", "cancel", "forward", "is_sent_before", "list_room", "seated"]


_SPELLINGS = {role: (role, OLDER_FIELDS.get(role, role)) for role in ("agent", "computer")}


SENT_BEFORE = "sent_before"
"""A field of ours in `client:tool_call`: the agent has sent this `req_id` before, and does not know what became of it.

A Server that does not know it either passes it on only to a computer that deduplicates: the tool may have run.
"""


class Forward(NamedTuple):
    """A request on its way from an agent to a computer of the same office. It may have been `sent_before`."""

    event: str
    caller: Member
    target: Member
    data: dict[str, Any]
    sent_before: bool = False


def seated(event: Event, seats: Sequence[Member], data: Mapping[str, Any]) -> list[Member]:
    """Those of a connection's seats that may say this: of the right role, and with the name that it claims."""
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


def forward(event: Event, seats: Sequence[Member], offices: Iterable[Office], data: dict[str, Any]) -> Forward:
    """Where an agent's request goes. A computer elsewhere and one that does not exist are the same to it."""
    wanted, name = data.get("office_id"), data["computer"]
    callers = seated(event, seats, data)
    if wanted is not None:
        callers = [seat for seat in callers if seat.office_id == wanted]
        if not callers:
            raise NotInOffice(repr(wanted))
    seat_in = {caller.office_id: caller for caller in callers}
    found = [
        Forward(event.name, seat_in[office.office_id], target, data, is_sent_before(data))
        for office in offices
        if office.office_id in seat_in and (target := office.computers.get(name))
    ]
    if not found:
        raise ComputerNotFound(repr(name), computer=name)
    if len(found) > 1:
        raise AmbiguousComputer(repr(name), offices=sorted(way.target.office_id for way in found))
    return found[0]


def is_sent_before(data: Mapping[str, Any]) -> bool:
    return data.get(SENT_BEFORE) is True


def broadcast(event: Event, seats: Sequence[Member], data: Mapping[str, Any]) -> Notice:
    """What a computer's update becomes. Its office is added, for agents that sit in several."""
    (seat,) = seated(event, seats, data)
    assert event.notice
    return Notice(event.notice, seat.office_id, {**data, "office_id": seat.office_id}, skip_sid=seat.sid)


def cancel(
    event: Event, seats: Sequence[Member], data: Mapping[str, Any], offices: Collection[str] = ()
) -> list[Notice]:
    """Who hears of a cancel: the offices of the call, or every office of the agent where the call is not known."""
    assert event.notice
    return [
        Notice(event.notice, seat.office_id, dict(data), skip_sid=seat.sid)
        for seat in seated(event, seats, data)
        if not offices or seat.office_id in offices
    ]


def list_room(event: Event, seats: Sequence[Member], office: Office, data: Mapping[str, Any]) -> ListRoomRet:
    """Everybody in an office, for the agent that sits in it."""
    if not any(seat.office_id == office.office_id for seat in seated(event, seats, data)):
        raise NotInOffice(repr(office.office_id))
    return ListRoomRet(sessions=[_session(member) for member in office.members], req_id=data["req_id"])


def _session(member: Member) -> SessionInfo:
    """`dedup`: its client recognises a call that is sent again (WIRE §5)."""
    info = SessionInfo(sid=member.sid, name=member.name, role=member.role, office_id=member.office_id)
    more = {"a2c_version": member.version} | ({"dedup": True} if member.instance else {})
    return {**info, **more}  # type: ignore[typeddict-item]
