"""Budgets: how many calls a minute, how many at once, and how many bytes an hour. A call over one is refused with 429.

A call has to fit all budgets that apply to it, or it is counted in none. Calls of the last minute are counted exactly;
bytes in steps of a minute. The bytes of a result are known when the tool has run: the call that goes over the budget is
answered, and the next ones are refused. `running` is held until the MCP server has answered, also if nobody waits for
the answer any more. Counts begin anew with the process.

The owner's own calls are counted, so that agents do not get the seat of a licence that the owner uses; they are never
refused.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from a2c_smcp.computer.policy.decision import Subject, applies
from a2c_smcp.computer.policy.rules import AccessPolicy, BudgetEntry, CallConditions
from a2c_smcp.errors import RateLimited

__all__ = ["BudgetState", "BudgetUse", "Budgets"]

_MINUTE, _HOUR = 60.0, 3600.0
_MOST_COUNTERS = 10_000
_DURATIONS = 20


@dataclass(slots=True)
class _Counter:
    """What the calls of one budget have used, for one agent, office, server or tool if it is `per` these."""

    entry: BudgetEntry
    calls: deque[float] = field(default_factory=deque)
    running: int = 0
    bytes: deque[tuple[float, int]] = field(default_factory=deque)
    spent: int = 0
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=_DURATIONS))

    def forget_old(self, now: float) -> None:
        while self.calls and self.calls[0] <= now - _MINUTE:
            self.calls.popleft()
        while self.bytes and self.bytes[0][0] <= now - _HOUR:
            self.spent -= self.bytes.popleft()[1]

    @property
    def is_idle(self) -> bool:
        return not (self.calls or self.running or self.bytes)

    def refusal(self, now: float, size: int) -> tuple[str, float] | None:
        """Which limit a call of so many bytes would break, and after how many seconds it may be tried again."""
        entry = self.entry
        if entry.running is not None and self.running >= entry.running:
            usual = median(self.durations) if self.durations else 1.0
            return f"at most {entry.running} at once", usual
        if entry.calls_per_minute is not None and len(self.calls) >= entry.calls_per_minute:
            return f"at most {entry.calls_per_minute} a minute", self.calls[-entry.calls_per_minute] + _MINUTE - now
        if entry.bytes_per_hour is not None and self.spent + size > entry.bytes_per_hour:
            return f"at most {entry.bytes_per_hour} bytes an hour", self._room_for(size, entry.bytes_per_hour, now)
        return None

    def _room_for(self, size: int, most: int, now: float) -> float:
        left = self.spent
        for at, some in self.bytes:
            left -= some
            if left + size <= most:
                return at + _HOUR - now
        return _HOUR

    def spend(self, now: float, size: int) -> None:
        self.spent += size
        if self.bytes and now - self.bytes[-1][0] < _MINUTE:
            at, some = self.bytes.pop()
            self.bytes.append((at, some + size))
        else:
            self.bytes.append((now, size))


class BudgetState(NamedTuple):
    """How much of a budget is used, for the owner."""

    budget: str
    whom: str
    used: str


class BudgetUse:
    """What one call uses. `close` when the call has ended; what `hold` was called for may go on."""

    def __init__(self, counters: list[_Counter], clock: Callable[[], float]) -> None:
        self._counters, self._clock = counters, clock
        self._began, self._holders = clock(), 1

    @property
    def counts_bytes(self) -> bool:
        return any(each.entry.bytes_per_hour is not None for each in self._counters)

    def spend(self, size: int) -> None:
        now = self._clock()
        for counter in self._counters:
            if counter.entry.bytes_per_hour is not None:
                counter.spend(now, size)

    def hold(self) -> None:
        self._holders += 1

    def close(self) -> None:
        self._holders -= 1
        if self._holders:
            return
        for counter in self._counters:
            counter.running -= 1
            counter.durations.append(self._clock() - self._began)


class Budgets:
    """The counters of all budgets of a policy."""

    def __init__(self, policy: AccessPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._policy = policy
        self._counters: dict[tuple[str, ...], _Counter] = {}

    def replace(self, policy: AccessPolicy) -> None:
        """Take the budgets of another policy. Those for the same calls go on with what they have counted."""
        self._policy = policy
        entries = {_identity(entry): entry for entry in policy.budgets}
        kept = {key: each for key, each in self._counters.items() if key[0] in entries}
        for key, counter in kept.items():
            counter.entry = entries[key[0]]
        self._counters = kept

    def admit(self, subject: Subject, size: int = 0, *, is_owner: bool = False) -> BudgetUse | None:
        """Count a call in all budgets that apply to it; `None` if none does. Raises `RateLimited`, and counts nothing.

        `size` is that of the arguments.
        """
        found = [
            (label, self._counter(entry, subject))
            for index, entry in enumerate(self._policy.budgets)
            if not applies(entry, subject)
            for label in [self._policy.budget_label(index)]
        ]
        if not found:
            return None
        now = self._clock()
        if not is_owner:
            _require(found, now, size)
        use = BudgetUse([counter for _, counter in found], self._clock)
        for _, counter in found:
            counter.running += 1
            if counter.entry.calls_per_minute is not None:
                counter.calls.append(now)
        use.spend(size)
        return use

    def state(self) -> list[BudgetState]:
        now = self._clock()
        for counter in self._counters.values():
            counter.forget_old(now)
        return [
            BudgetState(self._label(counter.entry), " ".join(whom), _used(counter))
            for (_, *whom), counter in self._counters.items()
        ]

    def _label(self, entry: BudgetEntry) -> str:
        return self._policy.budget_label(next(i for i, each in enumerate(self._policy.budgets) if each is entry))

    def _counter(self, entry: BudgetEntry, subject: Subject) -> _Counter:
        key = (_identity(entry), *(str(getattr(subject, dimension)) for dimension in entry.per))
        if (counter := self._counters.get(key)) is None:
            if len(self._counters) >= _MOST_COUNTERS:
                self._drop_idle()
            counter = self._counters[key] = _Counter(entry)
        counter.forget_old(self._clock())
        return counter

    def _drop_idle(self) -> None:
        """Forget counters that count nothing now. Raises `RateLimited` if there is none: no count is forgotten."""
        now = self._clock()
        for counter in self._counters.values():
            counter.forget_old(now)
        self._counters = {key: each for key, each in self._counters.items() if not each.is_idle}
        if len(self._counters) >= _MOST_COUNTERS:
            raise RateLimited("the budgets of this computer count too many callers", retry_after=60)


def _identity(entry: BudgetEntry) -> str:
    """The same for budgets that count the same calls, whatever their names and limits are."""
    return entry.model_dump_json(include={*CallConditions.model_fields, "per"})


def _require(found: Iterable[tuple[str, _Counter]], now: float, size: int) -> None:
    for label, counter in found:
        if refusal := counter.refusal(now, size):
            limit, seconds = refusal
            wait = max(1, math.ceil(seconds))
            raise RateLimited(
                f"the budget {label!r} allows {limit}; try again in {wait} s", retry_after=wait, budget=label
            )


def _used(counter: _Counter) -> str:
    entry = counter.entry
    parts = [
        (counter.running, entry.running, "running"),
        (len(counter.calls), entry.calls_per_minute, "calls in the last minute"),
        (counter.spent, entry.bytes_per_hour, "bytes in the last hour"),
    ]
    return ", ".join(f"{used} of {most} {what}" for used, most, what in parts if most is not None)
