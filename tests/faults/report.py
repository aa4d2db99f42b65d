"""The account of a fault run: what became of the calls, how long everybody took to come back, and what was wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from tests.faults.books import Books, Entry, clock
from tests.faults.calls import ANSWERED
from tests.faults.verdicts import BACK_WITHIN, Outage, World, judge

__all__ = ["find_faults", "put_report"]

_SHOWN = 5


def find_faults(books: Books, world: World) -> list[str]:
    """Everything that was wrong with a call, or with coming back after an outage."""
    wrong = [
        f"{fault}   [{_about(entry, world)}]"
        for entry in books.entries.values()
        for fault in judge(entry, books.runs[entry.call.id], world)
    ]
    wrong += [f"unknown call: {call} is in the ledger alone" for call in set(books.runs) - set(books.entries)]
    for outage in world.outages:
        late = [pair for pair in outage.touched if outage.over_for(pair) - outage.ended > BACK_WITHIN]
        who = ", ".join("/".join(pair) for pair in late)
        if late:
            wrong.append(f"back late: after {outage.name}, {who}: {outage.longest:.1f} s")
    return wrong


def _about(entry: Entry, world: World) -> str:
    """Enough to find it in notes, ledger and logs."""
    around = ", ".join(outage.name for outage in world.around(entry)) or "no outage"
    when = f"{clock(entry.begun)} to {clock(entry.ended)}, timeout {entry.call.timeout}"
    return f"{entry.call.id}, {'/'.join(entry.pair)}, {entry.call.tool}, {when}; {around}"


def put_report(books: Books, outages: Sequence[Outage], wrong: Sequence[str], audited: int) -> None:
    entries = list(books.entries.values())
    errors = Counter((entry.code, entry.outcome or "-") for entry in entries if entry.code)
    doubled = sum(len(runs) > 1 for runs in books.runs.values())
    rows = [
        ("calls", len(entries)),
        ("answered", sum(entry.code == ANSWERED for entry in entries)),
        *((f"error {code} {outcome}", times) for (code, outcome), times in sorted(errors.items())),
        ("without an end (agent killed)", sum(entry.code is None for entry in entries)),
        ("doubled", doubled),
        ("lines of calls in audit files", audited),
        ("things wrong", len(wrong)),
    ]
    print()
    for name, value in rows:
        print(f"  {name:<32}{value:>8}")
    _put_returns(outages)
    _put_wrong(wrong)


def _put_returns(outages: Sequence[Outage]) -> None:
    """Seconds from the end of an outage until each pair that it touched was heard again."""
    kinds: defaultdict[str, list[Outage]] = defaultdict(list)
    for outage in outages:
        kinds[outage.kind].append(outage)
    print(f"\n  {'back after':<32}{'times':>8}{'p95 s':>8}{'longest':>9}")
    for kind, those in (*sorted(kinds.items()), ("all", list(outages))):
        waits = sorted(each.over_for(pair) - each.ended for each in those for pair in each.touched)
        if waits:
            p95 = waits[min(len(waits) - 1, int(len(waits) * 0.95))]
            print(f"  {kind:<32}{len(those):>8}{p95:>8.1f}{waits[-1]:>9.1f}")


def _put_wrong(wrong: Iterable[str]) -> None:
    kinds: defaultdict[str, list[str]] = defaultdict(list)
    for each in wrong:
        kinds[each.partition(":")[0]].append(each)
    for kind, those in sorted(kinds.items(), key=lambda item: -len(item[1])):
        print(f"\n  WRONG {kind}: {len(those)}")
        for each in those[:_SHOWN]:
            print(f"    {each}")
