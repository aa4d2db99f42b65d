"""What all benchmarks found, in one place: `python -m benchmarks.report` after any of them.

Each benchmark leaves its section with `save`. The report reads all sections there are, says which goals are met, and
writes `performance.json` and `performance.png` for the documentation, and the page that shows them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.goals import GOALS, judged
from benchmarks.machine import machine
from benchmarks.page import written
from benchmarks.processes import ROOT
from benchmarks.table import Row, show

__all__ = ["FOUND", "forget", "save", "sections"]

FOUND = ROOT / ".cache" / "bench" / "found"
"""Where each benchmark leaves what it found, as `sections/<name>.json`; partial reports go there too."""

SECTIONS = FOUND / "sections"
ASSETS = ROOT / "docs" / "assets"
PAGE = Path("..") / "performance.md"
VERDICTS = {True: "met", False: "not met", None: "not measured"}


def save(
    section: str,
    title: str,
    rows: Sequence[Row],
    measured: Mapping[str, float | None] | None = None,
    *,
    versions: Mapping[str, str] | None = None,
) -> Path:
    """Leaves a section. `measured` are the numbers that goals ask for, by their keys; `versions` those of the peers."""
    known = {goal.key for goal in GOALS}
    if unknown := set(measured or {}) - known:
        raise KeyError(f"no goal is called {', '.join(sorted(unknown))}")
    found = {
        "section": section,
        "title": title,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": dict(versions or {}),
        "measured": {key: value for key, value in (measured or {}).items() if value is not None},
        "rows": list(rows),
    }
    SECTIONS.mkdir(parents=True, exist_ok=True)
    path = SECTIONS / f"{section}.json"
    path.write_text(_text(found), "utf-8")
    return path


def forget() -> None:
    """Lets a new run stand by itself."""
    for path in SECTIONS.glob("*.json"):
        path.unlink()


def sections(folder: Path = SECTIONS) -> list[dict[str, Any]]:
    """Everything that was left, by name."""
    return [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The document that the documentation shows: goals first, then the sections they stand on."""
    measured = {key: value for section in found for key, value in section["measured"].items()}
    machines = [section["machine"] for section in found]
    return {
        "date": max((section["date"] for section in found), default=None),
        "machine": machines[0] if machines else machine(),
        "versions": {name: version for section in found for name, version in section["versions"].items()},
        "goals": judged(measured),
        "sections": {section["section"]: section for section in found},
    }


def goal_rows(goals: Sequence[dict[str, Any]]) -> list[Row]:
    return [
        {"what": goal["what"], "goal": goal["goal"], "measured": goal["measured"], "": VERDICTS[goal["met"]]}
        for goal in goals
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="The goals, and what the benchmarks that ran last say to them.")
    parser.add_argument("--into", type=Path, default=ASSETS, metavar="FOLDER", help="where the files for the docs go")
    parser.add_argument("--no-chart", action="store_true", help="the table and the JSON only")
    chosen = parser.parse_args()
    document = summary(sections())
    goals = goal_rows(document["goals"])
    print("\nGoals\n")
    show(goals)
    chosen.into.mkdir(parents=True, exist_ok=True)
    (chosen.into / "performance.json").write_text(_text(document), "utf-8")
    (chosen.into / PAGE).write_text(written(document, goals), "utf-8")
    if not chosen.no_chart:
        from benchmarks.chart import draw

        draw(document, chosen.into / "performance.png")


def _text(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    main()
