"""Charts as SVG, drawn on the Server: calls by outcome, and how long they took, over the last quarter of an hour."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from a2c_smcp.console.html import Html, tag
from a2c_smcp.console.languages import Words
from a2c_smcp.console.operator.shown import seconds_text
from a2c_smcp.server.admin.history import BOUNDS, WINDOW, Interval, quantile

__all__ = ["calls_chart", "latency_chart"]

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
    said = words("{calls} calls in 15 minutes, {failed} of them failed", calls=calls, failed=failed)
    heights = [(bar.calls / most, bar.failed / most) for bar in bars]
    drawn = [
        tag("path", d=_columns([all_ - bad for all_, bad in heights], [bad for _, bad in heights]), class_="calls"),
        tag("path", d=_columns([bad for _, bad in heights], [0.0] * len(bars)), class_="failed"),
    ]
    return _figure(words("Calls"), said, [*drawn, *_axis(words, {0.0: "0", 1.0: str(most)})])


def latency_chart(words: Words, steps: Sequence[Interval]) -> Html:
    """The time within which half of all calls, and 95 of 100, have ended. The scale is logarithmic."""
    bars = _bars(steps)
    middle = [quantile(bar.durations, 0.5) for bar in bars]
    slow = [quantile(bar.durations, 0.95) for bar in bars]
    latest = next((value for value in reversed(slow) if value is not None), None)
    said = words("95 of 100 calls took at most {time}", time=seconds_text(latest))
    drawn = [tag("path", d=_line(slow), class_="slow"), tag("path", d=_line(middle), class_="middle")]
    marks = {_height(value): seconds_text(value) for value in (0.001, 0.01, 0.1, 1.0, 10.0)}
    key = tag(
        "p",
        tag("span", words("half of the calls"), class_="key middle"),
        " ",
        tag("span", words("95 of 100 calls"), class_="key slow"),
        class_="small soft",
    )
    return _figure(words("Duration"), said, [*drawn, *_axis(words, marks)], key)


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
            sum(step.calls for step in each),
            sum(step.failed for step in each),
            [sum(counts) for counts in zip(*(step.durations for step in each), strict=True)],
        )
        for each in sums
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


def _figure(title: str, said: str, drawn: Sequence[Html], key: Html | None = None) -> Html:
    picture = tag("svg", *drawn, viewBox=f"0 0 {_WIDTH} {_HEIGHT}", role="img", aria_label=f"{title}: {said}")
    return tag(
        "figure", tag("h2", title), picture, key, tag("figcaption", said, class_="soft small"), class_="card chart"
    )
