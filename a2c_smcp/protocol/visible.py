"""Text from peers made safe to show: nothing in it moves the cursor, and no part of it is hidden."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from a2c_smcp.protocol.names import INVISIBLE

__all__ = ["escaped", "leaves", "one_line"]

_SPACES = re.compile(" {4,}")
_TAIL = 40
_PLAIN_KEY = re.compile(r"[A-Za-z_][\w-]{0,63}")


def escaped(text: str, keep: str = "") -> str:
    """The text with invisible characters escaped as in JSON (`\\u202e`): controls, DEL, marks of writing direction."""
    if _is_visible(text):
        return text
    return "".join(char if _is_visible(char) or char in keep else json.dumps(char)[1:-1] for char in text)


def _is_visible(text: str) -> bool:
    """Unicode's categories call fillers, blank patterns and variation selectors printable. They are not visible."""
    return text.isprintable() and (text.isascii() or not INVISIBLE.search(text))


def one_line(value: Any, most: int | None = None) -> str:
    """A JSON value in one line. A long one is cut in the middle, with how many characters are left out.

    Runs of blanks are counted, not shown: they would push the rest off the screen.
    """
    text = escaped(json.dumps(value, ensure_ascii=False))
    text = _SPACES.sub(lambda blanks: f" [{len(blanks[0])} blanks] ", text)
    if most is None or len(text) <= most:
        return text
    head = most - _TAIL
    return f"{text[:head]} [… {len(text) - most} more characters …] {text[-_TAIL:]}"


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value inside a JSON value with its path: `options.shell`, `files[2]`. Empty ones are values, too."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            is_plain = isinstance(key, str) and _PLAIN_KEY.fullmatch(key) and _is_visible(key)
            shown = key if is_plain else one_line(key, 120)
            yield from leaves(each, f"{path}.{shown}" if path else shown)
    elif isinstance(value, list) and value:
        for index, each in enumerate(value):
            yield from leaves(each, f"{path}[{index}]")
    else:
        yield path, value
