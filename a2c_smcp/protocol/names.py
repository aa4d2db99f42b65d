"""What may be a name on the wire (WIRE §6): of an office, a member, a request, a tool, an event."""

from __future__ import annotations

import re

__all__ = ["MAX_INSTANCE", "MAX_NAME", "MAX_TOOL_NAME", "MAX_WINDOW_URI", "MIN_INSTANCE", "fault_in"]

MAX_NAME = 128
MAX_TOOL_NAME = 256
MAX_WINDOW_URI = 2048
MIN_INSTANCE, MAX_INSTANCE = 16, 128

# Controls (C0, C1), marks and overrides of writing direction, line separators, and halves of surrogate pairs.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def fault_in(name: object, longest: int = MAX_NAME, shortest: int = 1) -> str | None:
    """Why this cannot be a name, or `None` if it can."""
    if not isinstance(name, str):
        return "must be a string"
    if shortest <= len(name) <= longest and name.isascii() and name.isprintable() and name[0] != " " != name[-1]:
        return None  # as nearly all are; the rules follow
    if not shortest <= len(name) <= longest:
        return f"must have {shortest} to {longest} characters"
    if name != name.strip():
        return "must not begin or end with white space"
    if _FORBIDDEN.search(name):
        return "must not hold control or bidirectional-override characters"
    return None
