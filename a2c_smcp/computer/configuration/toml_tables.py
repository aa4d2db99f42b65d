"""One table in a TOML file: added, taken out, and shown without the values of others. All other text stays as it is.

A change is checked: the file has to say afterwards what it said before, and the table. Text that looks like the head of
a table but is none, inside a string of several lines, cannot deceive it.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from a2c_smcp.errors import ConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_VALUE = re.compile(r"(\s*[^=#\s][^=#]*=\s*).*")


def load_toml(text: str) -> dict[str, Any]:
    """Raises `ConfigError`."""
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"is not TOML: {error}") from None


def with_table(text: str, path: Sequence[str], values: Mapping[str, Any]) -> str:
    """The text with this table at its end. Raises `ConfigError` if it cannot be added there."""
    end = "\r\n" if "\r\n" in text else "\n"
    gap = "" if not text.strip() else end if text.endswith("\n") else 2 * end
    lines = [f"[{'.'.join(map(_key, path))}]", *(f"{_key(key)} = {_value(value)}" for key, value in values.items())]
    added = f"{text}{gap}{end.join(lines)}{end}"
    group, name = path
    before = load_toml(text)
    return _checked(added, {**before, group: {**before.get(group, {}), name: {**values}}})


def without_table(text: str, path: Sequence[str]) -> str:
    """The text without this table and those inside it. Raises `ConfigError` if it is written in another way."""
    group, name = path
    before = load_toml(text)
    rest = {key: value for key, value in before.get(group, {}).items() if key != name}
    expected = {**before, group: rest}
    lines = text.splitlines(keepends=True)
    for start, end in _places(lines, path):
        kept = lines[:start] + lines[end:]
        if start == len(kept) and start and not kept[-1].strip():
            kept.pop()  # the line between it and what was before
        for wanted in (expected, {key: value for key, value in expected.items() if key != group or value}):
            with suppress(ConfigError):
                return _checked("".join(kept), wanted)
    raise ConfigError(f"{group}.{name} is not a table of its own: take it out by hand")


def masked_toml(text: str, ours: Sequence[str]) -> list[str]:
    """The lines of a text, with the values of our table only."""
    lines = text.splitlines()
    start, end = next(_places(lines, ours), (0, 0))
    return [line if start <= number < end else _masked(line) for number, line in enumerate(lines)]


def _masked(line: str) -> str:
    if not line.strip() or (_head(line) is not None and "#" not in line):
        return line
    found = _VALUE.match(line)
    return f"{found[1]}…" if found else "…"


def _head(line: str) -> dict[str, Any] | None:
    """The table that a line begins, if it is the head of one."""
    try:
        return tomllib.loads(line) if line.lstrip().startswith("[") else None
    except ValueError:
        return None


def _places(lines: Sequence[str], path: Sequence[str]) -> Iterator[tuple[int, int]]:
    """First and last line of what may be the table, the shortest first."""
    heads = {number: table for number, line in enumerate(lines) if (table := _head(line)) is not None}
    for start, table in heads.items():
        if table == {path[0]: {path[1]: {}}}:
            yield from ((start, end) for end in [*(head for head in heads if head > start), len(lines)])


def _checked(text: str, wanted: Mapping[str, Any]) -> str:
    try:
        is_right = load_toml(text) == wanted
    except ConfigError:
        is_right = False
    if not is_right:
        raise ConfigError("its servers are written in a way that cannot be changed safely")
    return text


def _key(word: str) -> str:
    return word if _BARE.fullmatch(word) else json.dumps(word)


def _value(value: Any) -> str:
    """A text, a number, true or false, or a list of these: JSON writes them as TOML does."""
    return json.dumps(value, ensure_ascii=False)
