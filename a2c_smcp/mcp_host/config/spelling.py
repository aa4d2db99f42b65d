"""The known name that a misspelt one is nearest to."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["did_you_mean", "nearest"]

_CLOSE = 0.75


def nearest(name: str, known: Iterable[str]) -> str | None:
    """`None` if no name is close. Upper and lower case make no difference."""
    by_spelling = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), by_spelling, n=1, cutoff=_CLOSE)
    return by_spelling[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """To be put behind a sentence without its full stop; empty if no name is close."""
    found = nearest(name, known)
    return f", did you mean {found!r}?" if found else ""
