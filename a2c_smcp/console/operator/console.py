"""`OperatorConsole`: the pages of a Server's operator as an ASGI application, and how operators sign in.

They sign in with the admin key on a form, or by a link that works once and is printed where the Server was started. Any
node may answer the next request (`signed_sessions.py`).
"""

from __future__ import annotations

from contextvars import ContextVar
from urllib.parse import urlencode

from a2c_smcp.console.app import ConsoleApp
from a2c_smcp.console.html import Html, joined, tag
from a2c_smcp.console.operator.calls import OperatorCallsPages
from a2c_smcp.console.operator.keys import KeysPage
from a2c_smcp.console.operator.offices import OfficesPages
from a2c_smcp.console.operator.overview import OverviewPage
from a2c_smcp.console.operator.signed_sessions import SignedSessions
from a2c_smcp.console.operator.state import OperatorState
from a2c_smcp.console.operator.words import CHINESE
from a2c_smcp.console.pages import Form, View
from a2c_smcp.console.web import Response, redirect
from a2c_smcp.errors import NotAuthenticated
from a2c_smcp.http.asgi import Receive, Scope, Send
from a2c_smcp.server.admin.access import AdminAccess
from a2c_smcp.server.admin.operations import Operations, Who

__all__ = ["CONSOLE_PATH", "OperatorConsole"]

CONSOLE_PATH = "/console"
_BRAND = "A2C Server"

_address: ContextVar[str | None] = ContextVar("address", default=None)


class OperatorConsole:
    """`admin_key` signs sessions. With `has_form`, operators sign in with it; otherwise only by a link."""

    def __init__(
        self, operations: Operations, access: AdminAccess, admin_key: str, *, has_form: bool = True, idle: float = 1800
    ) -> None:
        self._access = access
        self._has_form = has_form
        self.state = OperatorState(operations)
        self.sessions = SignedSessions(
            admin_key, operations, idle=idle, on_change=lambda action: operations.record(action, _who())
        )
        operations.sessions = self.sessions
        overview, calls = OverviewPage(self.state), OperatorCallsPages(self.state)
        offices, keys = OfficesPages(self.state, _who), KeysPage(self.state, _who)
        self._app = ConsoleApp(
            _BRAND,
            [
                overview.page,
                offices.page,
                offices.members_page,
                calls.page,
                calls.refusals_page,
                keys.page,
                keys.new_page,
                offices.office_page,
            ],
            {**offices.actions, **keys.actions},
            open_actions={"/sign-in": self._sign_in} if has_form else {},
            changes=self.state.changes,
            sessions=self.sessions,
            entrance=self._entrance,
            translations=CHINESE,
            prefix=CONSOLE_PATH,
            hosts=None,
            cookie="a2c_operator",
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            await self.state.close()
            return
        _address.set(scope["client"][0] if scope.get("client") else None)
        if scope["path"] == f"{CONSOLE_PATH}/live":
            self.state.keep_ticking()
        await self._app(scope, receive, send)

    def link(self, place: str) -> str:
        """An address that opens the console once, within ten minutes, at a Server that is reached at `place`."""
        return f"{place}{CONSOLE_PATH}/open?{urlencode({'link': self.sessions.new_link()})}"

    def _entrance(self, view: View) -> Html:
        words = view.words
        if not self._has_form:
            return tag("p", words("Open the link that the Server has printed where it was started."))
        field = tag(
            "label",
            words("Admin key"),
            tag("input", type="password", name="key", autocomplete="current-password", required=True, autofocus=True),
            class_="field",
        )
        wrong = None
        if view.query.get("wrong"):
            wrong = tag("p", words("That is not the admin key of this Server."), class_="note bad", role="alert")
        note = tag("p", words("It is the one that the Server was started with (--admin-key). An API key does not do."))
        button = tag("button", words("Sign in"), type="submit", class_="main")
        form = tag("form", field, button, method="post", action=view.link("/sign-in"))
        return joined(wrong, note, form)

    async def _sign_in(self, view: View, form: Form) -> Response:
        try:
            await self._access.check_key(form.get("key", [""])[0], _address.get())
        except NotAuthenticated:
            return redirect(view.link("/", wrong="1"))
        return self._app.let_in(view, "operator")


def _who() -> Who:
    return Who(_address.get(), is_console=True)
