"""`OperatorConsole`: the pages of a Server's operator as an ASGI application, and how operators sign in.

They sign in with the admin key on a form, or by a link that works once and is printed where the Server was started. Any
node may answer the next request (`SignedSessions`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple, Protocol
from urllib.parse import urlencode

from a2c_smcp.console.app import ConsoleApp
from a2c_smcp.console.html import Html, Response, joined, leads_to, tag
from a2c_smcp.console.operator.calls import KeysPage, OfficesPages, OperatorCallsPages
from a2c_smcp.console.operator.overview import OperatorState, OverviewPage
from a2c_smcp.console.pages import ConsoleSession, ConsoleSessions, Form, View, chinese
from a2c_smcp.errors import NotAuthenticated
from a2c_smcp.server.admin.api import AdminAccess
from a2c_smcp.server.admin.node_view import SessionSeen
from a2c_smcp.server.admin.operations import Operations, Who
from a2c_smcp.server.http_requests import CONSOLE_PATH
from a2c_smcp.web import Receive, Scope, Send

# Sessions of operators on all nodes of a Server.
#
# A session lives in the memory of the nodes that have seen it. Its secret is signed with a key that is made from the
# admin key, so that no node asks the others about invented ones. A node that meets a signed secret for the first
# time asks the others: one of them must know the session. It asks again when the session seems to have been idle, since
# it may have been in use elsewhere, and every `_CHECKED_EVERY` seconds.
#
# - Signing out ends a session here at once, and on all nodes that can be reached. An unreachable node learns of it at
#   its next check. A node that was started later knows no session, and asks: so an old secret opens nothing there.
# - Every open page and every request is use, on any node. Nodes tell one another for how long a session was idle, not
#   when it was used: their clocks may differ.
# - When the last node that knows a session ends, the session ends with it. So a single Server ends all of them.

_CHECKED_EVERY = 30.0
_MOST_ENDED = 1000


class OtherSessions(Protocol):
    """The other nodes, which know sessions by their ids."""

    async def session_elsewhere(self, session: str) -> SessionSeen: ...

    async def end_session_elsewhere(self, session: str) -> None: ...


class _Claim(NamedTuple):
    """The content of a signed secret."""

    session: str
    ends: float


class SignedSessions(ConsoleSessions):
    """The sessions that this node knows. It admits those of other nodes after it has asked."""

    def __init__(
        self,
        admin_key: str,
        others: OtherSessions,
        *,
        idle: float = 30 * 60,
        longest: float = 8 * 3600,
        clock: Callable[[], float] = time.time,
        on_change: Callable[[str], object] = lambda action: None,
    ) -> None:
        """`on_change` is called when an operator signs in or out here."""
        super().__init__(idle=idle, longest=longest, clock=clock)
        self._key = hashlib.sha256(b"a2c console sessions\0" + admin_key.encode("utf-8", "surrogatepass")).digest()
        self._others, self._on_change = others, on_change
        self._ended: dict[str, float] = {}
        self._checked: dict[str, float] = {}

    def open(self, who: str = "") -> str:
        now = self._clock()
        begins = f"{secrets.token_urlsafe(18)}.{now + self.longest:.0f}"
        secret = f"{begins}.{self._sign(begins)}"
        claim = self._claim(secret)
        assert claim
        self._begin(secret, claim, now)
        self._on_change("console sign-in")
        return secret

    async def find(self, secret: str) -> ConsoleSession | None:
        claim = self._claim(secret)
        if claim is None or claim.session in self._ended:
            return None
        known, now = self.known(secret), self._clock()
        is_checked = now < self._checked.get(claim.session, 0.0) + _CHECKED_EVERY
        if known is None or self.is_idle(known) or not is_checked:
            seen = await self._others.session_elsewhere(claim.session)
            if seen.is_ended:
                self.end_here(claim.session, claim.ends)
            if claim.session in self._ended:
                return None
            used = None if seen.idle is None else now - seen.idle
            if known := self.known(secret):
                known.last_used = max(known.last_used, used or 0.0)
                self._checked[claim.session] = now
            elif used is not None:
                self._begin(secret, claim, used)
        return await super().find(secret)

    async def sign_out(self, session: ConsoleSession) -> None:
        self.end(session)
        self._on_change("console sign-out")
        await self._others.end_session_elsewhere(session.id)

    def end(self, session: ConsoleSession) -> None:
        self._note_end(session.id, session.ends)
        super().end(session)

    # For other nodes

    def seen(self, session: str) -> SessionSeen:
        """Return the state of a session on this node."""
        known = self._by_id(session)
        if known is None:
            return SessionSeen(session in self._ended)
        return SessionSeen(idle=0.0 if known.streams else max(self._clock() - known.last_used, 0.0))

    def end_here(self, session: str, ends: float | None = None) -> None:
        """End a session that has ended on another node."""
        if known := self._by_id(session):
            self.end(known)
        else:
            self._note_end(session, ends or self._clock() + self.longest)

    def _note_end(self, session: str, ends: float) -> None:
        """Retain the newest ends, as long as its secret could open the session again."""
        self._ended[session] = ends
        self._checked.pop(session, None)
        newest, now = [*self._ended.items()][-_MOST_ENDED:], self._clock()
        self._ended = {id_: until for id_, until in newest if until > now}

    def _by_id(self, session: str) -> ConsoleSession | None:
        return next((known for known in self._sessions.values() if known.id == session), None)

    def _begin(self, secret: str, claim: _Claim, used: float) -> None:
        self._checked[claim.session] = self._clock()
        self.add(secret, ConsoleSession(claim.ends, "operator", used, id=claim.session))

    def _claim(self, secret: str) -> _Claim | None:
        """Return the content of a secret; `None` if it was not signed with this admin key, or has expired."""
        begins, _, signature = secret.rpartition(".")
        if not (begins.count(".") == 1 and hmac.compare_digest(self._sign(begins).encode(), signature.encode())):
            return None
        session, _, ends = begins.partition(".")
        claim = _Claim(session, float(ends))
        return claim if claim.ends > self._clock() else None

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), "sha256").hexdigest()


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
            admin_key, operations, idle=idle, on_change=lambda action: operations.report(action, _who())
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
            translations=chinese("operator"),
            prefix=CONSOLE_PATH,
            hosts=None,
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
        """Return an address that opens the console of the Server at `place` once, within ten minutes."""
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
            return leads_to(view.link("/", wrong="1"))
        return self._app.let_in(view, "operator")


def _who() -> Who:
    return Who(_address.get(), is_console=True)
