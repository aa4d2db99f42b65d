"""The red button of operators, and the banner on all pages while something is frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from a2c_smcp.console.html import Html, joined, tag
from a2c_smcp.console.operator.labels import asked_twice
from a2c_smcp.console.operator.overview import OperatorState
from a2c_smcp.console.pages import Action, Form, Page, View, button_form, first, hidden
from a2c_smcp.errors import BadRequest, Unavailable
from a2c_smcp.server.admin.operations import FreezeChange, Who
from a2c_smcp.server.freezes import Freeze, FreezeScope

_SHOWN = 10


class FreezeParts:
    """`who` returns the operator who sends a form."""

    def __init__(self, state: OperatorState, who: Callable[[], Who]) -> None:
        self._state, self._who = state, who
        self.actions: Mapping[str, Action] = {"/freeze": self._freeze, "/thaw": self._thaw}

    def with_banner(self, page: Page) -> Page:
        return replace(page, regions={"frozen": self._banner, **page.regions})

    def button(self, view: View) -> Html:
        """The red button of the whole Server, or of the office that the page is about."""
        if not view.may_change:
            return joined()
        words, office = view.words, view.query.get("id", "")
        what = words("Freeze this office") if office else words("Freeze the whole Server")
        told = words(
            "Everything that runs is cancelled, and every request to a computer is refused until a person thaws it. "
            "Nobody is disconnected. Agents and owners read the reason."
        )
        field = tag("input", name="reason", autocomplete="off", maxlength=500)
        scope = hidden("office", office) if office else hidden("all", "1")
        return tag(
            "details",
            tag("summary", what, class_="state bad"),
            button_form(
                view,
                "/freeze",
                tag("p", told, class_="note warn"),
                tag("label", words("Reason"), field, class_="field"),
                scope,
                tag("button", what, type="submit", class_="danger"),
            ),
            data_key=f"freeze-{office}",
            class_="card",
        )

    def _banner(self, view: View) -> Html:
        freezes = self._state.operations.freezes()
        more = len(freezes) - _SHOWN
        rest = tag("p", view.words("and {count} more", count=more), class_="note bad") if more > 0 else None
        return joined(*(self._frozen(view, freeze) for freeze in freezes[:_SHOWN]), rest)

    def _frozen(self, view: View, freeze: Freeze) -> Html:
        words = view.words
        what = words("The whole Server is frozen.")
        fields = [hidden("all", "1")]
        if freeze.office:
            what = words("Office {office} is frozen.", office=freeze.office)
            fields = [hidden("office", freeze.office)]
        if freeze.office and freeze.computer:
            what = words("Computer {name} of office {office} is frozen.", name=freeze.computer, office=freeze.office)
            fields.append(hidden("computer", freeze.computer))
        when = datetime.fromtimestamp(freeze.since, UTC).strftime("%Y-%m-%d %H:%M")
        since = joined(words("since"), " ", tag("time", when, class_="number"), " UTC, ", freeze.by)
        says = words("Requests get through again, unless another freeze holds. What was cancelled does not go on.")
        thaw = asked_twice(view, "Thaw", says, "/thaw", *fields, key=f"{freeze.office}/{freeze.computer}")
        texts = [tag("strong", what), " ", freeze.reason, " ", tag("span", since, class_="soft small")]
        key = f"frozen-{freeze.office}/{freeze.computer}"
        return tag("div", *texts, thaw if view.may_change else None, class_="note bad", data_key=key)

    async def _freeze(self, view: View, form: Form) -> None:
        change = await self._state.operations.freeze(_scope(form), first(form, "reason"), self._who())
        self._end(view, change)

    async def _thaw(self, view: View, form: Form) -> None:
        self._end(view, await self._state.operations.thaw(_scope(form), self._who()))

    def _end(self, view: View, change: FreezeChange) -> None:
        """Show the change, or raise what is not as its operator expects."""
        self._state.changed()
        for node in change.missing:
            raise Unavailable(view.words("done, but node {node} has not confirmed it", node=node.node))
        if change.unkept:
            raise Unavailable(view.words("done, but a restart of the Server ends what is frozen"))


def _scope(form: Form) -> FreezeScope:
    office, computer = first(form, "office") or None, first(form, "computer") or None
    if office is None and first(form, "all") != "1":
        raise BadRequest("office: is missing", field="office")
    return office, computer
