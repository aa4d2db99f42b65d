"""The page that shows all of something large: the arguments of a call or a request, a question, a window.

It is made once, in a thread: nothing that agents or MCP servers send holds up the computer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TypeAlias

from a2c_smcp.console.html import Html, joined, tag
from a2c_smcp.console.owner.state import OwnerState
from a2c_smcp.console.pages import Page, View

__all__ = ["WholePage", "whole_call", "whole_request", "whole_window"]

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
        found = next((each for each in self._state.calls if str(each.number) == number), None)
        if found is None:
            return []
        record = found.record
        named = [("Tool", f"{record['tool']} ({record['server']})"), ("Arguments", record["parameters"])]
        return [*named, ("Progress", found.message), ("Outcome", record["error"] or "")]

    def _request(self, number: str) -> Parts:
        for approval in self._state.approvals:
            if str(approval.number) == number:
                wanted = approval.request
                return [("Tool", f"{wanted.name} ({wanted.server})"), ("Arguments", wanted.arguments)]
        asked = next((each.question for each in self._state.questions if str(each.number) == number), None)
        return [("Tool", f"{asked.tool} ({asked.server})"), ("Question", asked.message)] if asked else []

    async def _window(self, uri: str) -> Parts:
        windows = await self._state.computer.get_desktop() if self._state.computer.is_running else []
        found = (each.partition("\n\n")[::2] for each in windows)
        return [("Window", content) for known, content in found if known == uri][:1]


def _drawn(view: View, parts: Parts) -> Html:
    shown = [
        (title, what if isinstance(what, str) else json.dumps(what, ensure_ascii=False, indent=2))
        for title, what in parts
        if what != ""
    ]
    return joined(*(joined(tag("h2", view.words(title)), tag("pre", text, class_="block")) for title, text in shown))
