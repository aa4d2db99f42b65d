"""How a node that is back seats its members again, and which of two members that claim one seat gets it.

While a node was out of reach, other nodes may have freed the seats of its members and given them away. The script
`restore.lua` decides for each seat, in one step: the member that has held the seat for longer gets it (`since`), and a
client that is back on another connection keeps its newer one. The member that loses is disconnected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

from a2c_smcp.errors import NameTaken, NotInOffice, OfficeHasAgent, SMCPError
from a2c_smcp.protocol.offices import Member
from a2c_smcp.server.directory.nodes import LeaseToken
from a2c_smcp.server.directory.records import SeatRecord, field_of
from a2c_smcp.server.directory.store import Published, Store

__all__ = ["LostSeat", "Recovered", "displaced_by_older", "recover_seats"]

_BATCH = 128  # a script that takes longer than some milliseconds keeps all nodes waiting


@dataclass(frozen=True, slots=True)
class LostSeat:
    """A member that could not have its seat back, and why."""

    member: Member
    why: SMCPError


@dataclass(slots=True)
class Recovered:
    """What was published on the way, which seats were given up, and which were lost to others."""

    published: Published = field(default_factory=list)
    given_up: list[Member] = field(default_factory=list)
    lost: list[LostSeat] = field(default_factory=list)


async def recover_seats(
    store: Store,
    token: LeaseToken,
    seats: Sequence[SeatRecord],
    survivors: Callable[[Sequence[Member]], Awaitable[Collection[Member]]],
    renew: Callable[[], Awaitable[None]],
) -> Recovered:
    """Makes the store agree with the node: frees the seats it no longer needs, and takes those it needs again.

    `renew` is awaited after each batch, to keep the lease alive.
    """
    alive = set(await survivors([seat.member for seat in seats]))
    wanted = [seat for seat in seats if seat.member in alive]
    known = {(seat.member.sid, seat.member.office_id, field_of(seat.member)) for seat in wanted}
    unknown = sorted(await store.held(token.node) - known)
    recovered = Recovered(given_up=[seat.member for seat in seats if seat.member not in alive])
    for start in range(0, max(len(wanted), len(unknown)), _BATCH):
        batch = slice(start, start + _BATCH)
        outcomes, published = await store.restore(token, unknown[batch], wanted[batch])
        recovered.published += published
        recovered.lost += _lost_seats(wanted[batch], outcomes)
        await renew()
    return recovered


def displaced_by_older(member: Member) -> SMCPError:
    """Why a member has lost its seat to one that held it before."""
    if member.role == "agent":
        return OfficeHasAgent(f"office {member.office_id!r} has an agent who was there before, and is back")
    return NameTaken(f"a computer called {member.name!r} was there before, and is back")


def _lost_seats(seats: Sequence[SeatRecord], outcomes: Sequence[str]) -> list[LostSeat]:
    reasons = {"taken": displaced_by_older, "replaced": _replaced_by_newer}
    pairs = zip((seat.member for seat in seats), outcomes, strict=True)
    return [LostSeat(member, reasons[outcome](member)) for member, outcome in pairs if outcome in reasons]


def _replaced_by_newer(member: Member) -> SMCPError:
    return NotInOffice(f"{member.name!r} is back in {member.office_id!r} on another connection")
