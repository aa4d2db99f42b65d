"""The pages of calls, as they run and as they ended, and of refusals."""

from __future__ import annotations

from a2c_smcp.console.html import Child, Html, joined, tag
from a2c_smcp.console.operator.shown import (
    clock_time,
    missing_note,
    office_link,
    outcome_pill,
    page_links,
    row_table,
    search_form,
    seconds_text,
    selection_of,
    size_text,
)
from a2c_smcp.console.operator.state import TOPIC, OperatorState
from a2c_smcp.console.pages import Page, Region, View
from a2c_smcp.server.admin.rows import page_of

__all__ = ["OperatorCallsPages"]


class OperatorCallsPages:
    """The newest calls that ended are first; of those that run, the oldest."""

    def __init__(self, state: OperatorState) -> None:
        self._state = state
        regions: dict[str, Region] = {"search": self._search, "running": self._running, "ended": self._ended}
        self.page = Page("/calls", "Calls", regions, TOPIC, menu="Calls", pause=0.3)
        regions = {"search": self._search_refusals, "refusals": self._refusals}
        self.refusals_page = Page("/refusals", "Refusals", regions, TOPIC, menu="Refusals", pause=0.3)

    def _search(self, view: View) -> Html:
        return search_form(view, "Office, agent, computer, tool or outcome")

    def _search_refusals(self, view: View) -> Html:
        return search_form(view, "Name, principal, address or reason")

    async def _running(self, view: View) -> Html:
        words = view.words
        listed = await self._state.operations.calls(selection_of(view))
        rows = listed.page.rows
        cells = [
            (
                _tool(view, row.tool, sealed=row.sealed, request=row.event),
                joined(row.agent, tag("div", row.principal, class_="soft small")),
                joined(row.computer, tag("div", office_link(view, row.office), class_="small")),
                tag("time", "–", data_since=round(row.since * 1000), class_="number"),
                size_text(row.bytes),
                row.node or "–",
            )
            for row in rows
        ]
        title = tag("h2", words("Running now"), " ", tag("span", listed.page.total, class_="soft number"))
        columns = ("Tool", "Agent", "Computer", "For", "Size", "Node")
        table = row_table(view, columns, cells, [f"running-{row.office}-{row.req_id}" for row in rows])
        nothing = tag("p", words("No call is in flight."), class_="empty")
        return joined(title, missing_note(view, listed.missing), table if cells else nothing)

    async def _ended(self, view: View) -> Html:
        words, selection = view.words, selection_of(view)
        past, _ = await self._state.past()
        page = page_of(selection.choose(past.ended), selection, lambda row: row.place, newest_first=True)
        cells = [
            (
                clock_time(row.at),
                _tool(view, row.tool, sealed=row.sealed, request=""),
                joined(row.agent, tag("div", row.principal, class_="soft small")),
                joined(row.computer, tag("div", office_link(view, row.office) if row.office else None, class_="small")),
                joined(
                    outcome_pill(view, row.outcome, row.code),
                    tag("div", row.reason, class_="small") if row.reason else None,
                ),
                seconds_text(row.seconds),
                f"{size_text(row.bytes_in)} / {size_text(row.bytes_out)}",
            )
            for row in page.rows
        ]
        columns = ("Time (UTC)", "Tool", "Agent", "Computer", "Outcome", "Duration", "Sent / answered")
        keys = [f"ended-{row.at}-{row.req_id}" for row in page.rows]
        nothing = tag("p", words("No call has ended yet."), class_="empty")
        table = row_table(view, columns, cells, keys) if cells else nothing
        return joined(tag("h2", words("Ended")), table, page_links(view, page))

    async def _refusals(self, view: View) -> Html:
        words, selection = view.words, selection_of(view)
        past, missing = await self._state.past()
        page = page_of(selection.choose(past.refusals), selection, lambda row: row.place, newest_first=True)
        cells = [
            (
                clock_time(row.at),
                words(row.event),
                joined(outcome_pill(view, "refused", row.code), tag("div", row.reason, class_="small")),
                row.principal or "–",
                row.name or "–",
                office_link(view, row.office) if row.office else "–",
                row.address or "–",
            )
            for row in page.rows
        ]
        columns = ("Time (UTC)", "What", "Why", "Principal", "Name", "Office", "Address")
        keys = [f"refusal-{row.at}" for row in page.rows]
        nothing = tag("p", words("Nothing was refused."), class_="empty")
        table = row_table(view, columns, cells, keys) if cells else nothing
        return joined(missing_note(view, missing), table, page_links(view, page))


def _tool(view: View, tool: str | None, *, sealed: bool, request: str) -> Child:
    if sealed:
        return tag("em", view.words("sealed"))
    return tag("strong", tool) if tool else tag("span", request or "–", class_="code small")
