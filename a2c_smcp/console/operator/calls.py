"""The pages of calls, as they run and as they ended, and of refusals."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from secrets import token_hex

from a2c_smcp.console.html import Child, Html, Response, joined, leads_to, tag
from a2c_smcp.console.operator.labels import (
    asked_twice,
    clock_time,
    date_time,
    missing_note,
    office_link,
    outcome_pill,
    page_links,
    search_form,
    seconds_text,
    selection_of,
    size_text,
)
from a2c_smcp.console.operator.overview import TOPIC, OperatorState
from a2c_smcp.console.pages import Action, Form, Page, Region, View, button_form, first, hidden, row_table
from a2c_smcp.errors import BadRequest
from a2c_smcp.server.admin.node_view import KeyRow, MemberRow, page_of
from a2c_smcp.server.admin.operations import KeyChange, Who, offices_of
from a2c_smcp.server.http_requests import CONSOLE_PATH


class OperatorCallsPages:
    """The newest calls that ended are first; of those that run, the oldest."""

    def __init__(self, state: OperatorState) -> None:
        self._state = state
        regions: dict[str, Region] = {
            "search": lambda view: search_form(view, "Office, agent, computer, tool or outcome"),
            "running": self._running,
            "ended": self._ended,
        }
        self.page = Page("/calls", "Calls", regions, TOPIC, menu="Calls", pause=0.3)
        regions = {
            "search": lambda view: search_form(view, "Name, principal, address or reason"),
            "refusals": self._refusals,
        }
        self.refusals_page = Page("/refusals", "Refusals", regions, TOPIC, menu="Refusals", pause=0.3)

    async def _running(self, view: View) -> Html:
        words = view.words
        listed = await self._state.operations.calls(selection_of(view))
        rows = [
            (
                f"running-{row.office}-{row.req_id}",
                _tool(view, row.tool, sealed=row.sealed, request=row.event),
                joined(row.agent, tag("div", row.principal, class_="soft small")),
                joined(row.computer, tag("div", office_link(view, row.office), class_="small")),
                joined(
                    tag("time", "–", data_since=round(row.since * 1000), class_="number"),
                    tag("div", words(row.state), class_="small") if row.state else None,
                ),
                size_text(row.bytes),
                row.node or "–",
            )
            for row in listed.page.rows
        ]
        title = tag("h2", words("Running now"), " ", tag("span", listed.page.total, class_="soft number"))
        columns = ("Tool", "Agent", "Computer", "For", "Size", "Node")
        table = row_table(view, columns, rows, "No call is in flight.")
        return joined(title, missing_note(view, listed.missing), table)

    async def _ended(self, view: View) -> Html:
        words, selection = view.words, selection_of(view)
        past, _ = await self._state.past()
        page = page_of(selection.choose(past.ended), selection, lambda row: row.place, newest_first=True)
        rows = [
            (
                f"ended-{row.at}-{row.req_id}",
                clock_time(row.at),
                _tool(view, row.tool, sealed=row.sealed, request=""),
                joined(row.agent, tag("div", row.principal, class_="soft small")),
                joined(row.computer, tag("div", office_link(view, row.office) if row.office else None, class_="small")),
                joined(
                    outcome_pill(view, row.end or row.outcome, row.code),
                    tag("div", row.reason, class_="small") if row.reason else None,
                ),
                seconds_text(row.seconds),
                f"{size_text(row.bytes_in)} / {size_text(row.bytes_out)}",
            )
            for row in page.rows
        ]
        columns = ("Time (UTC)", "Tool", "Agent", "Computer", "Outcome", "Duration", "Sent / answered")
        table = row_table(view, columns, rows, "No call has ended yet.")
        return joined(tag("h2", words("Ended")), table, page_links(view, page))

    async def _refusals(self, view: View) -> Html:
        words, selection = view.words, selection_of(view)
        past, missing = await self._state.past()
        page = page_of(selection.choose(past.refusals), selection, lambda row: row.place, newest_first=True)
        rows = [
            (
                f"refusal-{row.at}",
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
        table = row_table(view, columns, rows, "Nothing was refused.")
        return joined(missing_note(view, missing), table, page_links(view, page))


def _tool(view: View, tool: str | None, *, sealed: bool, request: str) -> Child:
    if sealed:
        return tag("em", view.words("sealed"))
    return tag("strong", tool) if tool else tag("span", request or "–", class_="code small")


# API keys: listed by id, made, replaced, ended. A new key is shown once.
#
# The answer to the form that makes a key leads to the page that shows it, so that loading a page again makes nothing.
# In between the key is in the memory of the node that made it (`NewKeys`). A balancer may send the browser to another
# node, which asks for it.

_HOUR = 3600.0
_KEPT = 60.0  # seconds in which a new key can be shown
_SHOWN = "/keys/new"
_SOON = 7 * 24 * _HOUR
_DAYS = {"1": "one day", "7": "one week", "30": "30 days", "365": "one year", "": "for ever"}


class NewKeys:
    """Keys that were made and not shown yet, each for the session that made it. Kept for a minute."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], KeyChange] = {}

    def keep(self, session: str, change: KeyChange) -> None:
        self._kept[session, change.id] = change
        asyncio.get_running_loop().call_later(_KEPT, self.take, session, change.id)

    def take(self, session: str, wanted: str) -> KeyChange | None:
        """Return a key by its id, once."""
        return self._kept.pop((session, wanted), None)


class KeysPage:
    """`who` returns the operator who sends a form."""

    def __init__(self, state: OperatorState, who: Callable[[], Who]) -> None:
        self._state, self._who = state, who
        self._made = state.operations.new_keys = NewKeys()
        self.new_page = Page(_SHOWN, "A new key", {"made": self._shown}, frozenset(), is_live=False)
        regions: dict[str, Region] = {"keys": self._keys, "grants": self._grants, "new-key": self._new}
        self.page = Page("/keys", "Keys", regions, TOPIC, menu="Keys", pause=0.3)
        self.actions: Mapping[str, Action] = {
            "/keys/create": self._create,
            "/keys/expire": self._expire,
            "/keys/rotate": self._rotate,
            "/keys/revoke": self._revoke,
            "/keys/link": self._link,
        }

    async def _keys(self, view: View) -> Html:
        words = view.words
        try:
            keys, missing = await self._state.operations.all_keys()
        except BadRequest as error:
            return tag("p", error.about, class_="empty")
        columns = (
            "Principal", "Key", "Offices", "Roles", "Names", "Expires (UTC)", "Last use (UTC)", "Connections", "Action",
        )  # fmt: skip
        rows = [
            (
                f"key-{row.id}",
                tag("strong", row.principal),
                joined(tag("span", row.id, class_="code"), tag("div", row.device, class_="code small")),
                *_scope(view, row),
                _expiry(view, row),
                words("now") if row.connections else _last_use(view, row),
                str(row.connections),
                self._choices(view, row),
            )
            for row in keys
        ]
        note = None
        if self._state.operations.unwritable:
            text = words(
                "The keys file cannot be written. A key that is revoked is refused until all processes of the Server "
                "are started again, with --redis for as long as the file has it: delete its entry in the file."
            )
            note = tag("p", text, class_="note")
        return joined(note, missing_note(view, missing), row_table(view, columns, rows, "There are no keys."))

    async def _grants(self, view: View) -> Html:
        """The grants of people to MCP clients."""
        words, operations = view.words, self._state.operations
        if operations.grants is None:
            return joined()
        columns = ("Principal", "Grant", "Office", "Client", "Last use (UTC)", "Action")
        rows = [
            (
                row.id,
                tag("strong", row.principal),
                tag("span", row.id, class_="code"),
                row.office,
                joined(
                    row.client or "–", " ", tag("span", row.domain or words("unverified name"), class_="soft small")
                ),
                date_time(row.used),
                asked_twice(
                    view,
                    "Revoke",
                    words("The MCP client of {principal} loses its access at once.", principal=row.principal),
                    "/keys/revoke",
                    hidden("id", row.id),
                    key=row.id,
                ),
            )
            for row in await operations.all_grants()
        ]
        fields = [
            tag("label", words(label), tag("input", name=name, required=True, autocomplete="off"), class_="field")
            for label, name in (("Principal", "principal"), ("Office", "office"))
        ]
        button = tag("button", words("Make a link"), type="submit")
        form = button_form(view, "/keys/link", *fields, button, is_live=False)
        table = row_table(view, columns, rows, "No MCP client is signed in.")
        return joined(tag("h2", words("Signed-in MCP clients")), table, form if view.may_change else None)

    async def _link(self, view: View, form: Form) -> Response:
        """A one-time link, shown as a new key is."""
        operations = self._state.operations
        link = await operations.new_link(first(form, "office").strip(), first(form, "principal").strip(), self._who())
        return self._lead_to(view, KeyChange(f"link-{token_hex(4)}", link))

    def _choices(self, view: View, row: KeyRow) -> Html:
        words, fields = view.words, hidden("id", row.id)
        if row.fixed:
            option = "--admin-key" if row.is_admin_key else "--api-key"
            return tag("span", words("given with {option}", option=option), class_="soft small")
        ends = words(
            "Connections of {principal} that end at once: {count}.", count=row.connections, principal=row.principal
        )
        later = words("A new key is shown to you. This one works for one more hour.")
        return joined(
            asked_twice(view, "Replace", later, "/keys/rotate", fields, key=row.id),
            asked_twice(view, "Expire now", ends, "/keys/expire", fields, key=row.id),
            asked_twice(view, "Revoke", f"{ends} {words('The key is deleted.')}", "/keys/revoke", fields, key=row.id),
        )

    def _new(self, view: View) -> Html:
        words = view.words
        if not view.may_change:
            return joined()

        def field(label: str, name: str, help_text: str, *, required: bool = False) -> Html:
            given = tag("input", name=name, type="text", autocomplete="off", required=required, maxlength=2000)
            return tag("label", words(label), tag("span", words(help_text), class_="help"), given, class_="field")

        known = _ROLES | (_OPERATORS if self._state.operations.operators.file else {})
        roles = [tag("option", words(text), value=value) for value, text in known.items()]
        days = [tag("option", words(text), value=value, selected=value == "365") for value, text in _DAYS.items()]
        form = button_form(
            view,
            "/keys/create",
            field("Principal", "principal", "Who will hold the key.", required=True),
            field("Offices", "offices", "Names or patterns with commas between them; empty for any."),
            field("Names", "names", "Names or patterns with commas between them; empty for any."),
            tag("label", words("Role"), tag("select", *roles, name="role"), class_="field"),
            tag("label", words("Valid"), tag("select", *days, name="days"), class_="field"),
            tag("button", words("Make a key"), type="submit", class_="main"),
            is_live=False,
        )
        return tag("section", tag("h2", words("A new key")), form, class_="card")

    async def _create(self, view: View, form: Form) -> Response:
        entry: dict[str, object] = {"principal": first(form, "principal").strip()}
        for name in ("offices", "names"):
            if parts := [part.strip() for part in first(form, name).split(",") if part.strip()]:
                entry[name] = parts
        if role := first(form, "role"):
            entry["roles"] = [role]
        days = first(form, "days")
        if days.isdecimal():
            moment = datetime.fromtimestamp(time.time() + int(days) * 24 * _HOUR, UTC)
            entry["expires"] = moment.isoformat(timespec="seconds")
        return self._lead_to(view, await self._state.operations.create_key(entry, self._who()))

    async def _rotate(self, view: View, form: Form) -> Response:
        return self._lead_to(view, await self._state.operations.rotate_key(first(form, "id"), _HOUR, self._who()))

    async def _expire(self, view: View, form: Form) -> None:
        await self._state.operations.expire_key(first(form, "id"), time.time(), self._who())
        self._state.changed()

    async def _revoke(self, view: View, form: Form) -> None:
        await self._state.operations.revoke_key(first(form, "id"), self._who())
        self._state.changed()

    def _lead_to(self, view: View, change: KeyChange) -> Response:
        """Lead to the page that shows a new key. Its address has the id, never the key."""
        assert view.session
        self._state.changed()
        self._made.keep(view.session.id, change)
        return leads_to(view.link(_SHOWN, id=change.id))

    async def _shown(self, view: View) -> Html:
        assert view.session
        words, session, wanted = view.words, view.session.id, view.query.get("id", "")
        back = tag("p", tag("a", words("Back"), href=view.link("/keys"), class_="button"))
        change = self._made.take(session, wanted) or await self._state.operations.new_key_elsewhere(session, wanted)
        if change is None:
            text = words("A new key is shown once, within a minute. Replace this one if nobody has noted it down.")
            return joined(tag("p", tag("span", wanted, class_="code")), tag("p", text, class_="note"), back)
        shown = [_copied(view, change.key or "", "new-key-value")]
        if change.row:
            shown += [
                tag("h2", words("For its holder")),
                _copied(view, start_command(change.row, place.get()), "start"),
            ]
        note = tag("p", words("For its holder alone. It is shown once, and cannot be shown again."))
        differing = [tag("p", words("Node {node} has a keys file of its own.", node=node)) for node in change.differing]
        return joined(note, *shown, *differing, back)


place: ContextVar[str] = ContextVar("place")
"""The URL of the Server, as the operator's browser knows it."""

_ROLES = {"": "agent or computer", "agent": "agent", "computer": "computer"}
_OPERATORS = {"viewer": "viewer of this console", "operator": "operator of this console"}
_PATTERN = frozenset("*?[")


def start_command(row: KeyRow, url: str) -> str:
    """The lines that the holder of a new key runs. The key is typed in: others can read the arguments of programs."""
    roles, variable = row.roles or (), "A2C_ADMIN_KEY" if row.is_admin_key else "A2C_API_KEY"
    parts = ["office", "ls"] if row.is_admin_key else ["agent", "tools"] if roles == ["agent"] else ["computer"]
    parts += ["--url", url]
    for option, names in (("--office", row.offices), ("--name", row.names)):
        if name := next((name for name in names or () if not _PATTERN & {*name}), None):
            parts += [option, name]
    also = f"\n# {url}{CONSOLE_PATH}/" if row.is_admin_key else ""
    return f"read -rs {variable} && export {variable}\n{shlex.join(['a2c-smcp', *parts])}{also}"


def _copied(view: View, text: str, name: str) -> Html:
    copied = view.words("Copied")
    button = tag("button", view.words("Copy"), type="button", data_copy=name, data_copied=copied, class_="quiet")
    return tag("div", tag("pre", text, class_="block", id=name), button)


def _scope(view: View, row: KeyRow) -> list[str]:
    words, any_one = view.words, "–" if row.is_admin_key else view.words("any")
    roles = None if row.roles is None else map(words, row.roles)
    return [any_one if scope is None else ", ".join(scope) for scope in (row.offices, roles, row.names)]


def _expiry(view: View, row: KeyRow) -> Html | str:
    if row.expires is None:
        return view.words("never")
    if row.expired:
        return tag("span", view.words("expired"), class_="state bad")
    is_soon = row.expires < time.time() + _SOON
    return joined(
        date_time(row.expires), " ", tag("span", view.words("soon"), class_="state warn") if is_soon else None
    )


def _last_use(view: View, row: KeyRow) -> Html | str:
    if row.last_use is None:
        return tag("span", view.words("not since"), " ", date_time(row.uses_since), class_="soft")
    return date_time(row.last_use)


# All offices, all members, and the members of one office


class OfficesPages:
    """`who` returns the operator who sends a form."""

    def __init__(self, state: OperatorState, who: Callable[[], Who]) -> None:
        self._state, self._who = state, who
        regions: dict[str, Region] = {"search": self._search, "offices": self._offices}
        self.page = Page("/offices", "Offices", regions, TOPIC, menu="Offices", pause=0.3)
        regions = {"office-search": self._search, "members": self._members}
        self.office_page = Page("/office", "Office", regions, TOPIC, pause=0.3, named_by="id")
        regions = {"search": self._search, "members": self._members}
        self.members_page = Page("/members", "Members", regions, TOPIC, menu="Members", pause=0.3)
        self.actions: Mapping[str, Action] = {"/disconnect": self._disconnect}

    def _search(self, view: View) -> Html:
        office = {"id": view.query["id"]} if "id" in view.query else {}
        return search_form(view, "Name, principal or address", **office)

    async def _offices(self, view: View) -> Html:
        rows, missing = await self._state.members()
        selection = selection_of(view)
        chosen = {row.office for row in selection.choose(rows)}
        offices = offices_of(row for row in rows if row.office in chosen)
        page = page_of(offices, selection, lambda row: row.place)
        shown = [
            (
                f"office-{row.office}",
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
        table = row_table(view, columns, shown, "No office has members.")
        return joined(missing_note(view, missing), table, page_links(view, page))

    async def _members(self, view: View) -> Html:
        """The members of all offices, or of the one of this page."""
        members, missing = await self._state.members()
        if view.path == self.office_page.path:
            members = [row for row in members if row.office == view.query.get("id", "")]
        selection, words = selection_of(view), view.words
        page = page_of(selection.choose(members), selection, lambda row: row.place)
        rows = [
            (
                f"member-{row.id}-{row.office}",
                joined(
                    tag("strong", row.name),
                    " ",
                    tag("span", words(row.role), class_="soft small"),
                    tag("div", tag("span", words("frozen"), class_="state bad")) if row.frozen else None,
                ),
                office_link(view, row.office),
                row.principal,
                tag("span", words("away"), class_="state warn")
                if row.since is None
                else tag("time", "–", data_since=round(row.since * 1000), class_="number"),
                str(row.calls),
                size_text(row.unread),
                joined(row.address or "–", " ", tag("span", row.version, class_="soft small")),
                joined(row.node or "–", tag("div", row.device, class_="code small") if row.device else None),
                self._choices(view, row),
            )
            for row in page.rows
        ]
        columns = ("Member", "Office", "Principal", "Since", "Calls", "Unread", "Address", "Node", "Action")
        table = row_table(view, columns, rows, "There is no such member.")
        return joined(missing_note(view, missing), table, page_links(view, page))

    def _choices(self, view: View, row: MemberRow) -> Html:
        says = view.words("Its connection ends at once. Its client may connect again.")
        end = asked_twice(view, "Disconnect", says, "/disconnect", hidden("id", row.id), key=row.id)
        says = view.words("What runs there is cancelled, and nothing gets through until a person thaws it.")
        scope = hidden("office", row.office), hidden("computer", row.name)
        freeze = asked_twice(view, "Freeze", says, "/freeze", *scope, key=row.id)
        is_free = row.role == "computer" and not row.frozen
        return joined(end if row.connected else None, freeze if is_free else None)

    async def _disconnect(self, view: View, form: Form) -> None:
        await self._state.operations.disconnect(first(form, "id"), self._who())
        self._state.changed()
