"""Which strings may be names on the wire (WIRE §6): of offices, members, requests, tools, events, MCP clients."""

from __future__ import annotations

import re

__all__ = [
    "INVISIBLE",
    "MAX_INSTANCE",
    "MAX_NAME",
    "MAX_TOOL_NAME",
    "MAX_WINDOW_URI",
    "MIN_INSTANCE",
    "client_field",
    "fault_in",
    "fault_in_client",
]

MAX_NAME = 128
MAX_TOOL_NAME = 256
MAX_WINDOW_URI = 2048
MIN_INSTANCE, MAX_INSTANCE = 16, 128

INVISIBLE = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # controls: C0, DEL, C1
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "\ud800-\udfff"  # halves of surrogate pairs
    "]"
)
"""Characters that are invisible, or change the direction of text: with them, two different names could look alike.

These are Unicode's `Default_Ignorable_Code_Point` (zero-width and format characters, fillers, variation selectors,
tags), line separators, marks of annotations, and the blank pattern of Braille.
"""


def fault_in(name: object, longest: int = MAX_NAME, shortest: int = 1) -> str | None:
    """What is wrong with a name, or `None`."""
    if not isinstance(name, str):
        return "must be a string"
    if shortest <= len(name) <= longest and name.isascii() and name.isprintable() and name[0] != " " != name[-1]:
        return None  # nearly all names; the rules follow
    if not shortest <= len(name) <= longest:
        return f"must have {shortest} to {longest} characters"
    if name != name.strip():
        return "must not begin or end with white space"
    if INVISIBLE.search(name):
        return "must not hold control, bidirectional-override, zero-width or other invisible characters"
    return None


def fault_in_client(client: object) -> str | None:
    """What is wrong with the `client` of a request, the MCP client behind an agent, or `None`."""
    if not isinstance(client, dict):
        return "must be an object with a name"
    if fault := fault_in(client.get("name")):
        return f"must have a valid name: it {fault}"
    version = client.get("version")
    fault = None if version is None else fault_in(version)
    return f"must have a valid version: it {fault}" if fault else None


def client_field(name: str, version: str = "") -> dict[str, str] | None:
    """The `client` of requests for an MCP client that calls itself so. What a name must not hold is left out.

    Returns `None` if nothing is left of the name.
    """
    given = {"name": _fitting(name), "version": _fitting(version)}
    return {field: text for field, text in given.items() if text} if given["name"] else None


def _fitting(text: str) -> str:
    return INVISIBLE.sub("", text).strip()[:MAX_NAME].rstrip()
