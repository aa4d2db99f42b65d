"""Text of others as it may be shown: nothing in it moves the cursor, and nothing is hidden behind its layout."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["escaped", "one_line"]

_SPACES = re.compile(" {4,}")
_TAIL = 40


def escaped(text: str, keep: str = "") -> str:
    """Controls, DEL, marks of writing direction and whatever else is invisible, as JSON escapes it: `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else json.dumps(char)[1:-1] for char in text)


def one_line(value: Any, most: int) -> str:
    """A JSON value in one line. Of a long one, the beginning and the end, with how much is left out between them.

    Runs of blanks are counted, not shown: they would push what follows them off the screen.
    """
    text = escaped(json.dumps(value, ensure_ascii=False))
    text = _SPACES.sub(lambda blanks: f" [{len(blanks[0])} blanks] ", text)
    if len(text) <= most:
        return text
    head = most - _TAIL
    return f"{text[:head]} [… {len(text) - most} more characters …] {text[-_TAIL:]}"
