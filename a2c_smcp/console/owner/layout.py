"""Values and texts of others on the owner's pages: in part, and in full on a page of their own.

The page in full is made once, in a thread: nothing that agents or MCP servers send holds up the computer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from a2c_smcp.console.html import Child, Html, joined, tag
from a2c_smcp.console.owner.state import OwnerState
from a2c_smcp.console.pages import Page, View
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.escaping import leaves, one_line

_PATH = "/whole"

Parts: TypeAlias = Sequence[tuple[str, object]]
"""English titles with what belongs to each: a text, or a JSON value."""


def whole_call(view: View, number: int) -> str:
    return view.link(_PATH, call=str(number))


def whole_request(view: View, number: int) -> str:
    return view.link(_PATH, request=str(number))


def whole_window(view: View, uri: str) -> str:
    return view.link(_PATH, window=uri)


class WholePage:
    """Chosen by the address: `call`, `request` or `window`."""

    def __init__(self, state: OwnerState) -> None:
        self._state = state
        self.page = Page(_PATH, "Everything", {"whole": self._whole}, frozenset(), is_live=False)

    async def _whole(self, view: View) -> Html:
        query = view.query
        parts: Parts = ()
        if number := query.get("call"):
            parts = self._call(number)
        elif number := query.get("request"):
            parts = self._request(number)
        elif uri := query.get("window"):
            parts = await self._window(uri)
        if not parts:
            return tag("p", view.words("It is no longer there."), class_="empty")
        return await asyncio.to_thread(_drawn, view, parts)

    def _call(self, number: str) -> Parts:
        call = next((call for call in self._state.calls if str(call.number) == number), None)
        if call is None:
            return []
        record = call.record
        named = [("Tool", f"{record['tool']} ({record['server']})"), ("Arguments", record["parameters"])]
        return [*named, ("Progress", call.message), ("Outcome", record["error"] or "")]

    def _request(self, number: str) -> Parts:
        for approval in self._state.approvals:
            if str(approval.number) == number:
                wanted = approval.request
                described = ("Description", wanted.risk.description)
                return [("Tool", f"{wanted.name} ({wanted.server})"), described, ("Arguments", wanted.arguments)]
        for pending in self._state.questions:
            if str(pending.number) == number:
                asked = pending.question
                where = ("Tool", f"{asked.tool} ({asked.server})") if asked.tool else ("Server", asked.server)
                return [where, ("Question", asked.message)]
        return []

    async def _window(self, uri: str) -> Parts:
        windows = await self._state.computer.get_desktop() if self._state.computer.owner.is_running else []
        parts = (window.partition("\n\n")[::2] for window in windows)
        return [("Window", content) for known, content in parts if known == uri][:1]


def _drawn(view: View, parts: Parts) -> Html:
    shown = [
        (title, what if isinstance(what, str) else json.dumps(what, ensure_ascii=False, indent=2))
        for title, what in parts
        if what != ""
    ]
    return joined(*(joined(tag("h2", view.words(title)), tag("pre", text, class_="block")) for title, text in shown))


# Values, times and texts of others
#
# Nothing is cut without saying so. A large one is on a page of its own (`WholePage`), so that a page that is made again
# several times a second takes little of the computer's event loop, however much agents and MCP servers send.

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
    """Return arguments with their values, of which no one can hide another or look like one.

    At most about `most` characters are shown: pages are made again and again. If there are more, it says how many, with
    a link to `whole`, the page that shows all of them.
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
        size = f"{len(json.dumps(values)):,}"
        note = view.words("Not all of it is shown here: it has {count} characters.", count=size)
        listed.append(tag("p", note, " ", tag("a", view.words("Show everything"), href=whole), class_="note warn"))
    return joined(*listed)


def long_text(view: View, text: str, whole: str = "") -> Html:
    """Return a text of others. A long one is cut in the middle, with the full text below.

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
    """Return the text, cut in the middle if it is longer than `most`. It takes no longer for a very long one."""
    if len(text) <= most:
        return text
    left_out = len(text) - most
    return f"{text[: most - _END]} [… {left_out:,} more characters …] {text[-_END:]}"


def difference(text: str) -> Html:
    """Return the change of a tool's definition, by lines. Each line has its mark, not only a colour."""
    marks = {"-": "del", "+": "ins"}
    lines = [tag(marks.get(line.strip()[:1], "span"), f"{line}\n") for line in text.split("\n")]
    return tag("pre", *lines, class_="diff")


def moment(seconds: float) -> Html:
    """Return a time of this machine."""
    local = time.localtime(seconds)
    return tag("time", time.strftime("%H:%M:%S", local), datetime=time.strftime("%Y-%m-%dT%H:%M:%S%z", local))


def duration(seconds: float) -> str:
    milliseconds = f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "< 1 ms"
    return milliseconds if seconds < 1 else f"{seconds:.1f} s"


def pill(text: str, kind: str = "") -> Html:
    """Return a state, in words and in a colour: `good`, `warn` or `bad`."""
    return tag("span", text, class_=f"state {kind}".rstrip())
