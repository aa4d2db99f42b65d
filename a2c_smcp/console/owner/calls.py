"""The pages of calls, as they run and as they ended, and of the desktop as agents see it.

An MCP server that is busy with a call may answer the reads of its windows seconds later. So windows are read in a task,
once for all pages that are open; a page waits for it a moment, shows the windows of the last read, and is made again
when the task has ended. A read counts as current for `_FRESH` seconds, unless a change of a window is announced before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from a2c_smcp.console.html import Child, Html, joined, tag
from a2c_smcp.console.owner.layout import arguments, duration, long_text, moment, pill, whole_call, whole_window
from a2c_smcp.console.owner.state import OwnerState, WatchedCall
from a2c_smcp.console.pages import Page, View, row_table
from a2c_smcp.errors import SMCPError
from a2c_smcp.mcp_events import CallEnd, CallState

_MOST = 1024
"""Characters of the arguments of one call: there are many on the page."""
_MOST_OF_WINDOW = 16 * 1024
"""Characters of one window."""
_KINDS = dict.fromkeys(get_args(CallState), "warn") | dict.fromkeys(get_args(CallEnd), "bad")
_KINDS |= {"done": "good", "cancelled": ""}
_WAITED = 0.1
"""Seconds of waiting that are shown."""
_PATIENCE = 0.5
_FRESH = 3.0
_CHANGED, _READ = "desktop", "desktop read"


class CallsPage:
    """The history of calls."""

    def __init__(self, state: OwnerState) -> None:
        self._state = state
        self.page = Page("/calls", "Calls", {"calls": self._calls}, frozenset(["calls"]), menu="Calls", pause=0.2)

    def _calls(self, view: View) -> Html:
        columns = ("Time", "Agent", "Tool", "Outcome", "Duration")
        rows = [_row(view, call) for call in self._state.calls]
        return row_table(view, columns, rows, "No agent has called a tool yet.")


def _row(view: View, call: WatchedCall) -> Sequence[Child]:
    words, record = view.words, call.record
    took: Html | str = "–" if call.seconds is None else duration(call.seconds)
    if call.ended is None:
        took = tag("time", "–", data_since=round(call.since * 1000))
    elif call.waited >= _WAITED:
        took = joined(took, tag("div", words("waited {time}", time=duration(call.waited)), class_="soft small"))
    if view.language not in call.shown:
        call.shown[view.language] = arguments(view, record["parameters"], whole_call(view, call.number), _MOST)
    shown = tag(
        "details",
        tag("summary", words("Arguments")),
        call.shown[view.language],
        data_key=f"arguments-{call.number}",
    )
    return (
        f"call-{call.number}",
        moment(call.began),
        record["caller"] or words("you"),
        joined(tag("strong", record["tool"]), " ", tag("span", record["server"], class_="soft small"), shown),
        _outcome(view, call),
        tag("span", took, class_="number"),
    )


def _outcome(view: View, call: WatchedCall) -> Html:
    words, error = view.words, call.record["error"]
    shown = pill(words(call.state), _KINDS[call.state])
    if call.ended is None or call.state in ("done", "cancelled"):
        return shown
    reason = error or words("The tool says that it failed.")
    return joined(shown, tag("div", long_text(view, reason, whole_call(view, call.number)), class_="small"))


@dataclass(frozen=True)
class _Windows:
    """The windows that were read when changes had this `count`, or the `problem`. `at` is the time of the read."""

    count: int
    at: float
    windows: Sequence[str] = ()
    problem: str = ""


class DesktopPage:
    """The windows, the most important first."""

    def __init__(self, state: OwnerState) -> None:
        self._state = state
        self._known: _Windows | None = None
        self._task: asyncio.Task[None] | None = None
        topics = frozenset([_CHANGED, _READ])
        self.page = Page("/desktop", "Desktop", {"desktop": self._desktop}, topics, menu="Desktop", pause=1.0)

    async def _desktop(self, view: View) -> Html:
        words = view.words
        note = tag("p", words("The windows that agents are shown, the most important first."), class_="soft")
        await self._read_again()
        late = None
        if self._task:
            late = tag("p", words("The windows are being read. An MCP server takes its time."), class_="note warn")
        if self._known is None:
            return joined(note, late)
        if self._known.problem:
            return joined(note, late, tag("p", self._known.problem, class_="note bad"))
        if not self._known.windows:
            return joined(note, late, tag("p", words("No MCP server shows a window."), class_="empty"))
        return joined(note, late, tag("ul", *(_window(view, window) for window in self._known.windows), class_="cards"))

    async def _read_again(self) -> None:
        """Read the windows, unless they are current. Returns a moment later at the latest."""
        count = self._state.changes.count([_CHANGED])
        known = self._known
        if known and known.count == count and time.monotonic() < known.at + _FRESH:
            return
        if self._task is None:
            self._task = self._state.tasks.spawn(self._read(count))
        await asyncio.wait([self._task], timeout=_PATIENCE)

    async def _read(self, count: int) -> None:
        windows: Sequence[str] = ()
        problem = ""
        try:
            windows = await self._state.computer.get_desktop() if self._state.computer.owner.is_running else []
        except SMCPError as error:
            problem = error.message
        finally:
            self._task = None
        self._known = _Windows(count, time.monotonic(), windows, problem)
        self._state.changes.changed(_READ)


def _window(view: View, window: str) -> Html:
    uri, _, content = window.partition("\n\n")
    body = tag("pre", content[:_MOST_OF_WINDOW], class_="block") if content else None
    empty = None if content else tag("p", view.words("It is empty."), class_="soft")
    rest = None
    if len(content) > _MOST_OF_WINDOW:
        more = f"{len(content) - _MOST_OF_WINDOW:,}"
        text = view.words("{count} more characters are not shown here.", count=more)
        link = tag("a", view.words("Show everything"), href=whole_window(view, uri))
        rest = tag("p", text, " ", link, class_="note warn")
    return tag("li", tag("h2", uri, class_="code"), body, empty, rest, class_="card", data_key=f"window-{uri}")
