"""How benchmarks compare and tell: rounds in turn, medians, ratios, and a table for a person or a program."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias, TypeVar

from benchmarks.machine import machine

__all__ = ["Row", "in_turn", "median", "options", "per", "ratio", "report", "show", "told"]

Row: TypeAlias = dict[str, Any]
"""What a line of a table says, by the titles of its columns. `None` is what could not be measured."""

Contestant = TypeVar("Contestant")
Sample = TypeVar("Sample")

_DIGITS = 3


def options(title: str, *, rounds: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=title)
    parser.set_defaults(title=title)
    parser.add_argument("--rounds", type=_positive, default=rounds, metavar="N", help=f"how often (default {rounds})")
    parser.add_argument("--quick", action="store_true", help="a first impression in seconds: fewer of everything")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too, for a program to read; - is stdout")
    return parser


async def in_turn(
    contestants: Mapping[str, Contestant],
    rounds: int,
    measure: Callable[[Contestant], Awaitable[Sample]],
    *,
    first: int = 0,
) -> dict[str, list[Sample]]:
    """The samples of each. Every round begins with another one, so that noise and order favour nobody."""
    names = list(contestants)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for number in range(first, first + rounds):
        begin = number % len(names)
        for name in names[begin:] + names[:begin]:
            samples[name].append(await measure(contestants[name]))
    return samples


def per(total: float | None, count: float, unit: float = 1.0) -> float | None:
    """So much for each, in units of so much: `per(seconds, calls, 1e-6)` is in microseconds."""
    return None if total is None else _rounded(total / count / unit)


def ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else _rounded(value / base)


def report(rows: Sequence[Row], chosen: argparse.Namespace) -> None:
    """Prints the table, and writes it as JSON where that is asked for; on standard output, in the table's place."""
    found = json.dumps({"title": chosen.title, "machine": machine(), "rows": rows}, indent=2, ensure_ascii=False)
    if chosen.json == "-":
        print(found)
        return
    if chosen.json:
        Path(chosen.json).write_text(f"{found}\n", "utf-8")
    print(f"\n{chosen.title}\n")
    show(rows)


def show(rows: Sequence[Row]) -> None:
    """Prints rows as a table, and what machine they are from."""
    titles = list(dict.fromkeys(title for row in rows for title in row))
    columns = [_column(title, [row.get(title) for row in rows]) for title in titles]
    for line in zip(*columns, strict=True):
        print("  ".join(line).rstrip())
    print(", ".join(f"{name} {value}" for name, value in machine().items()))


def told(progress: str) -> None:
    """A line for the person who waits; standard output is for what was found."""
    print(progress, file=sys.stderr, flush=True)


def _column(title: str, values: Sequence[Any]) -> list[str]:
    """Title, rule and cells, all of one width; numbers stand at the right."""
    cells = ["-" if value is None else f"{value:,}" if isinstance(value, int | float) else value for value in values]
    width = max(map(len, [title, *cells]))
    align = str.ljust if any(isinstance(value, str) for value in values) else str.rjust
    return [align(title, width), "-" * width, *(align(cell, width) for cell in cells)]


def _rounded(value: float) -> float:
    """Three digits are all that a measurement like these can tell."""
    rounded = float(f"{value:.{_DIGITS}g}")
    return int(rounded) if abs(rounded) >= 10 ** (_DIGITS - 1) else rounded


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number
