"""The pages of offices and members: all offices, all members, and the members of one office."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from a2c_smcp.console.html import Html, joined, tag
from a2c_smcp.console.operator.shown import (
    asked_twice,
    missing_note,
    office_link,
    page_links,
    row_table,
    search_form,
    selection_of,
    size_text,
)
from a2c_smcp.console.operator.state import TOPIC, OperatorState
from a2c_smcp.console.pages import Action, Form, Page, Region, View, hidden
from a2c_smcp.server.admin.operations import Who, offices_of
from a2c_smcp.server.admin.rows import MemberRow, page_of

__all__ = ["OfficesPages"]


class OfficesPages:
    """`who` says who the operator is that sends a form."""

    def __init__(self, state: OperatorState, who: Callable[[], Who]) -> None:
        self._state, self._who = state, who
        regions: dict[str, Region] = {"search": self._search, "offices": self._offices}
        self.page = Page("/offices", "Offices", regions, TOPIC, menu="Offices", pause=0.3)
        regions = {"office-search": self._search_in_office, "members": self._members}
        self.office_page = Page("/office", "Office", regions, TOPIC, pause=0.3)
        regions = {"search": self._search, "members": self._all_members}
        self.members_page = Page("/members", "Members", regions, TOPIC, menu="Members", pause=0.3)
        self.actions: Mapping[str, Action] = {"/disconnect": self._disconnect}

    def _search(self, view: View) -> Html:
        return search_form(view, "Name, principal or address")

    def _search_in_office(self, view: View) -> Html:
        return search_form(view, "Name, principal or address", id=view.query.get("id", ""))

    async def _offices(self, view: View) -> Html:
        rows, missing = await self._state.members()
        selection = selection_of(view)
        chosen = {row.office for row in selection.choose(rows)}
        offices = offices_of(row for row in rows if row.office in chosen)
        page = page_of(offices, selection, lambda row: row.place)
        cells = [
            (
                office_link(view, row.office),
                row.agent or "–",
                f"{row.computers:,}",
                str(row.away),
                str(row.calls),
                ", ".join(row.nodes) or "–",
            )
            for row in page.rows
        ]
        columns = ("Office", "Agent", "Computers", "Away", "Calls in flight", "Nodes")
        table = row_table(view, columns, cells, [f"office-{row.office}" for row in page.rows])
        nobody = tag("p", view.words("No office has members."), class_="empty")
        return joined(missing_note(view, missing), table if cells else nobody, page_links(view, page))

    async def _members(self, view: View) -> Html:
        office = view.query.get("id", "")
        rows, missing = await self._state.members()
        return self._member_table(view, [row for row in rows if row.office == office], missing_note(view, missing))

    async def _all_members(self, view: View) -> Html:
        rows, missing = await self._state.members()
        return self._member_table(view, rows, missing_note(view, missing))

    def _member_table(self, view: View, rows: list[MemberRow], note: Html | None) -> Html:
        selection, words = selection_of(view), view.words
        page = page_of(selection.choose(rows), selection, lambda row: row.place)
        cells = [
            (
                joined(tag("strong", row.name), " ", tag("span", words(row.role), class_="soft small")),
                office_link(view, row.office),
                row.principal,
                _since(view, row),
                str(row.calls),
                size_text(row.unread),
                joined(row.address or "–", " ", tag("span", row.version, class_="soft small")),
                joined(row.node or "–", tag("div", row.device, class_="code small") if row.device else None),
                asked_twice(view, "Disconnect", "/disconnect", hidden("id", row.id), member=row.id)
                if row.connected
                else "–",
            )
            for row in page.rows
        ]
        columns = ("Member", "Office", "Principal", "Since", "Calls", "Unread", "Address", "Node", "Action")
        nobody = tag("p", words("There is no such member."), class_="empty")
        table = row_table(view, columns, cells, [f"member-{row.id}-{row.office}" for row in page.rows])
        return joined(note, table if cells else nobody, page_links(view, page))

    async def _disconnect(self, view: View, form: Form) -> None:
        await self._state.operations.disconnect(form.get("id", [""])[0], self._who())
        self._state.changed()


def _since(view: View, row: MemberRow) -> Html:
    if row.since is None:
        return tag("span", view.words("away"), class_="state warn")
    return tag("time", "–", data_since=round(row.since * 1000), class_="number")
