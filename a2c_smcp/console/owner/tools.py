"""The page of tools: what each may do, what has changed, and what is allowed without asking."""

from __future__ import annotations

import time

from a2c_smcp.computer.approval import Grant
from a2c_smcp.computer.policy.decision import Outlook
from a2c_smcp.computer.server_control import ToolState
from a2c_smcp.computer.types import OwnedTool
from a2c_smcp.console.html import Html, joined, tag
from a2c_smcp.console.owner.shown import difference, long_text, pill
from a2c_smcp.console.owner.state import OwnerState
from a2c_smcp.console.pages import Action, Form, Page, View, button_form, hidden
from a2c_smcp.console.web import Response
from a2c_smcp.errors import NotFound

__all__ = ["ToolsPage"]


class ToolsPage:
    """All tools as agents see them, with the owner's permissions."""

    def __init__(self, state: OwnerState) -> None:
        self._state = state
        self.page = Page(
            "/tools",
            "Tools",
            {"permissions": self._permissions, "tools": self._tools},
            frozenset(["tools", "grants"]),
            menu="Tools",
            pause=0.2,
            count=lambda: sum(1 for each in state.computer.tool_states().values() if each.change and each.change.asks),
        )
        self.actions: dict[str, Action] = {"/tools/forget": self._forget}

    def _permissions(self, view: View) -> Html:
        words = view.words
        grants = sorted(each for each in self._state.computer.approvals.grants if not each.is_over())
        if not grants:
            return Html("")
        items = [self._grant(view, index, each) for index, each in enumerate(grants)]
        return joined(tag("h2", words("Allowed without asking")), tag("ul", *items, class_="cards"))

    def _grant(self, view: View, index: int, grant: Grant) -> Html:
        words = view.words
        what = f"{grant.tool} ({grant.server})" if grant.server else words("every tool")
        until = words("for good")
        if grant.until is not None:
            until = words("until {time}", time=time.strftime("%Y-%m-%d %H:%M", time.localtime(grant.until)))
        label = f"{words('Ask again')}: {grant.who}, {what}"
        inner = tag("button", words("Ask again"), type="submit", aria_label=label)
        key = _key(grant)
        return tag(
            "li",
            tag("div", tag("h3", grant.who, " → ", what), tag("span", until, class_="soft small"), class_="head"),
            button_form(view, "/tools/forget", hidden("grant", key), inner),
            class_="card",
            data_key=f"grant-{key}",
        )

    def _tools(self, view: View) -> Html:
        words = view.words
        tools, states = self._state.computer.get_tools(), self._state.computer.tool_states(self._state.office)
        if not tools:
            return tag("p", words("There are no tools."), class_="empty")
        items = [_tool(view, each, states.get(each["name"])) for each in tools]
        field = tag(
            "label",
            words("Find a tool"),
            tag("input", type="search", data_filter="tool-list", autocomplete="off"),
            class_="field search",
        )
        count = tag("p", tag("span", len(tools), id="tool-list-count"), " / ", len(tools), class_="soft small")
        note = None
        if self._state.computer.gate:
            note = tag("p", words("Rules for certain agents may say something else."), class_="soft small")
        return joined(
            tag("h2", words("All tools")), note, field, count, tag("ul", *items, class_="cards", id="tool-list")
        )

    async def _forget(self, view: View, form: Form) -> Response | None:
        approvals, key = self._state.computer.approvals, form.get("grant", [""])[0]
        found = next((each for each in approvals.grants if _key(each) == key), None)
        if found is None:
            raise NotFound(view.words("That is no longer allowed anyway."))
        approvals.revoke(found)
        self._state.changes.changed("grants")
        return None


def _key(grant: Grant) -> str:
    return ascii(tuple(grant))  # as `Html` shows it, whatever is in the name of a tool


def _tool(view: View, tool: OwnedTool, state: ToolState | None) -> Html:
    words = view.words
    change = state.change if state else None
    changed = None
    if change:
        said = (
            "Its definition has changed. The next call shows this, and asks you."
            if change.asks
            else "Its definition has changed. It runs as before."
        )
        changed = joined(tag("p", words(said), class_="note warn"), difference(change.diff))
    description = tool.get("description") or ""
    return tag(
        "li",
        tag("div", tag("h3", tool["name"]), _may(view, state), class_="head"),
        tag("p", tool["mcp_server"], class_="soft small"),
        tag("div", long_text(view, description)) if description else None,
        changed,
        class_="card",
        data_key=f"tool-{tool['name']}",
        data_text=f"{tool['name']} {tool['mcp_server']} {description}",
    )


def _may(view: View, state: ToolState | None) -> Html:
    may = state.outlook if state else Outlook(frozenset(["ask"]))
    if state and state.change and state.change.asks:
        return pill(view.words("asks, changed"), "warn")
    if may.is_hidden:
        return pill(view.words("denied"), "bad")
    if len(may.may) > 1:
        names = ", ".join(view.words(each) for each in ("allow", "ask", "deny") if each in may.may)
        return pill(view.words("by its arguments: {names}", names=names), "warn")
    return pill(view.words("asks"), "warn") if may.may_ask else pill(view.words("runs without asking"), "good")
