"""What a million computers would take, worked out on paper from what was measured. The sums are shown as they are done.

Valkey runs commands on one core: a second of its time is all there is in a second.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.table import Row, show

__all__ = ["CLUSTERS", "Costs", "Message", "tell"]

CLUSTERS = (10, 100, 1000)
"""Nodes."""

COMPUTERS, TO_AN_OFFICE = 1_000_000, 10
OFFICES = COMPUTERS // TO_AN_OFFICE
SEATS = COMPUTERS + OFFICES
PEAK = 10
JOINS = SEATS * 4 / 86_400 * PEAK
CALLS, CALL_TIME = OFFICES / 10, 1.0
NOTICES = COMPUTERS / 60
WATCHES = 4
ASSUMED = f"""\
{COMPUTERS:,} computers, {TO_AN_OFFICE} to an office, each office with its agent: {OFFICES:,} offices, {SEATS:,} seats
each connects 4 times a day, at the worst hour {PEAK} times as often: {JOINS:,.0f} joins a second, as many leaves
each agent calls every 10 s, for {CALL_TIME:g} s: {CALLS:,.0f} calls a second
each computer gives a notice a minute: {NOTICES:,.0f} a second
members are spread over n nodes by chance: an office spans n × (1 − (1 − 1/n)^{TO_AN_OFFICE + 1}) of them
"""

MICRO, MB, GB = 1e-6, 1e6, 1e9


@dataclass(frozen=True, slots=True)
class Message:
    """Seconds of the store's time for what one node hears, and for each further one."""

    first: float
    further: float


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of the store's time, and bytes. Messages are cheaper in a crowd, where the store takes many at a time."""

    join: float
    leave: float
    bury: float
    restore: float
    crowded: Message
    alone: Message
    beat: dict[int, float]
    watch: float
    watched: float
    seat: float
    subscription: float
    mirrored_office: float


@dataclass(frozen=True, slots=True)
class _Sum:
    """A line of a sum: so many times so much."""

    what: str
    times: float
    each: float

    @property
    def total(self) -> float:
        return self.times * self.each

    def __str__(self) -> str:
        return f"{self.times:,.0f} × {self.each / MICRO:.1f} µs = {self.total:.3f}"


def tell(costs: Costs) -> None:
    print(f"\nA million computers, on paper\n\n{ASSUMED}")
    show([_summary(nodes, costs) for nodes in CLUSTERS])
    print("\nThe store, in a second of the worst hour: so many × so long = seconds of its core\n")
    show(_worked({nodes: _store(nodes, costs, costs.crowded) for nodes in CLUSTERS}))


def _spans(nodes: int) -> float:
    """How many nodes have members of an office."""
    return nodes * (1 - (1 - 1 / nodes) ** (TO_AN_OFFICE + 1))


def _store(nodes: int, costs: Costs, message: Message) -> list[_Sum]:
    crossing = CALLS * (1 - 1 / nodes)
    asked = min(nodes - 1, CALLS * CALL_TIME / nodes)
    return [
        _Sum("joins, and who hears of them", JOINS, costs.join),
        _Sum("leaves, and who hears of them", JOINS, costs.leave),
        _Sum("leases", nodes, costs.beat[nodes]),
        _Sum("nodes that watch those they have asked", nodes * WATCHES, costs.watch + costs.watched * asked),
        _Sum("calls between nodes, there and back", 2 * crossing, message.first),
        _Sum("notices", NOTICES, message.first + message.further * (_spans(nodes) - 1)),
    ]


def _worked(sums: dict[int, list[_Sum]]) -> list[Row]:
    lines = zip(*sums.values(), strict=True)
    return [{"": line[0].what, **{_nodes(n): str(each) for n, each in zip(sums, line, strict=True)}} for line in lines]


def _nodes(number: int) -> str:
    return f"{number:,} nodes"


def _summary(nodes: int, costs: Costs) -> Row:
    spans = _spans(nodes)
    followed = OFFICES * spans / nodes
    memory = SEATS * costs.seat + OFFICES * spans * costs.subscription
    return {
        "nodes": nodes,
        "nodes an office spans": round(spans, 1),
        "offices a node follows": round(followed),
        "the store's core, s/s": _busy(nodes, costs, costs.crowded),
        "if each message came alone": _busy(nodes, costs, costs.alone),
        "its memory GB": round(memory / GB, 2),
        "a node's mirror MB": round(followed * costs.mirrored_office / MB),
        "a node dies: seats": SEATS // nodes,
        "to bury s": _s(SEATS / nodes * costs.bury),
        "to join anew s": _s(SEATS / nodes * costs.join),
        "the store forgets: to restore s": _s(SEATS * costs.restore),
    }


def _busy(nodes: int, costs: Costs, message: Message) -> float:
    return _s(sum(each.total for each in _store(nodes, costs, message)))


def _s(seconds: float) -> float:
    return round(seconds, 3)
