"""`OwnerConsole`: the pages of a computer's owner as an ASGI application, and the links that open it.

Every process of the machine can reach the pages, also those of other users. What lets a browser in is a link that only
the owner reads: it is printed on the terminal, works once, and is over after ten minutes. A page without a session can
have a new one printed, at most every few seconds, so that nobody fills the terminal with them.

The cookie of the session has the port in its name: browsers send cookies to all ports of a host alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import urlencode

from a2c_smcp.console.app import ConsoleApp
from a2c_smcp.console.html import Html, joined, tag
from a2c_smcp.console.owner.calls import CallsPage, DesktopPage
from a2c_smcp.console.owner.requests import RequestsPage
from a2c_smcp.console.owner.servers import ServersPages
from a2c_smcp.console.owner.state import OwnerState
from a2c_smcp.console.owner.tools import ToolsPage
from a2c_smcp.console.owner.whole import WholePage
from a2c_smcp.console.owner.words import CHINESE
from a2c_smcp.console.pages import Form, View
from a2c_smcp.console.sessions import ConsoleSessions
from a2c_smcp.console.web import Response, redirect

__all__ = ["OwnerConsole"]

_BETWEEN_LINKS = 5.0


class OwnerConsole:
    """`url` is where it is served. `on_link` is called with a link that is requested in the browser.

    The link is shown where only the owner reads it, on the terminal: a process of another user can ask, but not read.
    """

    def __init__(
        self, state: OwnerState, url: str, on_link: Callable[[str], None], sessions: ConsoleSessions | None = None
    ) -> None:
        self.state, self.url = state, url.rstrip("/")
        self._sessions = sessions or ConsoleSessions()
        self._on_link, self._last_link = on_link, -_BETWEEN_LINKS
        requests, servers, tools, calls = RequestsPage(state), ServersPages(state), ToolsPage(state), CallsPage(state)
        desktop, whole = DesktopPage(state), WholePage(state)
        port = self.url.rpartition(":")[2]
        self.app = ConsoleApp(
            state.computer.name,
            [requests.page, servers.page, tools.page, calls.page, desktop.page, servers.log_page, whole.page],
            {**requests.actions, **servers.actions, **tools.actions},
            open_actions={"/new-link": self._new_link},
            changes=state.changes,
            sessions=self._sessions,
            entrance=_entrance,
            translations=CHINESE,
            cookie=f"a2c_console_{port}",
        )

    def link(self) -> str:
        """An address that opens the console once, within ten minutes."""
        return f"{self.url}/open?{urlencode({'link': self._sessions.new_link()})}"

    async def _new_link(self, view: View, form: Form) -> Response:
        if time.monotonic() - self._last_link >= _BETWEEN_LINKS:
            self._last_link = time.monotonic()
            self._on_link(self.link())
        return redirect(view.link("/", asked="1"))


def _entrance(view: View) -> Html:
    words = view.words
    if view.query.get("asked"):
        return tag("p", words("A new link is on the terminal where the computer runs. It works once, for ten minutes."))
    ask = tag(
        "form",
        tag("button", words("Show a new link on the terminal"), type="submit", class_="main"),
        method="post",
        action=view.link("/new-link"),
    )
    said = words("This console is opened with a link that the program prints when it starts. Each link works once.")
    return joined(tag("p", said), ask)
