"""The last tool calls that ended, the last refusals, and numbers about both: in all by time, and for each computer.

It is kept in memory, in tables of a fixed size, from the start of the operator's interface on. Each node has that of
its own agents; `merged` makes one of several.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import TypeAlias

import msgspec

from a2c_smcp.mcp_events import CallEnd
from a2c_smcp.protocol.results import ANSWERED
from a2c_smcp.server.calls.call import Call
from a2c_smcp.server.observation.happened import (
    EventRefused,
    HandshakeRefused,
    McpCallRefused,
    ReaderCut,
    Recorded,
    answered_size,
    recorded_fields,
)
from a2c_smcp.telemetry.metrics import LATENCY_BUCKETS

BOUNDS = LATENCY_BUCKETS
"""Upper bounds of the classes of durations, in seconds. Longer calls are in one class more."""

WINDOW = 15 * 60.0
"""Seconds that numbers go back."""

_STEP = 5.0
_STEPS = int(WINDOW / _STEP)
_MOST_ENDED = 1000
_MOST_REFUSALS = 500
_MOST_COMPUTERS = 5000
_Refusal: TypeAlias = HandshakeRefused | EventRefused | McpCallRefused | ReaderCut
_FINE = frozenset({"ok", "answered"})
_BY_TIME = attrgetter("at")


class EndedRow(msgspec.Struct, array_like=True):
    """A tool call that has ended, or was refused before it began, at that time.

    `end` is unknown if a sealed call was answered.
    """

    at: float
    office: str
    agent: str
    principal: str
    computer: str
    req_id: str
    outcome: str
    node: str | None
    tool: str | None = None
    sealed: bool = False
    code: int | None = None
    seconds: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    reason: str | None = None
    end: CallEnd | None = None

    @property
    def place(self) -> tuple[str, ...]:
        return f"{self.at:.6f}", self.office, self.req_id

    @property
    def texts(self) -> tuple[str, ...]:
        return self.office, self.agent, self.computer, self.tool or "", self.principal, self.outcome


class RefusalRow(msgspec.Struct, array_like=True):
    """A client that was not let in, a request that was refused, or a client that was cut because it did not read."""

    at: float
    event: str
    reason: str
    node: str | None
    code: int | None = None
    principal: str = ""
    address: str = ""
    office: str = ""
    name: str = ""

    @property
    def place(self) -> tuple[str, ...]:
        return f"{self.at:.6f}", self.principal, self.name

    @property
    def texts(self) -> tuple[str, ...]:
        return self.principal, self.address, self.office, self.name, self.reason


class Interval(msgspec.Struct, array_like=True):
    """Numbers of a few seconds, which end at `until`. `durations` counts calls in each class of `BOUNDS`."""

    until: float
    calls: int = 0
    failed: int = 0
    refused: int = 0
    durations: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS) + 1))


class ComputerNumbers(msgspec.Struct, array_like=True):
    """Calls to one computer since `began`. `last_failure` says how the last one failed that did, and when."""

    office: str
    computer: str
    began: float
    calls: int = 0
    failed: int = 0
    durations: list[int] = msgspec.field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    last_failure: str | None = None
    failed_at: float | None = None


class Snapshot(msgspec.Struct):
    """The history of one node, or of all. The newest rows are first."""

    ended: Sequence[EndedRow] = ()
    refusals: Sequence[RefusalRow] = ()
    steps: Sequence[Interval] = ()
    computers: Sequence[ComputerNumbers] = ()


class History:
    """A recorder of calls and refusals."""

    def __init__(self, node: str | None) -> None:
        self._node = node
        self._ended: deque[EndedRow] = deque(maxlen=_MOST_ENDED)
        self._refusals: deque[RefusalRow] = deque(maxlen=_MOST_REFUSALS)
        self._steps: deque[Interval] = deque(maxlen=_STEPS)
        self._computers: OrderedDict[tuple[str, str], ComputerNumbers] = OrderedDict()

    def record(self, happened: Sequence[Recorded]) -> None:
        now = time.time()
        for observed in happened:
            if isinstance(observed, Call):
                if observed.event.is_call:
                    self._note_call(observed, now)
            elif isinstance(observed, _Refusal):
                self._note_refusal(observed, now)

    def snapshot(self) -> Snapshot:
        begin = time.time() - WINDOW
        return Snapshot(
            list(reversed(self._ended)),
            list(reversed(self._refusals)),
            [step for step in self._steps if step.until >= begin],
            list(self._computers.values()),
        )

    def _note_call(self, call: Call, now: float) -> None:
        result, seconds = call.result, time.monotonic() - call.until + call.timeout
        assert result
        is_fine = result.outcome in _FINE
        reason = None if is_fine else f"{result.end} {result.code}" if result.code else result.end
        self._ended.append(
            EndedRow(
                now,
                call.caller.office_id,
                call.caller.name,
                call.caller.owner,
                call.target.name,
                call.req_id,
                result.outcome,
                self._node,
                None if call.event.is_sealed else recorded_fields(call).tool,
                call.event.is_sealed,
                result.code,
                seconds,
                call.size,
                answered_size(call.outcome),
                end=None if result == ANSWERED else result.end,
            )
        )
        kind = bisect_left(BOUNDS, seconds)
        for numbers in (self._step(now), self._computer(call.target.office_id, call.target.name, now)):
            numbers.calls += 1
            numbers.failed += not is_fine
            numbers.durations[kind] += 1
            if reason and isinstance(numbers, ComputerNumbers):
                numbers.last_failure, numbers.failed_at = reason, now

    def _note_refusal(self, happened: _Refusal, now: float) -> None:
        facts = happened.facts()
        self._step(now).refused += 1
        text = {name: str(facts.get(name) or "") for name in ("principal", "address", "office", "name", "reason")}
        if isinstance(happened, EventRefused | McpCallRefused):
            text["name"] = text["name"] or str(facts.get("agent") or "")
        if facts["event"] == "call":
            self._note_refused_call(facts, now)
        reason = text.pop("reason") or facts["event"]
        self._refusals.append(RefusalRow(now, facts["event"], reason, self._node, facts.get("code"), **text))

    def _note_refused_call(self, facts: dict[str, object], now: float) -> None:
        office, agent, principal, computer, req_id = (
            str(facts.get(name) or "") for name in ("office", "agent", "principal", "computer", "req_id")
        )
        tool, code, size = facts.get("tool"), facts.get("code"), facts.get("bytes_in")
        self._ended.append(
            EndedRow(
                now,
                office,
                agent,
                principal,
                computer,
                req_id,
                str(facts.get("outcome")),
                self._node,
                tool if isinstance(tool, str) else None,
                bool(facts.get("sealed")),
                code if isinstance(code, int) else None,
                bytes_in=size if isinstance(size, int) else 0,
                reason=str(facts.get("reason") or "") or None,
                end="refused",
            )
        )
        step = self._step(now)
        step.calls += 1
        step.failed += 1

    def _step(self, now: float) -> Interval:
        if not self._steps or self._steps[-1].until <= now:
            self._steps.append(Interval((now // _STEP + 1) * _STEP))
        return self._steps[-1]

    def _computer(self, office: str, computer: str, now: float) -> ComputerNumbers:
        """The numbers of a computer; they begin anew after the window. The one without calls for longest is dropped."""
        key = office, computer
        numbers = self._computers.get(key)
        if numbers is None or now - numbers.began > WINDOW:
            numbers = self._computers[key] = ComputerNumbers(office, computer, now)
        self._computers.move_to_end(key)
        if len(self._computers) > _MOST_COMPUTERS:
            self._computers.popitem(last=False)
        return numbers


def merged(snapshots: Sequence[Snapshot]) -> Snapshot:
    """The history of all nodes as one."""
    if len(snapshots) == 1:
        return snapshots[0]
    steps: dict[float, Interval] = {}
    for step in chain.from_iterable(snapshot.steps for snapshot in snapshots):
        total = steps.setdefault(step.until, Interval(step.until))
        total.calls, total.failed = total.calls + step.calls, total.failed + step.failed
        total.refused += step.refused
        total.durations = _sum(total.durations, step.durations)
    computers: dict[tuple[str, str], ComputerNumbers] = {}
    for numbers in chain.from_iterable(snapshot.computers for snapshot in snapshots):
        key = numbers.office, numbers.computer
        computers[key] = _both(computers[key], numbers) if key in computers else numbers
    return Snapshot(
        sorted(chain.from_iterable(snapshot.ended for snapshot in snapshots), key=_BY_TIME, reverse=True),
        sorted(chain.from_iterable(snapshot.refusals for snapshot in snapshots), key=_BY_TIME, reverse=True),
        [steps[until] for until in sorted(steps)],
        list(computers.values()),
    )


def quantile(durations: Iterable[int], part: float) -> float | None:
    """The upper bound of the class in which this part of all calls ends; `None` without calls."""
    counts = list(durations)
    wanted, seen = part * sum(counts), 0
    for bound, count in zip((*BOUNDS, 2 * BOUNDS[-1]), counts, strict=False):  # without calls there may be none
        seen += count
        if seen and seen >= wanted:
            return bound
    return None


def _sum(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _both(one: ComputerNumbers, other: ComputerNumbers) -> ComputerNumbers:
    newer = max(one, other, key=lambda numbers: numbers.failed_at or 0.0)
    return ComputerNumbers(
        one.office,
        one.computer,
        min(one.began, other.began),
        one.calls + other.calls,
        one.failed + other.failed,
        _sum(one.durations, other.durations),
        newer.last_failure,
        newer.failed_at,
    )
