"""Under which names an agent's registry shows the tools of computers. The shortest that is nobody else's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from a2c_smcp.agent.types import Seat

__all__ = ["Names", "Offer", "Renaming", "names_of"]


class Offer(NamedTuple):
    """A tool by the name it has on its computer."""

    seat: Seat
    tool: str


class Renaming(NamedTuple):
    """The names that tools had, and those that tools have now."""

    lost: set[str]
    won: dict[str, Offer]


_FORMS: tuple[Callable[[Offer], str], ...] = (
    lambda offer: offer.tool,
    lambda offer: f"{offer.seat.computer}__{offer.tool}",
    lambda offer: f"{offer.seat.office}__{offer.seat.computer}__{offer.tool}",
)


class Names:
    """A name for each tool, whatever the order in which the computers came.

    A tool claims the shortest form of its name, and the next longer one where it does not get that. Who claims a name
    alone gets it, unless it is the name of a local tool or of a tool that has it in a shorter form. Those whom even the
    longest form does not tell apart get none. A change costs what it changes, however many tools there are.
    """

    def __init__(self) -> None:
        self._local: set[str] = set()
        self._claims: list[defaultdict[str, set[Offer]]] = [defaultdict(set) for _ in _FORMS]
        self._holders: list[dict[str, Offer]] = [{} for _ in _FORMS]

    def of(self, offer: Offer) -> str | None:
        """What it is called, if it has a name."""
        names = (form(offer) for form in _FORMS)
        return next((name for name, held in zip(names, self._holders, strict=True) if held.get(name) == offer), None)

    def change(
        self, *, come: Iterable[Offer] = (), gone: Iterable[Offer] = (), local: Collection[str] | None = None
    ) -> Renaming:
        """Tools that come and go, and the names of all local tools if those have changed."""
        moved = self._local.symmetric_difference(self._local if local is None else local)
        self._local ^= moved
        touched, claiming, leaving = set(moved), set(come), set(gone)
        renaming = Renaming(set(), {})
        for level in range(len(_FORMS)):
            touched |= self._claim(level, claiming, leaving)
            won, lost = self._settle(level, touched, renaming)
            claiming, leaving = (claiming | lost) - won - leaving, leaving | won
        return renaming

    def _claim(self, level: int, claiming: set[Offer], leaving: set[Offer]) -> set[str]:
        claims, form = self._claims[level], _FORMS[level]
        for offer in claiming:
            claims[form(offer)].add(offer)
        for offer in leaving:
            if (name := form(offer)) in claims:
                claims[name].discard(offer)
        return {form(offer) for offer in claiming | leaving}

    def _settle(self, level: int, touched: set[str], renaming: Renaming) -> tuple[set[Offer], set[Offer]]:
        """Who has got one of these names, and who had it before."""
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
        return won, lost

    def _winner(self, level: int, name: str) -> Offer | None:
        claims = self._claims[level].get(name, ())
        if len(claims) != 1 or name in self._local or any(name in held for held in self._holders[:level]):
            return None
        return next(iter(claims))


def names_of(offered: Mapping[Seat, Iterable[str]], local: Collection[str] = ()) -> dict[Offer, str]:
    """A name for each tool that can have one."""
    names = Names()
    offers = [Offer(seat, tool) for seat, tools in offered.items() for tool in tools]
    names.change(come=offers, local=local)
    return {offer: name for offer in offers if (name := names.of(offer))}
