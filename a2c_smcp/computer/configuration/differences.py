"""The change of a configuration file as a unified diff. Secrets have to be masked before."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["unified_diff"]

_CONTEXT = 3
"""Lines around a change that are shown."""
_HEADER = re.compile(r"^@@ -(\d+)(\S*) \+(\d+)(\S*) @@")


def unified_diff(path: Path, before: Sequence[str] | None, after: Sequence[str]) -> str:
    """The lines of a file that change. Before is `None` if there was no file.

    Only the part that differs is compared: for a long file, difflib would take many seconds.
    """
    name, old = str(path), before or []
    start = max(_equal(old, after) - _CONTEXT, 0)
    rest = max(_equal(old[start:][::-1], after[start:][::-1]) - _CONTEXT, 0)
    lines = difflib.unified_diff(
        old[start : len(old) - rest],
        after[start : len(after) - rest],
        "/dev/null" if before is None else name,
        name,
        n=_CONTEXT,
        lineterm="",
    )
    return "".join(f"{_HEADER.sub(lambda header: _moved(header, start), line)}\n" for line in lines)


def _equal(some: Sequence[str], others: Sequence[str]) -> int:
    """How many lines at the beginning are equal."""
    pairs = zip(some, others, strict=False)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), min(len(some), len(others)))


def _moved(header: re.Match[str], lines: int) -> str:
    return f"@@ -{int(header[1]) + lines}{header[2]} +{int(header[3]) + lines}{header[4]} @@"
