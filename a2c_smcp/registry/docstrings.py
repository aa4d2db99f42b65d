"""What a docstring says of a function and its parameters: its first paragraph, and Google's `Args:` section."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Documentation", "read_docstring"]

_SECTION = re.compile(
    r"(args|arguments|parameters|params|attributes|examples?|notes?|raises|returns?|references|see also|todo"
    r"|warnings?|warns|yields?|keyword args|keyword arguments|other parameters):\s*$",
    re.IGNORECASE,
)
_ARGUMENTS = ("args", "arguments", "parameters", "params", "keyword args", "keyword arguments", "other parameters")
_ENTRY = re.compile(r"(?P<name>\w+)\s*(\([^:]*\))?\s*:(\s+(?P<text>.*))?$")


@dataclass(frozen=True)
class Documentation:
    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)


def read_docstring(docstring: str | None) -> Documentation:
    """Reads a docstring as `inspect.getdoc` gives it: without the indentation of the code around it."""
    lines = (docstring or "").splitlines()
    return Documentation(_first_paragraph(lines), dict(_entries(lines)))


def _first_paragraph(lines: list[str]) -> str:
    paragraph = []
    for line in lines:
        if not line.strip() or _SECTION.match(line):
            break
        paragraph.append(line.strip())
    return " ".join(paragraph)


def _entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    """A line at the section's own depth begins an entry, what is deeper continues it."""
    depth, name, words = 0, "", list[str]()
    for line in _argument_lines(lines):
        indent = len(line) - len(line.lstrip())
        depth = depth or indent
        entry = _ENTRY.match(line.strip()) if indent <= depth else None
        if entry is None:
            words.append(line.strip())
            continue
        if name:
            yield name, " ".join(words)
        name, words = entry["name"], [entry["text"]] if entry["text"] else []
    if name:
        yield name, " ".join(words)


def _argument_lines(lines: list[str]) -> Iterator[str]:
    inside = False
    for line in lines:
        if line and not line[0].isspace():
            section = _SECTION.match(line)
            inside = section is not None and section[1].lower() in _ARGUMENTS
        elif inside and line.strip():
            yield line
