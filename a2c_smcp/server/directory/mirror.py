"""What a node knows of offices without asking: snapshots that move on with what is published about them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from a2c_smcp.protocol.offices import Change, Member, Office
from a2c_smcp.server.directory.records import News, Seat, difference

__all__ = ["Mirror", "Turn"]


@dataclass(frozen=True, slots=True)
class Turn:
    """An office has moved on. `change` is what that means for whoever was told of everything before."""

    office: Office
    change: Change


@dataclass(slots=True)
class _View:
    """An office as of the change stamped `at`; out of step if more is known to have happened, up to `heard`."""

    office: Office
    at: int
    heard: int = 0

    @property
    def is_in_step(self) -> bool:
        return self.heard <= self.at


class Mirror:
    """Offices that this node follows, and the seats of its own members, which keep an office from being forgotten."""

    def __init__(self, node: str, most: int) -> None:
        self._node = node
        self._most = most
        self._views: OrderedDict[str, _View] = OrderedDict()
        self._mine: dict[str, dict[str, Seat]] = {}
        self._at_hand: dict[str, tuple[Member, ...]] = {}
        self._pins: dict[str, set[str]] = {}

    def __contains__(self, office_id: str) -> bool:
        return office_id in self._views

    def office(self, office_id: str) -> Office | None:
        view = self._views.get(office_id)
        return view.office if view and view.is_in_step else None

    def seats(self, sid: str) -> tuple[Member, ...] | None:
        return self._at_hand.get(sid)

    def mine(self) -> tuple[Seat, ...]:
        """The seats of this node's members."""
        return tuple(seat for seats in self._mine.values() for seat in seats.values())

    def pinned(self) -> tuple[str, ...]:
        return tuple(self._pins)

    def see(self, office: Office, seats: Iterable[Seat] | None, at: int) -> Turn | None:
        """A snapshot fresh from the store; without its seats, if it was known."""
        view = self._views.get(office.office_id)
        if view and at < view.at:
            return None
        if seats is None:
            if view and view.office.version == office.version:
                view.at = at
            return None
        own = {seat.member.sid: seat for seat in seats if seat.node == self._node}
        for sid in self._pins.get(office.office_id, set()) - own.keys():
            self.forget(self._mine[sid][office.office_id].member)
        for seat in own.values():
            self._keep(seat)
        if view is None:
            self._views[office.office_id] = _View(office, at)
            return None
        view.at = at
        change = difference(view.office, office)
        turn = _turn(view, office, change)
        return turn if change.leaves or change.enters else None

    def hear(self, office_id: str, news: News) -> Turn | None:
        """What was published. If it does not follow on what is known, the office is out of step until seen again."""
        view = self._views.get(office_id)
        if view is None or news.at <= view.at:
            return None
        if news.prev != view.office.version or not view.is_in_step:
            view.heard = max(view.heard, news.at)
            return None
        after = news.applied_to(view.office)
        view.at = news.at
        turn = _turn(view, after, news.change(view.office, after))
        if news.buried != self._node:  # those who are buried alive come back
            for member in turn.change.leaves:
                self.forget(member)
        for seat in news.enters:
            if seat.node == self._node:
                self._keep(seat)
        return turn

    def own(self, sid: str, office_id: str) -> Member | None:
        """The seat that a member of this node has there."""
        seat = self._mine.get(sid, {}).get(office_id)
        return seat.member if seat else None

    def is_behind(self, office_id: str) -> bool:
        """Whether something has happened there that this node has not seen, though it follows the office."""
        view = self._views.get(office_id)
        return view is not None and not view.is_in_step

    def forget(self, member: Member) -> None:
        """The member has no seat there any more, or is none of ours."""
        seats = self._mine.get(member.sid, {})
        if seats.pop(member.office_id, None) is None:
            return
        self._hand_over(member.sid)
        self._pins[member.office_id].discard(member.sid)
        if not self._pins[member.office_id]:
            del self._pins[member.office_id]
            if member.office_id in self._views:
                self._views.move_to_end(member.office_id)

    def overflow(self) -> list[str]:
        """Drops what is too much, the offices first that nobody of ours has sat in for longest."""
        spare = len(self._views) - len(self._pins) - self._most
        return self._drop(spare + self._most // 8) if spare > 0 else []

    def rewind(self) -> None:
        """Nothing was heard for a while. Only our own offices are kept, as they were, and the clock may start anew."""
        self._drop(len(self._views))
        for view in self._views.values():
            view.at = view.heard = -1

    def _drop(self, count: int) -> list[str]:
        idle = [office_id for office_id in self._views if office_id not in self._pins][:count]
        for office_id in idle:
            del self._views[office_id]
        return idle

    def _keep(self, seat: Seat) -> None:
        sid, office_id = seat.member.sid, seat.member.office_id
        self._mine.setdefault(sid, {})[office_id] = seat
        self._pins.setdefault(office_id, set()).add(sid)
        self._hand_over(sid)

    def _hand_over(self, sid: str) -> None:
        """What is asked for with every call is ready to be given."""
        if seats := self._mine[sid]:
            self._at_hand[sid] = tuple(seat.member for seat in seats.values())
        else:
            del self._mine[sid], self._at_hand[sid]


def _turn(view: _View, after: Office, change: Change) -> Turn:
    view.office = after
    return Turn(after, change)
