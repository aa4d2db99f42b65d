"""The pages of API keys: listed by id, made, replaced, ended. A new key is shown once.

The answer to the form that makes a key leads to the page that shows it, so that loading a page again makes nothing. In
between the key is in the memory of the node that made it (`NewKeys`). A balancer may send the browser to another node,
which asks for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from a2c_smcp.console.html import Html, joined, tag
from a2c_smcp.console.operator.shown import asked_twice, missing_note, row_table
from a2c_smcp.console.operator.state import TOPIC, OperatorState
from a2c_smcp.console.pages import Action, Form, Page, Region, View, button_form, hidden
from a2c_smcp.console.web import Response, redirect
from a2c_smcp.errors import BadRequest
from a2c_smcp.server.admin.operations import KeyChange, Who
from a2c_smcp.server.admin.rows import KeyRow

__all__ = ["KeysPage", "NewKeys"]

_HOUR = 3600.0
_KEPT = 60.0  # seconds in which a new key can be shown
_SHOWN = "/keys/new"
_DAYS = {"1": "one day", "30": "30 days", "365": "one year", "": "for ever"}


class NewKeys:
    """Keys that were made and not shown yet, each for the session that made it. Kept for a minute."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], KeyChange] = {}

    def keep(self, session: str, change: KeyChange) -> None:
        self._kept[session, change.id] = change
        asyncio.get_running_loop().call_later(_KEPT, self.take, session, change.id)

    def take(self, session: str, wanted: str) -> KeyChange | None:
        """A key by its id, once."""
        return self._kept.pop((session, wanted), None)


class KeysPage:
    """`who` says who the operator is that sends a form."""

    def __init__(self, state: OperatorState, who: Callable[[], Who]) -> None:
        self._state, self._who = state, who
        self._made = state.operations.new_keys = NewKeys()
        self.new_page = Page(_SHOWN, "A new key", {"made": self._shown}, frozenset(), is_live=False)
        regions: dict[str, Region] = {"keys": self._keys, "new-key": self._new}
        self.page = Page("/keys", "Keys", regions, TOPIC, menu="Keys", pause=0.3)
        self.actions: Mapping[str, Action] = {
            "/keys/create": self._create,
            "/keys/expire": self._expire,
            "/keys/rotate": self._rotate,
            "/keys/revoke": self._revoke,
        }

    async def _keys(self, view: View) -> Html:
        words = view.words
        try:
            rows, missing = await self._state.operations.all_keys()
        except BadRequest as error:
            return tag("p", error.about, class_="empty")
        columns = ("Principal", "Key", "Offices", "Roles", "Names", "Expires (UTC)", "Connections", "Action")
        cells = [
            (
                tag("strong", row.principal),
                joined(tag("span", row.id, class_="code"), tag("div", row.device, class_="code small")),
                *(_scope(view, each) for each in (row.offices, row.roles, row.names)),
                _expiry(view, row),
                str(row.connections),
                self._choices(view, row),
            )
            for row in rows
        ]
        table = row_table(view, columns, cells, [f"key-{row.id}" for row in rows])
        return joined(
            missing_note(view, missing), table if cells else tag("p", words("There are no keys."), class_="empty")
        )

    def _choices(self, view: View, row: KeyRow) -> Html:
        if row.fixed:
            return tag("span", view.words("given with --api-key"), class_="soft small")
        fields = hidden("id", row.id)
        rotate = button_form(
            view, "/keys/rotate", fields, tag("button", view.words("Replace"), type="submit"), is_live=False
        )
        return joined(
            rotate,
            asked_twice(view, "Expire now", "/keys/expire", fields, key=row.id),
            asked_twice(view, "Revoke", "/keys/revoke", fields, key=row.id),
        )

    def _new(self, view: View) -> Html:
        words = view.words

        def field(label: str, name: str, help_text: str, *, required: bool = False) -> Html:
            given = tag("input", name=name, type="text", autocomplete="off", required=required, maxlength=2000)
            return tag("label", words(label), tag("span", words(help_text), class_="help"), given, class_="field")

        roles = [tag("option", words(text), value=value) for value, text in _ROLES.items()]
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
        entry: dict[str, object] = {"principal": _value(form, "principal")}
        for name in ("offices", "names"):
            if parts := [part.strip() for part in _value(form, name).split(",") if part.strip()]:
                entry[name] = parts
        if role := _value(form, "role"):
            entry["roles"] = [role]
        days = _value(form, "days")
        if days.isdecimal():
            moment = datetime.fromtimestamp(time.time() + int(days) * 24 * _HOUR, UTC)
            entry["expires"] = moment.isoformat(timespec="seconds")
        return self._lead_to(view, await self._state.operations.create_key(entry, self._who()))

    async def _rotate(self, view: View, form: Form) -> Response:
        return self._lead_to(view, await self._state.operations.rotate_key(_value(form, "id"), _HOUR, self._who()))

    async def _expire(self, view: View, form: Form) -> None:
        await self._state.operations.expire_key(_value(form, "id"), time.time(), self._who())
        self._state.changed()

    async def _revoke(self, view: View, form: Form) -> None:
        await self._state.operations.revoke_key(_value(form, "id"), self._who())
        self._state.changed()

    def _lead_to(self, view: View, change: KeyChange) -> Response:
        """Lead to the page that shows a new key. Its address has the id, never the key."""
        assert view.session
        self._state.changed()
        self._made.keep(view.session.id, change)
        return redirect(view.link(_SHOWN, id=change.id))

    async def _shown(self, view: View) -> Html:
        assert view.session
        words, session, wanted = view.words, view.session.id, view.query.get("id", "")
        back = tag("p", tag("a", words("Back"), href=view.link("/keys"), class_="button"))
        change = self._made.take(session, wanted) or await self._state.operations.new_key_elsewhere(session, wanted)
        if change is None:
            said = words("A new key is shown once, within a minute. Replace this one if nobody has noted it down.")
            return joined(tag("p", tag("span", wanted, class_="code")), tag("p", said, class_="note"), back)
        key = tag("pre", change.key or "", class_="block", id="new-key-value")
        note = tag("p", words("For its holder alone. It is shown once, and cannot be shown again."))
        differing = [tag("p", words("Node {node} has a keys file of its own.", node=each)) for each in change.differing]
        return joined(key, note, *differing, back)


_ROLES = {"": "agent or computer", "agent": "agent", "computer": "computer"}


def _scope(view: View, values: list[str] | None) -> str:
    return view.words("any") if values is None else ", ".join(values)


def _expiry(view: View, row: KeyRow) -> Html | str:
    if row.expires is None:
        return view.words("never")
    day = datetime.fromtimestamp(row.expires, UTC).strftime("%Y-%m-%d %H:%M")
    return tag("span", view.words("expired"), class_="state bad") if row.expired else tag("time", day, class_="number")


def _value(form: Form, name: str) -> str:
    return form.get(name, [""])[0].strip()
