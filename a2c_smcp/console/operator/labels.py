"""Parts that the operator's pages share: tables, numbers, times, searches, and links to further pages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from a2c_smcp.console.html import Html, tag
from a2c_smcp.console.pages import View, button_form, hidden
from a2c_smcp.server.admin.node_view import RowPage, Selection
from a2c_smcp.server.admin.operations import Missing

PER_PAGE = 50
_KIB = 1024
_GOOD, _QUIET = frozenset({"done", "ok", "answered"}), frozenset({"cancelled"})


def search_form(view: View, label: str, **kept: str) -> Html:
    """Return a form that filters the list of a page. `kept` are further fields of its address."""
    words = view.words
    field = tag(
        "label",
        words(label),
        tag("input", type="search", name="search", value=view.query.get("search", ""), autocomplete="off"),
        class_="field search",
    )
    rest = [hidden(name, value) for name, value in kept.items()]
    button = tag("button", words("Search"), type="submit")
    return tag("form", *rest, field, button, method="get", action=view.link(view.path), class_="row", role="search")


def selection_of(view: View) -> Selection:
    """Return the filters in the address of a page."""
    return Selection(search=view.query.get("search", ""), after=view.query.get("after"), limit=PER_PAGE)


def page_links(view: View, page: RowPage[Any]) -> Html:
    """Return the number of rows, and links to the first and the next page."""
    words = view.words
    kept = {name: value for name, value in view.query.items() if name != "after"}
    count = tag("span", words("{count} in all", count=page.total), class_="soft")
    first = tag("a", words("First page"), href=view.link(view.path, **kept)) if "after" in view.query else None
    following = None
    if page.next:
        following = tag("a", words("Next page"), href=view.link(view.path, **kept, after=page.next))
    return tag("p", count, " ", first, " ", following, class_="row")


def missing_note(view: View, missing: Sequence[Missing]) -> Html | None:
    """Return a note of the nodes that have not answered: their rows are not on this page."""
    if not missing:
        return None
    words = view.words
    notes = [tag("p", words("Node {node} is missing here:", node=node.node), " ", node.reason) for node in missing]
    return tag("div", *notes, class_="note warn")


def office_link(view: View, office: str) -> Html:
    return tag("a", office, href=view.link("/office", id=office))


def asked_twice(view: View, what: str, says: str, action: str, *fields: Html, key: str) -> Html:
    """Return a button that shows what will happen, and a second one, which does it."""
    words = view.words
    button = tag("button", words(what), type="submit", class_="danger")
    explained = tag("p", says, class_="small")
    form = button_form(view, action, *fields, button)
    return tag("details", tag("summary", words(what)), explained, form, data_key=f"{action}-{key}")


def outcome_pill(view: View, outcome: str, code: int | None = None) -> Html:
    kind = "good" if outcome in _GOOD else "" if outcome in _QUIET else "bad"
    number = f" {code}" if code else ""
    return tag("span", view.words(outcome), number, class_=f"state {kind}".strip())


def clock_time(seconds: float) -> Html:
    """The time of day on the Server, in UTC."""
    moment = time.gmtime(seconds)
    return tag(
        "time", time.strftime("%H:%M:%S", moment), datetime=time.strftime("%Y-%m-%dT%H:%M:%SZ", moment), class_="number"
    )


def date_time(seconds: float) -> Html:
    """A date and the time of day, in UTC."""
    return tag("time", datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M"), class_="number")


def seconds_text(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def size_text(count: int) -> str:
    return f"{count} B" if count < _KIB else f"{count / _KIB:,.0f} KiB"
