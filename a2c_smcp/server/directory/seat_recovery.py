"""How a node that is back seats its members again, and who loses a seat that two of them claim."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

from a2c_smcp.errors import NameTaken, NotInOffice, OfficeHasAgent, SMCPError
from a2c_smcp.protocol.offices import Member
from a2c_smcp.server.directory.nodes import Lease
from a2c_smcp.server.directory.records import Seat, field_of
from a2c_smcp.server.directory.store import Store, Told

__all__ = ["Loss", "Restored", "displaced", "restore"]

_BATCH = 128  # a script that takes longer than some milliseconds keeps everybody else waiting


@dataclass(frozen=True, slots=True)
class Loss:
    """A member that could not have its seat back."""

    member: Member
    why: SMCPError


@dataclass(slots=True)
class Restored:
    """What was published on the way, who was given up, and who lost a seat to somebody else."""

    told: Told = field(default_factory=list)
    given_up: list[Member] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)


async def restore(
    store: Store,
    lease: Lease,
    seats: Sequence[Seat],
    survivors: Callable[[Sequence[Member]], Awaitable[Collection[Member]]],
    in_between: Callable[[], Awaitable[None]],
) -> Restored:
    """Makes the store agree with the node: seats it no longer needs are given up, those it needs are taken again.

    `in_between` is awaited every now and then, to keep the lease alive.
    """
    alive = set(await survivors([seat.member for seat in seats]))
    wanted = [seat for seat in seats if seat.member in alive]
    known = {(seat.member.sid, seat.member.office_id, field_of(seat.member)) for seat in wanted}
    unknown = sorted(await store.held(lease.node) - known)
    restored = Restored(given_up=[seat.member for seat in seats if seat.member not in alive])
    for start in range(0, max(len(wanted), len(unknown)), _BATCH):
        batch = slice(start, start + _BATCH)
        outcomes, told = await store.restore(lease, unknown[batch], wanted[batch])
        restored.told += told
        restored.losses += _losses(wanted[batch], outcomes)
        await in_between()
    return restored


def displaced(member: Member) -> SMCPError:
    """Why a member has lost its seat to an older one."""
    if member.role == "agent":
        return OfficeHasAgent(f"office {member.office_id!r} has an agent who was there before, and is back")
    return NameTaken(f"a computer called {member.name!r} was there before, and is back")


def _losses(seats: Sequence[Seat], outcomes: Sequence[str]) -> list[Loss]:
    reasons = {"taken": displaced, "replaced": _replaced}
    pairs = zip((seat.member for seat in seats), outcomes, strict=True)
    return [Loss(member, reasons[outcome](member)) for member, outcome in pairs if outcome in reasons]


def _replaced(member: Member) -> SMCPError:
    return NotInOffice(f"{member.name!r} is back in {member.office_id!r} on another connection")
