"""The names of computers' tools in an agent's registry: each gets the shortest one that is free."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from a2c_smcp.agent.types import Seat

__all__ = ["Offer", "Renaming", "ToolNames"]


class Offer(NamedTuple):
    """A tool of a computer, by the name that it has there."""

    seat: Seat
    tool: str


class Renaming(NamedTuple):
    """What a change did: names that are no longer used, and names with the tool that has them now."""

    lost: set[str]
    won: dict[str, Offer]


_FORMS: tuple[Callable[[Offer], str], ...] = (
    lambda offer: offer.tool,
    lambda offer: f"{offer.seat.computer}__{offer.tool}",
    lambda offer: f"{offer.seat.office}__{offer.seat.computer}__{offer.tool}",
)


class ToolNames:
    """A name for each tool. The first tool that claims a name keeps it as long as the tool is offered (WIRE §7).

    There are three forms: `tool`, `computer__tool`, `office__computer__tool`. A tool claims the shortest form, and the
    next longer one if it does not get that. Of the tools that claim a name, the one with the smallest number gets it.
    Nobody gets a name that a local tool has, that another tool has in a shorter form, or that begins with the name of
    another computer that is there. A tool that gets none of the three forms has no name.

    A change may cascade: a tool that loses its short name claims a longer one, and may take that from another. So
    `_change` settles the forms from the shortest to the longest, and for each only the names that were touched. Its
    cost depends on what changes, not on the number of tools.
    """

    def __init__(self) -> None:
        self._local: set[str] = set()
        self._numbers: dict[Offer, int] = {}
        self._claims: list[defaultdict[str, set[Offer]]] = [defaultdict(set) for _ in _FORMS]
        self._holders: list[dict[str, Offer]] = [{} for _ in _FORMS]
        self._seats: defaultdict[str, set[Seat]] = defaultdict(set)
        self._by_prefix: defaultdict[str, set[str]] = defaultdict(set)

    def of(self, offer: Offer) -> str | None:
        """The name of a tool, if it has one."""
        names = (form(offer) for form in _FORMS)
        return next((name for name, held in zip(names, self._holders, strict=True) if held.get(name) == offer), None)

    def enter(self, seat: Seat) -> Renaming:
        """A computer has entered: names that begin with its name belong to it."""
        touched: set[str] = set()
        for prefix in _prefixes_of(seat):
            self._seats[prefix].add(seat)
            touched |= self._by_prefix.get(prefix, set())
        return self._change(set(), set(), touched)

    def leave(self, seat: Seat) -> Renaming:
        """A computer has left. Its tools must have been removed before."""
        touched: set[str] = set()
        for prefix in _prefixes_of(seat):
            self._seats[prefix].discard(seat)
            if not self._seats[prefix]:
                del self._seats[prefix]
            touched |= self._by_prefix.get(prefix, set())
        return self._change(set(), set(), touched)

    def change(
        self,
        *,
        come: Iterable[Offer] = (),
        number: int = 0,
        gone: Iterable[Offer] = (),
        local: Collection[str] | None = None,
    ) -> Renaming:
        """Add and remove tools; a smaller `number` comes first. `local`: the names of all local tools, if changed."""
        moved = self._local.symmetric_difference(self._local if local is None else local)
        self._local ^= moved
        claiming, leaving = set(come), set(gone)
        for offer in leaving - claiming:
            self._numbers.pop(offer, None)
        self._numbers |= dict.fromkeys(claiming, number)
        return self._change(claiming, leaving, set(moved))

    def _change(self, claiming: set[Offer], leaving: set[Offer], touched: set[str]) -> Renaming:
        renaming = Renaming(set(), {})
        for level in range(len(_FORMS)):
            touched |= self._claim(level, claiming, leaving)
            won, lost = self._settle(level, touched, renaming)
            claiming, leaving = (claiming | lost) - won - leaving, leaving | won
        return renaming

    def _claim(self, level: int, claiming: set[Offer], leaving: set[Offer]) -> set[str]:
        claims, form = self._claims[level], _FORMS[level]
        for offer in claiming:
            name = form(offer)
            claims[name].add(offer)
            for prefix in _prefixes_in(name):
                self._by_prefix[prefix].add(name)
        for offer in leaving:
            if (name := form(offer)) in claims:
                claims[name].discard(offer)
        return {form(offer) for offer in claiming | leaving}

    def _settle(self, level: int, touched: set[str], renaming: Renaming) -> tuple[set[Offer], set[Offer]]:
        """Decide these names anew. Return the tools that got one, and those that lost one."""
        claims, holders = self._claims[level], self._holders[level]
        won, lost = set(), set()
        for name in touched:
            before, now = holders.pop(name, None), self._winner(level, name)
            if now:
                holders[name] = now
            if before and before != now:
                lost.add(before)
                renaming.lost.add(name)
            if now and now != before:
                won.add(now)
                renaming.won[name] = now
            if not claims.get(name):
                claims.pop(name, None)
                self._forget_prefixes(name)
        return won, lost

    def _winner(self, level: int, name: str) -> Offer | None:
        if name in self._local or any(name in held for held in self._holders[:level]):
            return None
        allowed = (offer for offer in self._claims[level].get(name, ()) if self._may_have(offer, name))
        return min(allowed, key=lambda offer: (self._numbers[offer], offer), default=None)

    def _may_have(self, offer: Offer, name: str) -> bool:
        """`<computer>__<tool>` belongs to that computer. If several computers fit, to the one with the longest name."""
        owned = [prefix for prefix in _prefixes_in(name) if prefix in self._seats]
        return not owned or offer.seat in self._seats[owned[-1]]

    def _forget_prefixes(self, name: str) -> None:
        if any(name in claims for claims in self._claims):
            return
        for prefix in _prefixes_in(name):
            if names := self._by_prefix.get(prefix):
                names.discard(name)
                if not names:
                    del self._by_prefix[prefix]


def _prefixes_of(seat: Seat) -> tuple[str, str]:
    return seat.computer, f"{seat.office}__{seat.computer}"


def _prefixes_in(name: str) -> Iterator[str]:
    """The possible computer prefixes of a qualified name, shortest first."""
    end = name.find("__")
    while end > 0:
        yield name[:end]
        end = name.find("__", end + 1)
