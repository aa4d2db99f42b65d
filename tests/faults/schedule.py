"""Which faults happen, to whom, for how long and in which order: chosen by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Do", "Fault", "Whom", "choose_faults"]


class Whom(StrEnum):
    """Kinds of members that a fault can hit. A node is a Server; several of them share a store."""

    server = "server"
    computer = "computer"
    agent = "agent"
    store = "store"
    everybody = "everybody"


class Do(StrEnum):
    """What is done to it."""

    kill = "kill"
    pause = "pause"
    cut = "cut"
    silence = "silence"


@dataclass(frozen=True, slots=True)
class Fault:
    """`seconds` is how long it lasts; `pick` chooses the victim among those of its kind."""

    do: Do
    whom: Whom
    seconds: float
    pick: int = 0
    at_once_with: Fault | None = None

    @property
    def name(self) -> str:
        also = f" + {self.at_once_with.name}" if self.at_once_with else ""
        return f"{self.do} {self.whom}{also}"


_SHORT, _MIDDLE, _LONG = (0.3, 1.0), (0.3, 6.0), (8.0, 20.0)

_Row = tuple[Do, Whom, tuple[float, float], int]
_ALWAYS: tuple[_Row, ...] = (
    (Do.kill, Whom.server, _SHORT, 3),
    (Do.kill, Whom.server, _MIDDLE, 2),
    (Do.kill, Whom.server, _LONG, 1),
    (Do.kill, Whom.computer, _SHORT, 3),
    (Do.kill, Whom.computer, _MIDDLE, 2),
    (Do.kill, Whom.agent, _MIDDLE, 2),
    (Do.pause, Whom.server, _MIDDLE, 2),
    (Do.pause, Whom.computer, _MIDDLE, 3),
    (Do.pause, Whom.agent, _MIDDLE, 2),
    (Do.cut, Whom.computer, (0.0, 0.0), 2),
    (Do.cut, Whom.agent, (0.0, 0.0), 2),
    (Do.cut, Whom.everybody, (0.0, 0.0), 2),
    (Do.silence, Whom.computer, _MIDDLE, 1),
    (Do.silence, Whom.agent, _MIDDLE, 1),
    (Do.silence, Whom.everybody, _MIDDLE, 1),
)
_WITH_STORE: tuple[_Row, ...] = (
    (Do.kill, Whom.store, _SHORT, 2),
    (Do.kill, Whom.store, _MIDDLE, 1),
    (Do.pause, Whom.store, _SHORT, 1),
    (Do.pause, Whom.store, _MIDDLE, 1),
    (Do.cut, Whom.store, (0.0, 0.0), 1),
    (Do.silence, Whom.store, _MIDDLE, 1),
)
_BOTH = ((Do.kill, Whom.server), (Do.kill, Whom.computer))


def choose_faults(seed: int, *, with_store: bool) -> Iterator[list[Fault]]:
    """Rounds without end, each with every row of the tables, in another order."""
    chance = random.Random(seed)
    while True:
        rows = [*_ALWAYS, *(_WITH_STORE if with_store else ())]
        faults = [_one(chance, do, whom, seconds) for do, whom, seconds, times in rows for _ in range(times)]
        faults += [_two(chance) for _ in range(2)]
        chance.shuffle(faults)
        yield faults


def _one(chance: random.Random, do: Do, whom: Whom, seconds: tuple[float, float]) -> Fault:
    return Fault(do, whom, round(chance.uniform(*seconds), 2), chance.randrange(1000))


def _two(chance: random.Random) -> Fault:
    """A Server and a computer are killed together: neither remembers what was under way."""
    (do, whom), second = _BOTH
    with_it = _one(chance, *second, _SHORT)
    return Fault(do, whom, round(chance.uniform(*_SHORT), 2), chance.randrange(1000), at_once_with=with_it)
