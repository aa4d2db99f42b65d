"""The pages of calls, as they run and as they ended, and of the desktop as agents see it."""

from __future__ import annotations

from a2c_smcp.console.html import Html, joined, tag
from a2c_smcp.console.owner.shown import arguments, duration, long_text, moment, pill
from a2c_smcp.console.owner.state import OwnerState, WatchedCall
from a2c_smcp.console.owner.whole import whole_call, whole_window
from a2c_smcp.console.pages import Page, View
from a2c_smcp.errors import SMCPError

__all__ = ["CallsPages"]

_MOST = 1024
"""Characters of the arguments of one call: there are many on the page."""
_MOST_OF_WINDOW = 16 * 1024


class CallsPages:
    """The history of calls, and the desktop."""

    def __init__(self, state: OwnerState) -> None:
        self._state = state
        self.page = Page("/calls", "Calls", {"calls": self._calls}, frozenset(["calls"]), menu="Calls", pause=0.2)
        self.desktop_page = Page(
            "/desktop", "Desktop", {"desktop": self._desktop}, frozenset(["desktop"]), menu="Desktop", pause=1.0
        )

    def _calls(self, view: View) -> Html:
        words = view.words
        calls = self._state.calls
        if not calls:
            return tag("p", words("No agent has called a tool yet."), class_="empty")
        columns = ("Time", "Agent", "Tool", "Outcome", "Duration")
        head = tag("thead", tag("tr", *(tag("th", words(each), scope="col") for each in columns)))
        rows = [_row(view, each) for each in calls]
        return tag("div", tag("table", head, tag("tbody", *rows), class_="table"), class_="scroll")

    async def _desktop(self, view: View) -> Html:
        words = view.words
        note = tag("p", words("The windows that agents are shown, the most important first."), class_="soft")
        try:
            windows = await self._state.computer.get_desktop() if self._state.computer.is_running else []
        except SMCPError as error:
            return joined(note, tag("p", error.message, class_="note bad"))
        if not windows:
            return joined(note, tag("p", words("No MCP server shows a window."), class_="empty"))
        return joined(note, tag("ul", *(_window(view, each) for each in windows), class_="cards"))


def _row(view: View, call: WatchedCall) -> Html:
    words, record = view.words, call.record
    took = duration(call.ended - call.began) if call.ended is not None else None
    running = tag("time", "–", data_since=round(call.began * 1000))
    if view.language not in call.shown:
        call.shown[view.language] = arguments(view, record["parameters"], whole_call(view, call.number), _MOST)
    shown = tag(
        "details",
        tag("summary", words("Arguments")),
        call.shown[view.language],
        data_key=f"arguments-{call.number}",
    )
    return tag(
        "tr",
        tag("td", moment(call.began), data_label=words("Time")),
        tag("td", record["caller"] or words("you"), data_label=words("Agent")),
        tag(
            "td",
            tag("strong", record["tool"]),
            " ",
            tag("span", record["server"], class_="soft small"),
            shown,
            data_label=words("Tool"),
        ),
        tag("td", _outcome(view, call), data_label=words("Outcome")),
        tag("td", took or running, class_="number", data_label=words("Duration")),
        data_key=f"call-{call.number}",
    )


def _outcome(view: View, call: WatchedCall) -> Html:
    words, error = view.words, call.record["error"]
    if call.ended is None:
        return pill(words("running"), "warn")
    if call.record["success"]:
        return pill(words("done"), "good")
    said = error or words("The tool says that it failed.")
    return joined(
        pill(words("failed"), "bad"), tag("div", long_text(view, said, whole_call(view, call.number)), class_="small")
    )


def _window(view: View, window: str) -> Html:
    uri, _, content = window.partition("\n\n")
    body = tag("pre", content[:_MOST_OF_WINDOW], class_="block") if content else None
    empty = None if content else tag("p", view.words("It is empty."), class_="soft")
    rest = None
    if len(content) > _MOST_OF_WINDOW:
        more = f"{len(content) - _MOST_OF_WINDOW:,}"
        said = view.words("{count} more characters are not shown here.", count=more)
        link = tag("a", view.words("Show everything"), href=whole_window(view, uri))
        rest = tag("p", said, " ", link, class_="note warn")
    return tag("li", tag("h2", uri, class_="code"), body, empty, rest, class_="card", data_key=f"window-{uri}")
