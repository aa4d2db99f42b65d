"""How values, times and texts of others are shown on the owner's pages.

Nothing is cut without saying so. What is large is on a page of its own (`whole.py`), so that a page that is made again
several times a second takes little of the computer's event loop, however much agents and MCP servers send.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from a2c_smcp.console.html import Child, Html, joined, tag
from a2c_smcp.console.pages import View
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.visible import leaves, one_line

__all__ = ["arguments", "difference", "duration", "long_text", "moment", "pill", "shortened"]

_SHORT, _SHORT_LINES = 600, 12
"""Characters and lines of a text that are shown at once; a click shows all of a longer one."""
_BEGINNING, _END = 300, 40
_ROWS, _MOST_ROWS = 60, 300
_MOST = 16 * 1024
"""Characters of arguments that are on a page which is made again when something changes."""
_LONGEST = 8 * 1024
"""Characters of one text there."""
_FRAME = 40
"""Characters that a value takes beside itself, about."""


def arguments(view: View, values: Mapping[str, Any], whole: str, most: int = _MOST) -> Html:
    """Arguments with their values, of which no one can hide another or look like one.

    At most about `most` characters are shown: pages are made again and again. Where there are more, it says how many,
    with a link to `whole`, the page that shows all of them.
    """
    if not values:
        return tag("p", view.words("It has no arguments."), class_="soft")
    rows: list[Html] = []
    room, is_all = most, True
    for path, value in leaves(dict(values)):
        if room <= 0 or len(rows) >= _MOST_ROWS:
            is_all = False
            break
        text = value if isinstance(value, str) and value else dumps(value)
        room -= min(len(text), _LONGEST) + len(path) + _FRAME
        is_all = is_all and len(text) <= _LONGEST
        rows.append(tag("div", tag("dt", path), tag("dd", long_text(view, text, whole))))
    listed: list[Child] = [tag("dl", *rows[:_ROWS], class_="values")]
    if rest := rows[_ROWS:]:
        more = view.words("Show {count} more values", count=len(rest))
        listed.append(tag("details", tag("summary", more), tag("dl", *rest, class_="values"), data_key="more"))
    if not is_all:
        listed.append(_rest(view, len(json.dumps(values)), whole))
    return joined(*listed)


def _rest(view: View, size: int, whole: str) -> Html:
    said = view.words("Not all of it is shown here: it has {count} characters.", count=f"{size:,}")
    return tag("p", said, " ", tag("a", view.words("Show everything"), href=whole), class_="note warn")


def long_text(view: View, text: str, whole: str = "") -> Html:
    """A text of others. Of a long one the beginning and the end are shown, with how much is between, and all below.

    With `whole`, the page that shows all of it, a very long one is not on this page.
    """
    if len(text) <= _SHORT and text.count("\n") < _SHORT_LINES:
        return tag("span", text, class_="text")
    everything = view.words("Show all {count} characters", count=f"{len(text):,}")
    if whole and len(text) > _LONGEST:
        link = tag("a", everything, href=whole)
        return joined(tag("span", shortened(text), class_="soft"), " ", link)
    return joined(
        tag("span", one_line(text, _BEGINNING), class_="soft"),
        tag("details", tag("summary", everything), tag("pre", text)),
    )


def shortened(text: str, most: int = _BEGINNING) -> str:
    """The text, or its beginning and its end with how much is between. It takes no longer for a very long one."""
    if len(text) <= most:
        return text
    left_out = len(text) - most
    return f"{text[: most - _END]} [… {left_out:,} more characters …] {text[-_END:]}"


def difference(text: str) -> Html:
    """The change of a tool's definition: what is gone and what is new. Each line has its mark, not only a colour."""
    marks = {"-": "del", "+": "ins"}
    lines = [tag(marks.get(line.strip()[:1], "span"), f"{line}\n") for line in text.split("\n")]
    return tag("pre", *lines, class_="diff")


def moment(seconds: float) -> Html:
    """A time of this machine."""
    local = time.localtime(seconds)
    return tag("time", time.strftime("%H:%M:%S", local), datetime=time.strftime("%Y-%m-%dT%H:%M:%S%z", local))


def duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def pill(text: str, kind: str = "") -> Html:
    """A state, in words and in a colour: `good`, `warn` or `bad`."""
    return tag("span", text, class_=f"state {kind}".rstrip())
