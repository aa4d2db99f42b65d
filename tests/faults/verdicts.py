"""What may become of a call under faults, and what may not: pure decisions over what was noted.

An error is excused only by an outage that touched the call's office and computer. An outage lasts until the first
probe is answered after its end. A call that has time left then must be answered. Whatever happened, a call ends by its
deadline, runs once at the most, at the computer it was sent to, and not at all if its agent was told `not_run`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.faults.books import Entry, Pair, Run
from tests.faults.calls import ANSWERED, GARBLED, TOOL_FAILED

__all__ = ["BACK_WITHIN", "Outage", "World", "judge"]

BACK_WITHIN = 10.0
GRACE = 5.0
"""How long a Server keeps a seat, and how long a call waits for a computer that was there (WIRE §§4-5)."""
SLACK = 3.0
"""For a machine that is busy: nothing that is promised."""

_OUTCOMES = ("not_run", "unknown", "done")


@dataclass
class Outage:
    """A fault of some kind and what it touched. `back` says when each pair was heard again.

    One that `cuts_off` costs everybody the connection: those who return first wait for the others.
    """

    kind: str
    name: str
    touched: Sequence[Pair]
    begun: float
    ended: float = 0.0
    killed: Sequence[str] = ()
    paused: Sequence[str] = ()
    cuts_off: bool = False
    back: dict[Pair, float] = field(default_factory=dict)

    def over_for(self, pair: Pair) -> float:
        return self.back.get(pair, self.ended + 3 * BACK_WITHIN)

    @property
    def longest(self) -> float:
        """Seconds from its end until the last of those that it touched was back."""
        return max((self.over_for(pair) - self.ended for pair in self.touched), default=0.0)


@dataclass
class World:
    """What happened beside a call. `began` and `killed` know each agent process by the prefix of its calls.

    Errors of calls made before `opened` are nobody's fault: not everybody was there yet.
    """

    opened: float
    outages: list[Outage]
    last_answer: Callable[[Pair, float], float]
    began: dict[str, float]
    killed: dict[str, float]

    def around(self, entry: Entry) -> list[Outage]:
        """Outages during a call, up to its end."""
        return [
            each
            for each in self.outages
            if entry.pair in each.touched and each.begun <= entry.ended and each.over_for(entry.pair) >= entry.begun
        ]


def judge(entry: Entry, runs: Sequence[Run], world: World) -> list[str]:
    """What is wrong with a call and its runs, in words that begin with the kind of fault."""
    wrong = _wrong_runs(entry, runs)
    if entry.code is None:
        lost = [] if entry.agent in world.killed else ["lost: it never ended"]
        return [*wrong, *lost]
    if entry.ended > entry.deadline + SLACK + _time_paused(entry, world):
        wrong.append(f"late: it ended {entry.ended - entry.deadline:.1f} s after its deadline")
    if entry.code == ANSWERED:
        return [*wrong, *([] if runs else ["never ran: it was answered"])]
    if entry.code in (GARBLED, TOOL_FAILED):
        return [*wrong, f"{'garbled' if entry.code == GARBLED else 'tool failed'}: {entry.text}"]
    return [*wrong, *(_wrong_error(entry, runs, world) if entry.begun >= world.opened else ())]


def _wrong_runs(entry: Entry, runs: Sequence[Run]) -> list[str]:
    wrong = []
    if len(runs) > 1:
        apart = max(run.at for run in runs) - min(run.at for run in runs)
        wrong.append(f"doubled: it ran {len(runs)} times, {apart:.1f} s apart")
    if any((run.office, run.computer) != entry.pair for run in runs):
        wrong.append(f"misrouted: it ran at {sorted({(run.office, run.computer) for run in runs})}")
    told = entry.deadline if entry.code is None else entry.ended
    if runs and (late := max(run.at for run in runs) - told) > SLACK:
        wrong.append(f"started late: the tool began {late:.1f} s after its agent was told {entry.code}")
    return wrong


def _wrong_error(entry: Entry, runs: Sequence[Run], world: World) -> list[str]:
    wrong = []
    if entry.outcome not in _OUTCOMES:
        wrong.append(f"no outcome: {entry.code} says {entry.outcome!r}")
    if entry.outcome == "not_run" and runs:
        wrong.append(f"ran after all: its agent was told {entry.code} not_run")
    excuse = _EXCUSES.get(entry.code or 0)
    if excuse is None:
        wrong.append(f"unexpected: {entry.code} {entry.text}")
    elif reason := excuse(entry, world):
        wrong.append(f"{reason}: {entry.code} {entry.outcome} {entry.text}")
    return wrong


def _not_found(entry: Entry, world: World) -> str:
    if entry.text.startswith("No such tool"):
        return "tool not found"
    around = world.around(entry)
    returns = [each.ended for each in around if each.cuts_off and "/".join(entry.pair) not in each.killed]
    waited = entry.ended - max([world.last_answer(entry.pair, entry.ended), *returns])
    is_newcomer = any(each.begun <= world.began.get(entry.agent, 0) for each in around)
    return "gave up within the grace" if waited < GRACE - 1 and not is_newcomer else _without_outage(entry, world)


def _in_vain(entry: Entry, world: World) -> str:
    around = world.around(entry)
    well = entry.ended - max((each.over_for(entry.pair) for each in around), default=entry.begun)
    if well > entry.call.seconds + SLACK:
        return f"not answered: {well:.1f} s without an outage"
    return "gave up before its deadline" if entry.code == 503 and entry.ended < entry.deadline - SLACK else ""


def _result_gone(entry: Entry, world: World) -> str:
    killed = {name for each in world.around(entry) for name in each.killed}
    return "" if "/".join(entry.pair) in killed else "result gone without a kill"


def _cancelled(entry: Entry, world: World) -> str:
    return "" if entry.call.cancel_after is not None else "cancelled by nobody"


def _without_outage(entry: Entry, world: World) -> str:
    return "" if world.around(entry) else "error without an outage"


_EXCUSES: dict[int, Callable[[Entry, World], str]] = {
    404: _not_found,
    408: _in_vain,
    410: _result_gone,
    499: _cancelled,
    503: _in_vain,
}


def _time_paused(entry: Entry, world: World) -> float:
    """How long the agent itself stood still."""
    name = f"{entry.call.office}/agent"
    return sum(each.ended - each.begun for each in world.around(entry) if name in each.paused)
