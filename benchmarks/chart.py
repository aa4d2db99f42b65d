"""The picture of the performance page: what relaying costs, how that grows with results, and which goals are met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["draw"]

mpl.use("Agg")

INK, QUIET, RULE, PAPER = "#1f2933", "#7b8794", "#d9dee4", "#ffffff"
OURS, MET, MISSED = "#0b7285", "#2f9e44", "#e8590c"
OTHERS = ("#495057", "#9c36b5", "#e8590c", "#c2922e", "#868e96")
WIDTH = 9
"""Inches: the page shows it at about 750 pixels, where its smallest letters have ten."""
HEADLINE = {"result kB": 0.4, "in flight": 64}
BUSY = 64, 8
"""Calls in flight, the first of these that was measured for a size of results."""

FARTHEST = 8.0
"""Beyond this many times a goal, a bar only says: far beyond."""

Document = dict[str, Any]


def draw(document: Document, path: Path) -> None:
    """Writes the picture of what `benchmarks.report` found."""
    relay = document["sections"].get("relay", {}).get("rows", [])
    goals = [goal for goal in document["goals"] if goal["measured"] is not None]
    figure = Figure(figsize=(WIDTH, 5.2 + 0.3 * len(goals)), facecolor=PAPER, layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(4, 1.2 + 0.3 * len(goals)))
    if relay:
        costs, sizes = above.subplots(1, 2, width_ratios=(1, 1.1))
        _costs(costs, relay)
        _sizes(sizes, relay)
    if goals:
        _goals(below.subplots(), goals)
    figure.supxlabel(_where(document), fontsize=9, color=QUIET, x=0.01, ha="left")
    figure.savefig(path, dpi=150)


def _costs(axes: Axes, rows: list[Document]) -> None:
    """CPU per call of each server, the cheapest on top."""
    found = [row for row in rows if HEADLINE.items() <= row.items()]
    found.sort(key=lambda row: row["CPU µs per call"], reverse=True)
    costs = [row["CPU µs per call"] for row in found]
    bars = axes.barh([row["server"] for row in found], costs, color=[_colour(row["server"]) for row in found])
    axes.bar_label(bars, [f"{cost:,.4g} µs" for cost in costs], padding=4, color=INK, fontsize=9)
    axes.set_xlim(right=max(costs) * 1.2)
    _dress(axes, "CPU per call: 0.4 kB results, 64 in flight")


def _sizes(axes: Axes, rows: list[Document]) -> None:
    """CPU per call over the size of results."""
    sizes = sorted({row["result kB"] for row in rows})
    busy = {size: _in_flight(rows, size) for size in sizes}
    for server in dict.fromkeys(row["server"] for row in rows):
        own = [row for row in rows if row["server"] == server and row["in flight"] == busy[row["result kB"]]]
        own.sort(key=lambda row: row["result kB"])
        x, y = [row["result kB"] for row in own], [row["CPU µs per call"] for row in own]
        style = "--" if "mounted" in server else "-"
        axes.plot(x, y, style, marker="o", markersize=4, color=_colour(server), label=server)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes, [f"{size:g} kB" for size in sizes])
    axes.minorticks_off()
    axes.set_ylabel("µs", color=QUIET)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    _dress(axes, "CPU per call as results grow")


def _goals(axes: Axes, goals: list[Document]) -> None:
    """How far each number is from its goal, as bars that begin there."""
    goals = goals[::-1]
    labels = [f"{goal['what'].replace('`', '')}: {goal['goal']}" for goal in goals]
    reached = [_attainment(goal) for goal in goals]
    colours = [MET if goal["met"] else MISSED for goal in goals]
    axes.barh(labels, [times - 1 for times in reached], left=1, color=colours, height=0.62)
    for place, (goal, times) in enumerate(zip(goals, reached, strict=True)):
        side = {"x": max(times, 1) * 1.04, "ha": "left"} if goal["met"] else {"x": min(times, 1) / 1.04, "ha": "right"}
        axes.text(y=place, s=f"{goal['measured']:.3g}", va="center", color=INK, fontsize=9, **side)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xlim(0.7 / FARTHEST, FARTHEST * 1.4)
    axes.set_xticks([1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8], ["⅛", "¼", "½", "goal", "2 ×", "4 ×", "≥ 8 ×"])
    axes.minorticks_off()
    _dress(axes, "Measured: right of the goal is better")


def _attainment(goal: Document) -> float:
    """Times the goal, the more the better in either sense, within what can be shown."""
    measured, bound = goal["measured"], goal["bound"]
    if not bound:
        return 1.0 if goal["met"] else 1 / FARTHEST
    times = measured / bound if goal["sense"] == "≥" else bound / max(measured, bound / FARTHEST)
    return float(min(max(times, 1 / FARTHEST), FARTHEST))


def _in_flight(rows: list[Document], size: float) -> int:
    measured = {row["in flight"] for row in rows if row["result kB"] == size}
    return next((number for number in BUSY if number in measured), max(measured))


def _colour(server: str) -> str:
    if "a2c-smcp server" in server or "mounted" in server:
        return OURS
    known = ("bare picows relay", "Node socket.io", "plain python-socketio", "published 0.4.2")
    return OTHERS[known.index(server) if server in known else -1]


def _dress(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=INK, pad=10)
    axes.set_facecolor(PAPER)
    axes.tick_params(colors=INK, labelsize=9, length=0)
    axes.grid(axis="x", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)


def _where(document: Document) -> str:
    machine = document["machine"]
    date = (document["date"] or "").partition("T")[0]
    return f"{machine['processor']}, {machine['cores']} cores, Python {machine['Python']}, {date}"
