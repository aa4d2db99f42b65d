"""Times, durations and sizes in tables, and lines for events."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from a2c_smcp.cli.terminal import Terminal

__all__ = ["ago", "event_line", "moment", "plural", "size", "warn_missing"]

_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_FIRST = ("event", "at", "node")
_KIB = 1024


def moment(seconds: float | None) -> str:
    """A time in UTC, or nothing."""
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def ago(seconds: float | None) -> str:
    """How long something has lasted that began then: `3 min`."""
    if seconds is None:
        return ""
    lasted = max(0.0, time.time() - seconds)
    return next((f"{int(lasted // unit)} {name}" for unit, name in _UNITS if lasted >= unit), "0 s")


def size(count: int) -> str:
    if not count:
        return ""
    return f"{count} B" if count < _KIB else f"{count / _KIB:.0f} KiB"


def plural(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def event_line(facts: Mapping[str, Any]) -> str:
    """`05:12:08 joined office=desk role=computer name=laptop`."""
    at = datetime.fromtimestamp(facts["at"], UTC).strftime("%H:%M:%S")
    rest = (f"{name}={_word(value)}" for name, value in facts.items() if name not in _FIRST)
    node = f" [{facts['node']}]" if facts.get("node") else ""
    return " ".join((at + node, facts["event"], *rest))


def warn_missing(missing: Iterable[Mapping[str, str]]) -> None:
    """Says which nodes have not answered: their part of the list is not shown."""
    for each in missing:
        Terminal().show(f"node {each['node']} is missing here: {each['reason']}", "yellow")


def _word(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = str(value)
    return repr(text) if not text or any(mark.isspace() for mark in text) else text
