"""The first page: numbers, charts, computers that are slow or fail, and nodes."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from a2c_smcp.console.app import Changes
from a2c_smcp.console.html import Child, Html, joined, tag
from a2c_smcp.console.operator.labels import clock_time, missing_note, office_link, seconds_text
from a2c_smcp.console.pages import Page, Region, View, Words, row_table
from a2c_smcp.errors import SMCPError
from a2c_smcp.loops import OwnedTasks
from a2c_smcp.server.admin.history import BOUNDS, WINDOW, ComputerNumbers, Interval, quantile
from a2c_smcp.server.admin.operations import Operations

# Charts as SVG, drawn on the Server: calls by outcome, and how long they took, over the last quarter of an hour.

_BAR = 15.0
_COUNT = int(WINDOW / _BAR)
_WIDTH, _HEIGHT, _LEFT, _BELOW = 600, 150, 76, 24
_SHORTEST, _LONGEST = BOUNDS[0], BOUNDS[-1]


class _Bar(NamedTuple):
    calls: int
    failed: int
    durations: list[int]


def calls_chart(words: Words, steps: Sequence[Interval]) -> Html:
    """Calls in each quarter of a minute, with those that failed in another colour."""
    bars = _bars(steps)
    most = max([bar.calls for bar in bars] + [1])
    calls, failed = sum(bar.calls for bar in bars), sum(bar.failed for bar in bars)
    caption = words("{calls} calls in 15 minutes, {failed} of them failed", calls=calls, failed=failed)
    heights = [(bar.calls / most, bar.failed / most) for bar in bars]
    drawn = [
        tag("path", d=_columns([all_ - bad for all_, bad in heights], [bad for _, bad in heights]), class_="calls"),
        tag("path", d=_columns([bad for _, bad in heights], [0.0] * len(bars)), class_="failed"),
    ]
    key = _key(words("answered well"), "middle", words("failed"), "failed")
    return _figure(words("Calls"), caption, [*drawn, *_axis(words, {0.0: "0", 1.0: str(most)})], key)


def latency_chart(words: Words, steps: Sequence[Interval]) -> Html:
    """The time within which half of all calls, and 95 of 100, have ended. The scale is logarithmic."""
    bars = _bars(steps)
    middle = [quantile(bar.durations, 0.5) for bar in bars]
    slow = [quantile(bar.durations, 0.95) for bar in bars]
    latest = next((value for value in reversed(slow) if value is not None), None)
    caption = words("95 of 100 calls took at most {time}", time=seconds_text(latest))
    drawn = [tag("path", d=_line(slow), class_="slow"), tag("path", d=_line(middle), class_="middle")]
    marks = {_height(value): seconds_text(value) for value in (0.001, 0.01, 0.1, 1.0, 10.0)}
    key = _key(words("half of the calls"), "middle", words("95 of 100 calls"), "slow")
    return _figure(words("Duration"), caption, [*drawn, *_axis(words, marks)], key)


def _bars(steps: Sequence[Interval]) -> list[_Bar]:
    """Sums of the steps by quarters of a minute, the newest last."""
    last = math.ceil(time.time() / _BAR)
    sums: list[list[Interval]] = [[] for _ in range(_COUNT)]
    for step in steps:
        place = _COUNT - 1 - (last - math.ceil(step.until / _BAR))
        if 0 <= place < _COUNT:
            sums[place].append(step)
    return [
        _Bar(
            sum(step.calls for step in steps),
            sum(step.failed for step in steps),
            [sum(counts) for counts in zip(*(step.durations for step in steps), strict=True)],
        )
        for steps in sums
    ]


def _columns(heights: Sequence[float], bases: Sequence[float]) -> str:
    width = (_WIDTH - _LEFT) / _COUNT
    parts = []
    for number, (height, base) in enumerate(zip(heights, bases, strict=True)):
        if height > 0:
            x, y = _LEFT + number * width, _y(base)
            parts.append(f"M{x:.1f} {y:.1f}v{_y(base + height) - y:.1f}h{width - 1:.1f}V{y:.1f}z")
    return "".join(parts) or "M0 0"


def _line(values: Sequence[float | None]) -> str:
    """A line through the values, with gaps where there are none. A lone value is a short stroke."""
    width = (_WIDTH - _LEFT) / _COUNT
    parts = []
    is_down = False
    for number, value in enumerate(values):
        if value is None:
            is_down = False
            continue
        x, y = _LEFT + number * width, _y(_height(value))
        parts.append(f"{'L' if is_down else 'M'}{x:.1f} {y:.1f}h{width:.1f}")
        is_down = True
    return "".join(parts) or "M0 0"


def _height(seconds: float) -> float:
    inside = min(max(seconds, _SHORTEST), _LONGEST)
    return math.log(inside / _SHORTEST) / math.log(_LONGEST / _SHORTEST)


def _y(height: float) -> float:
    return (_HEIGHT - _BELOW) - height * (_HEIGHT - _BELOW - 12)


def _axis(words: Words, marks: dict[float, str]) -> list[Html]:
    drawn = []
    for height, label in marks.items():
        y = f"{_y(height):.1f}"
        drawn.append(tag("path", d=f"M{_LEFT} {y}H{_WIDTH}", class_="grid"))
        drawn.append(tag("text", label, x=_LEFT - 6, y=y, text_anchor="end", dominant_baseline="middle"))
    below = _HEIGHT - 5
    drawn.append(tag("text", words("15 min ago"), x=_LEFT, y=below))
    drawn.append(tag("text", words("now"), x=_WIDTH, y=below, text_anchor="end"))
    return drawn


def _key(first: str, its_kind: str, second: str, other_kind: str) -> Html:
    """Return the legend of the two colours of a chart."""
    shown = [tag("span", text, class_=f"key {kind}") for text, kind in ((first, its_kind), (second, other_kind))]
    return tag("p", shown[0], " ", shown[1], class_="small soft")


def _figure(title: str, caption: str, drawn: Sequence[Html], key: Html) -> Html:
    picture = tag("svg", *drawn, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=f"{title}: {caption}")
    return tag(
        "figure", tag("h2", title), picture, key, tag("figcaption", caption, class_="soft small"), class_="card chart"
    )


# Lists of all nodes, read at most a few times a second however many pages are open

TOPIC = frozenset(["server"])
"""All pages show the same: the current state of the Server."""

_TICK = 0.6
_FRESH = 0.4

T = TypeVar("T")


class OperatorState:
    """Wakes the pages that are open, regularly: their content changes all the time, on any node."""

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self.changes = Changes()
        self.members = _Recent(operations.all_members)
        self.past = _Recent(operations.past)
        self.nodes = _Recent(operations.nodes)
        self._tasks = OwnedTasks()
        self._is_ticking = False

    def changed(self) -> None:
        """Wake all pages, and let them read anew. A read that is under way is still used."""
        for recent in (self.members, self.past, self.nodes):
            recent.forget()
        self.changes.changed(*TOPIC)

    def keep_ticking(self) -> None:
        """Wake open pages from now on, until none is open."""
        if not self._is_ticking:
            self._is_ticking = True
            self._tasks.spawn(self._tick())

    async def close(self) -> None:
        await self._tasks.close()

    async def _tick(self) -> None:
        try:
            await asyncio.sleep(_TICK)
            while self.changes.has_readers:
                self.changed()  # otherwise a slow read would count as fresh for one more tick, and hide later changes
                await asyncio.sleep(_TICK)
        finally:
            self._is_ticking = False


class _Recent(Generic[T]):
    """A value that is read again when it is no longer fresh, once for all that wait for it."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._known: T | None = None
        self._until = 0.0
        self._lock = asyncio.Lock()

    async def __call__(self) -> T:
        async with self._lock:
            if self._known is None or time.monotonic() > self._until:
                self._known = await self._read()
                self._until = time.monotonic() + _FRESH
            return self._known

    def forget(self) -> None:
        self._until = 0.0


_SHOWN = 10
_SLOW = 5.0


class OverviewPage:
    """The first page."""

    def __init__(self, state: OperatorState) -> None:
        self._state = state
        regions: dict[str, Region] = {
            "numbers": self._numbers,
            "charts": self._charts,
            "troubled": self._troubled,
            "nodes": self._nodes,
        }
        self.page = Page("/", "Overview", regions, TOPIC, menu="Overview", pause=0.3)

    async def _numbers(self, view: View) -> Html:
        words = view.words
        members, missing = await self._state.members()
        past, _ = await self._state.past()
        computers = [row for row in members if row.role == "computer"]
        calls, failed = (sum(getattr(step, name) for step in past.steps) for name in ("calls", "failed"))
        tiles = {
            "Offices": len({row.office for row in members}),
            "Agents": len(members) - len(computers),
            "Computers": len(computers),
            "Away": sum(not row.connected for row in members),
            "Calls in flight": sum(row.calls for row in computers),
            "Calls in 15 minutes": calls,
            "Failed": failed,
            "Refused": sum(step.refused for step in past.steps),
        }
        shown = [
            tag("div", tag("dt", words(name)), tag("dd", f"{number:,}", class_="number"), class_="card tile")
            for name, number in tiles.items()
        ]
        return joined(missing_note(view, missing), tag("dl", *shown, class_="tiles"))

    async def _charts(self, view: View) -> Html:
        past, _ = await self._state.past()
        return tag("div", calls_chart(view.words, past.steps), latency_chart(view.words, past.steps), class_="charts")

    async def _troubled(self, view: View) -> Html:
        words = view.words
        past, _ = await self._state.past()
        chosen = sorted(filter(_trouble, past.computers), key=_trouble, reverse=True)
        title = tag("h2", words("Slow or failing computers"))
        rows = [
            (
                f"troubled-{row.office}-{row.computer}",
                row.computer,
                office_link(view, row.office),
                f"{row.calls:,}",
                f"{row.failed:,}",
                seconds_text(quantile(row.durations, 0.95)),
                _last_failure(view, row),
            )
            for row in chosen[:_SHOWN]
        ]
        columns = ("Computer", "Office", "Calls", "Failed", "95 of 100 within", "Last failure (UTC)")
        more = len(chosen) - _SHOWN
        rest = tag("p", words("and {count} more", count=more), class_="soft") if more > 0 else None
        return joined(title, row_table(view, columns, rows, "No computer is slow, and no call has failed."), rest)

    async def _nodes(self, view: View) -> Html:
        words = view.words
        title = tag("h2", words("Nodes"))
        try:
            nodes, missing = await self._state.nodes()
        except SMCPError as error:
            return joined(title, tag("p", error.about, class_="note bad"))
        rows = [
            (
                f"node-{row.node}",
                row.node or words("this Server"),
                tag(
                    "span",
                    words("ready" if row.ready else "not ready"),
                    class_=f"state {'good' if row.ready else 'bad'}",
                ),
                f"{row.connections:,}",
                f"{row.members:,}",
                f"{row.calls:,}",
                row.version,
                row.url or "–",
            )
            for row in nodes
        ]
        columns = ("Node", "State", "Connections", "Members", "Calls in flight", "Version", "Address")
        return joined(title, missing_note(view, missing), row_table(view, columns, rows))


def _last_failure(view: View, numbers: ComputerNumbers) -> Child:
    """The end of the last call that failed, such as `timed out 408`, and its time."""
    if not numbers.last_failure or not numbers.failed_at:
        return "–"
    end = numbers.last_failure.rstrip("0123456789")
    code = numbers.last_failure.removeprefix(end)
    return joined(view.words(end.strip()), " ", code, " ", clock_time(numbers.failed_at))


def _trouble(numbers: ComputerNumbers) -> float:
    """A computer's need of attention: the part of its calls that failed, and more if it is slow. 0 is fine."""
    slowest = quantile(numbers.durations, 0.95) or 0.0
    return numbers.failed / max(numbers.calls, 1) + (slowest / 100 if slowest >= _SLOW else 0.0)
