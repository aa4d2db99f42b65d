"""The definition of a tool as its MCP server lists it: a digest of it, and how two of them differ, as text.

The text is for a person who decides whether a changed tool may run, so nothing in it may be hidden. Each line of a
definition is a line of its own, with invisible characters escaped, and begins with `-`, `+` or a blank: a description
cannot imitate what is around it. Of two long lines only the part that differs is shown. Comparing takes little time,
whatever the server lists: of definitions with many lines, all that differ are shown as removed and added.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from a2c_smcp.computer.configuration.files import equal_at_start
from a2c_smcp.protocol.escaping import escaped

CHANGED = "its definition has changed since it was approved or first seen"

_FIELDS = ("title", "description", "inputSchema", "outputSchema", "annotations", "frontmatter", "resources")
"""The pinned fields beside the name: all that a model or a person decides by. The last two are those of skills."""
_CONTEXT = 2
"""Lines around a change that are shown."""
_MOST_COMPARED = 500
"""Lines that are compared one by one: the time grows with the square of their number."""
_LONG, _AROUND = 160, 60
"""Of a pair of lines with more characters, what they have in common is cut to so many on either side."""
_BLANKS = re.compile(r"(?<=\S) {6,}(?=\S)")
_AGENTS_PART = 4000
_HIDDEN = "changed, and not shown, since it may hold a secret"


def digest_of_tool(raw: Mapping[str, Any]) -> str:
    """A digest of the definition: the same however its objects are ordered, and if empty fields are left out."""
    pinned = {name: raw[name] for name in ("name", *_FIELDS) if raw.get(name)}
    return hashlib.sha256(json.dumps(pinned, sort_keys=True).encode()).hexdigest()


def texts_of_tool(raw: Mapping[str, Any]) -> dict[str, str]:
    """Each field of the definition as text that can be compared line by line."""
    return {name: _text(raw[name]) for name in _FIELDS if raw.get(name)}


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
    except RecursionError:
        return json.dumps(value, sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class ToolChange:
    """A definition that is not the pinned one, with secrets masked. `before` is `None` if only its digest is known.

    `asks`: calls need approval, whatever was granted before.
    """

    asks: bool
    before: Mapping[str, str] | None = field(repr=False)
    after: Mapping[str, str] = field(repr=False)

    @property
    def fields(self) -> list[str]:
        """The names of the fields that differ."""
        before = self.before
        return [name for name in _FIELDS if before is None or before.get(name, "") != self.after.get(name, "")]

    @property
    def diff(self) -> str:
        """All that differs, field by field."""
        if self.before is None:
            return "\n".join(["what it was before is not known; it is now", *_all_fields(self.after)])
        fields = self.fields
        return "\n".join(line for name in fields for line in self._field(name)) if fields else _HIDDEN

    def _field(self, name: str) -> Iterator[str]:
        assert self.before is not None
        yield f"{name}:"
        before, after = (_lines(texts.get(name, "")) for texts in (self.before, self.after))
        yield from (f"  {line}" for line in _shortened_blanks(_differences(before, after)))

    def to_wire(self) -> dict[str, Any]:
        """The change for an agent: the fields, and the beginning of the difference."""
        text = self.diff
        if len(text) > _AGENTS_PART:
            text = f"{text[:_AGENTS_PART]}\n[… {len(text) - _AGENTS_PART} more characters …]"
        return {"fields": self.fields, "diff": text}


class Pinned(NamedTuple):
    """A tool as it is listed now: the digest of its definition, and its change if it is not the pinned one."""

    digest: str
    change: ToolChange | None = None


def _all_fields(texts: Mapping[str, str]) -> Iterator[str]:
    for name, text in texts.items():
        yield f"{name}:"
        yield from (f"  {line}" for line in _shortened_blanks(_marked("+", _lines(text))))


def _lines(text: str) -> list[str]:
    return text.splitlines()


def _marked(mark: str, lines: Sequence[str]) -> list[str]:
    return [f"{mark} {_shown(line)}" for line in lines]


def _shown(line: str) -> str:
    """Runs of blanks are counted, not shown: they would push the rest off the screen."""
    return _BLANKS.sub(lambda blanks: f" [{len(blanks[0])} blanks] ", escaped(line)).rstrip(" ")


def _shortened_blanks(lines: Sequence[str]) -> Iterator[str]:
    """Many empty lines are counted, not shown: they would push the rest off the screen."""
    empty = 0
    for line in [*lines, "."]:
        if len(line) > 1 and not line[1:].strip():
            empty += 1
            continue
        if empty:
            yield f"[{empty} empty line{'s' if empty > 1 else ''}]"
        empty = 0
        if line != ".":
            yield line


def _differences(before: list[str], after: list[str]) -> list[str]:
    """The lines that differ, with a few around them."""
    start = equal_at_start(before, after)
    end = equal_at_start(before[start:][::-1], after[start:][::-1])
    old, new = before[start : len(before) - end], after[start : len(after) - end]
    head, tail = before[max(start - _CONTEXT, 0) : start], before[len(before) - end :][:_CONTEXT]
    found = [*_marked(" ", head)]
    if max(len(old), len(new)) > _MOST_COMPARED:
        found += [*_marked("-", old), *_marked("+", new)]
    else:
        found += _compared(old, new)
    return [*found, *_marked(" ", tail)]


def _compared(old: list[str], new: list[str]) -> Iterator[str]:
    for kind, old_start, old_end, new_start, new_end in difflib.SequenceMatcher(None, old, new).get_opcodes():
        if kind == "equal":
            yield from _around(_marked(" ", old[old_start:old_end]))
        elif kind == "replace" and old_end - old_start == new_end - new_start:
            for pair in zip(old[old_start:old_end], new[new_start:new_end], strict=True):
                yield from _pair(*pair)
        else:
            yield from _marked("-", old[old_start:old_end])
            yield from _marked("+", new[new_start:new_end])


def _around(lines: list[str]) -> list[str]:
    """Lines between two changes: the first and the last of them."""
    if len(lines) <= 2 * _CONTEXT + 1:
        return lines
    return [*lines[:_CONTEXT], f"  [{len(lines) - 2 * _CONTEXT} lines as before]", *lines[-_CONTEXT:]]


def _pair(old: str, new: str) -> list[str]:
    """A line in place of another. What long ones have in common is cut, never what differs."""
    if max(len(old), len(new)) <= _LONG:
        return [*_marked("-", [old]), *_marked("+", [new])]
    start = max(equal_at_start(old, new) - _AROUND, 0)
    end = max(equal_at_start(old[start:][::-1], new[start:][::-1]) - _AROUND, 0)
    head = f"[{start} characters as before] " if start else ""
    tail = f" [{end} characters as before]" if end else ""
    return [f"{mark} {head}{_shown(line[start : len(line) - end])}{tail}" for mark, line in (("-", old), ("+", new))]
