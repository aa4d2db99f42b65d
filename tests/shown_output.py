"""Commands of a page, and whether what they print is what the page shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Step", "is_printed", "steps"]


class Step(NamedTuple):
    """A command of the page, and the output that the page shows."""

    command: str
    prints: str


def steps(page: Path) -> Iterator[Step]:
    """Every command that is followed by its output."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    for (language, text), (following, output) in zip(found, [*found[1:], ("", "")], strict=True):
        if language == "sh":
            yield Step(text.strip(), output if following == "text" else "")


def is_printed(wanted: str, screen: str) -> bool:
    """`…` matches anything in a line; a line `…` matches any lines. Runs of spaces are equal to one."""
    lines = []
    for line in wanted.splitlines():
        pieces = map(re.escape, re.sub(" +", " ", line).split("…"))
        lines.append(r"(?:.*\n)*?" if line == "…" else ".*".join(pieces) + r" *(?:\n|\Z)")
    return re.search("^" + "".join(lines), re.sub(" +", " ", screen), re.MULTILINE) is not None
