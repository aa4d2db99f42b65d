"""Edits the text of a JSON file: a member of an object is added, replaced or removed, the rest stays byte for byte.

Comments, trailing commas, indentation, line ends and a byte order mark are kept, and the new member follows the style
of the file. The text must be one that `loads` can read, with an object at its top, or empty.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from a2c_smcp.computer.configuration.files import ends_in_line_comment, significant_tokens

BYTE_ORDER_MARK = "\ufeff"
_DEFAULT_INDENT = "  "
_INDENTED = re.compile(r"^([ \t]+)[\"}]", re.MULTILINE)
_BLANKS = re.compile(r"[ \t]*")
_REST_OF_LINE = re.compile(r"[ \t]*(?:\r?\n|//)")
_COMMENTS_ON_THE_LINE = re.compile(r"(?:[ \t]*(?://[^\r\n]*|/\*.*?\*/))*", re.DOTALL)


def with_member(text: str, path: Sequence[str], value: Any) -> str:
    """The text with a value at this path of names.

    A new member is the last one of its object, a known one keeps its place. Missing objects on the path are added.
    """
    mark, body = _without_mark(text)
    body = body if body.strip() else "{}\n"
    holder = _object_at(body, 0)
    for depth, name in enumerate(path, 1):
        if (found := holder.member(name)) is None:
            for inner in reversed(path[depth:]):
                value = {inner: value}
            return mark + _added(body, holder, name, value)
        if depth < len(path):
            holder = _object_at(body, found.value)
    assert found
    if "\n" in body[holder.opening : holder.closing]:
        written = _json(value, indent=_unit(body)).replace("\n", _line_end(body) + _indent_of_line(body, found.start))
    else:
        written = _json(value)
    return mark + body[: found.value] + written + body[found.end :]


def without_member(text: str, group: str, name: str) -> str:
    """The text without this member of the object `group`; the same text if there is none."""
    mark, body = _without_mark(text)
    found = _object_at(body, 0).member(group)
    return text if found is None else mark + _removed(body, _object_at(body, found.value), name)


def _without_mark(text: str) -> tuple[str, str]:
    body = text.removeprefix(BYTE_ORDER_MARK)
    return text[: len(text) - len(body)], body


@dataclass(frozen=True)
class _MemberSpan:
    """A member by offsets: where its name and its value start, where the value ends, and the comma after it."""

    name: str
    start: int
    value: int
    end: int
    comma: int | None


@dataclass(frozen=True)
class _ObjectSpan:
    """An object by the offsets of its braces."""

    opening: int
    closing: int
    members: tuple[_MemberSpan, ...]

    def member(self, name: str) -> _MemberSpan | None:
        return next((member for member in self.members if member.name == name), None)


def _object_at(text: str, start: int) -> _ObjectSpan:
    """The object that is the next value from an offset on."""
    tokens = significant_tokens(text, start)
    opening, token = next(tokens), next(tokens)
    members: list[_MemberSpan] = []
    while token[0] != "}":
        name, _, value = token, next(tokens), next(tokens)
        end, token = _end_of_value(value, tokens), next(tokens)
        comma = token.start() if token[0] == "," else None
        members.append(_MemberSpan(json.loads(name[0]), name.start(), value.start(), end, comma))
        token = token if comma is None else next(tokens)
    return _ObjectSpan(opening.start(), token.start(), tuple(members))


def _end_of_value(token: re.Match[str], following: Iterator[re.Match[str]]) -> int:
    depth = 0
    while True:
        depth += (token[0] in ("{", "[")) - (token[0] in ("}", "]"))
        if depth == 0:
            return token.end()
        token = next(following)


def _added(text: str, to: _ObjectSpan, name: str, value: Any) -> str:
    if not to.members:
        return _added_to_empty(text, to, name, value)
    first, last = to.members[0], to.members[-1]
    if "\n" not in text[to.opening : first.start]:
        separator, written = " ", f"{_json(name)}: {_json(value)}"
    else:
        indent = _indent_of_line(text, first.start)
        separator, written = _line_end(text) + indent, _in_lines(text, indent, name, value)
    if last.comma is None:
        text = text[: last.end] + "," + text[last.end :]
    else:
        written += ","
    at = (last.end if last.comma is None else last.comma) + 1
    if separator != " " and (comments := _COMMENTS_ON_THE_LINE.match(text, at)):  # they belong to what is before them
        at = comments.end()
    return text[:at] + separator + written + text[at:]


def _added_to_empty(text: str, to: _ObjectSpan, name: str, value: Any) -> str:
    """Comments inside the braces stay in front of the new member."""
    end, outer = _line_end(text), _indent_of_line(text, to.opening)
    indent = outer + _unit(text)
    before = text[: to.closing].rstrip()
    return before + end + indent + _in_lines(text, indent, name, value) + end + outer + text[to.closing :]


def _removed(text: str, from_: _ObjectSpan, name: str) -> str:
    if (member := from_.member(name)) is None:
        return text
    place = from_.members.index(member)
    before = from_.members[place - 1] if place else None
    end = member.end if member.comma is None else member.comma + 1
    start = _start_of_space(text, before.end if before else from_.opening + 1, member.start, end)
    if len(from_.members) == 1 and not (text[from_.opening + 1 : start] + text[end : from_.closing]).strip():
        return text[: from_.opening + 1] + text[from_.closing :]
    if member.comma is None and before and before.comma is not None:  # the one before is the last one now
        return text[: before.comma] + text[before.comma + 1 : start] + text[end:]
    return text[:start] + text[end:]


def _start_of_space(text: str, after: int, start: int, end: int) -> int:
    """Where the space before a member starts. The end of a line comment is kept, unless one follows."""
    head = text[:start].rstrip(" \t")
    line = head.removesuffix("\n").removesuffix("\r")
    is_comment = ends_in_line_comment(text[after : len(line)])
    return len(head) if is_comment and not _REST_OF_LINE.match(text, end) else len(line)


def _in_lines(text: str, indent: str, name: str, value: Any) -> str:
    written = f"{_json(name)}: {_json(value, indent=_unit(text))}"
    return written.replace("\n", _line_end(text) + indent)


def _json(value: Any, indent: str | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _unit(text: str) -> str:
    """The indentation of one level: that of the first line that has one."""
    found = _INDENTED.search(text)
    return found[1] if found else _DEFAULT_INDENT


def _indent_of_line(text: str, offset: int) -> str:
    found = _BLANKS.match(text, text.rfind("\n", 0, offset) + 1)
    return found[0] if found else ""


# The change of a configuration file as a unified diff. Secrets have to be masked before.

_CONTEXT = 3
"""Lines around a change that are shown."""
_HEADER = re.compile(r"^@@ -(\d+)(\S*) \+(\d+)(\S*) @@")


def unified_diff(path: Path, before: Sequence[str] | None, after: Sequence[str]) -> str:
    """The lines of a file that change. Before is `None` if there was no file.

    Only the part that differs is compared: for a long file, difflib would take many seconds.
    """
    name, old = str(path), before or []
    start = max(equal_at_start(old, after) - _CONTEXT, 0)
    rest = max(equal_at_start(old[start:][::-1], after[start:][::-1]) - _CONTEXT, 0)
    lines = difflib.unified_diff(
        old[start : len(old) - rest],
        after[start : len(after) - rest],
        "/dev/null" if before is None else name,
        name,
        n=_CONTEXT,
        lineterm="",
    )
    return "".join(f"{_HEADER.sub(lambda header: _moved(header, start), line)}\n" for line in lines)


def equal_at_start(some: Sequence[str], others: Sequence[str]) -> int:
    """The number of equal items at the beginning."""
    pairs = zip(some, others, strict=False)
    return next((number for number, (one, other) in enumerate(pairs) if one != other), min(len(some), len(others)))


def _moved(header: re.Match[str], lines: int) -> str:
    return f"@@ -{int(header[1]) + lines}{header[2]} +{int(header[3]) + lines}{header[4]} @@"
