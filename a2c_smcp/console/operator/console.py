"""`OperatorConsole`: the pages of a Server's operator as an ASGI application, and how operators sign in.

They sign in with their admin key on a form, or by a link that works once and is printed where the Server was started.
Any node may answer the next request (`SignedSessions`).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol
from urllib.parse import urlencode, urlsplit

from a2c_smcp.console.app import ConsoleApp
from a2c_smcp.console.html import Html, Response, joined, leads_to, tag
from a2c_smcp.console.operator.calls import KeysPage, OfficesPages, OperatorCallsPages, place
from a2c_smcp.console.operator.freezing import FreezeParts
from a2c_smcp.console.operator.labels import date_time
from a2c_smcp.console.operator.overview import OperatorState, OverviewPage
from a2c_smcp.console.pages import (
    ACCOUNT_PATH,
    SESSION_HEADER,
    Action,
    ConsoleSession,
    ConsoleSessions,
    Form,
    Page,
    View,
    chinese,
)
from a2c_smcp.errors import NotAuthenticated
from a2c_smcp.server.admin.api import AdminAccess
from a2c_smcp.server.admin.node_view import SessionSeen
from a2c_smcp.server.admin.operations import Operations, Who
from a2c_smcp.server.auth.api_keys import OperatorKeys
from a2c_smcp.server.auth.authentication import Principal
from a2c_smcp.server.http_requests import CONSOLE_PATH
from a2c_smcp.web import Receive, Scope, Send, header

# Sessions of operators on all nodes of a Server.
#
# A session lives in the memory of the nodes that have seen it. Its secret names an admin key and is signed with what is
# known of that key, so that no node asks the others about invented ones. A node that meets a signed secret for the
# first time asks the others: one of them must know the session. It asks again when the session seems to have been idle,
# since it may have been in use elsewhere, and every `_CHECKED_EVERY` seconds.
#
# - A session ends with its admin key, or if that key may do something else now: each request is compared with the keys
#   that are in force on this node, and open pages are, whenever keys are read again.
# - Signing out ends a session here at once, and on all nodes that can be reached. An unreachable node learns of it at
#   its next check. A node that was started later knows no session, and asks: so an old secret opens nothing there.
# - Every open page and every request is use, on any node. Nodes tell one another for how long a session was idle, not
#   when it was used: their clocks may differ.
# - When the last node that knows a session ends, the session ends with it. So a single Server ends all of them.

_CHECKED_EVERY, _LONGEST = 30.0, 8 * 3600.0
_MOST_ENDED = 1000


class OtherSessions(Protocol):
    """The other nodes, which know sessions by their ids."""

    async def session_elsewhere(self, session: str) -> SessionSeen: ...

    async def end_session_elsewhere(self, session: str) -> None: ...


class _Claim(NamedTuple):
    """The content of a signed secret."""

    session: str
    ends: float
    operator: Principal


class SignedSessions(ConsoleSessions):
    """The sessions that this node knows. It admits those of other nodes after it has asked."""

    def __init__(
        self,
        keys: OperatorKeys,
        others: OtherSessions,
        *,
        idle: float = 30 * 60,
        longest: float = _LONGEST,
        clock: Callable[[], float] = time.time,
        on_change: Callable[[str, Principal | None], object] = lambda action, operator: None,
    ) -> None:
        """`on_change` is called when an operator signs in or out here."""
        super().__init__(idle=idle, longest=longest, clock=clock)
        self._keys, self._others, self._on_change = keys, others, on_change
        self._ended: dict[str, float] = {}
        self._checked: dict[str, float] = {}

    def open(self, operator: Principal | None = None) -> str:
        """Return the secret of a new session. Without an operator it was a link, which is for the key of all."""
        holder, now = operator or self._keys.holders[0], self._clock()
        claim = _Claim(secrets.token_urlsafe(18), float(f"{now + self.longest:.0f}"), holder)
        begins = f"{claim.session}.{claim.ends:.0f}.{holder.credential}"
        secret = f"{begins}.{_sign(begins, holder)}"
        self._begin(secret, claim, now)
        self._on_change("console sign-in", holder)
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

    def is_over(self, session: ConsoleSession) -> bool:
        if session.operator is None or self._keys.current(session.operator) is None:
            self.end(session)
        return super().is_over(session)

    async def sign_out(self, session: ConsoleSession) -> None:
        self.end(session)
        self._on_change("console sign-out", session.operator)
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
        self.add(secret, ConsoleSession(claim.ends, claim.operator, used, id=claim.session))

    def _claim(self, secret: str) -> _Claim | None:
        """Return the content of a secret; `None` if it has expired, or an admin key in force did not sign it."""
        begins, _, signature = secret.rpartition(".")
        session, _, rest = begins.partition(".")
        ends, _, credential = rest.partition(".")
        operator = next((holder for holder in self._keys.holders if holder.credential == credential), None)
        if operator is None or operator.expired:
            return None
        if not hmac.compare_digest(_sign(begins, operator).encode(), signature.encode()):
            return None
        return _Claim(session, float(ends), operator) if float(ends) > self._clock() else None


def _sign(text: str, operator: Principal) -> str:
    key = hashlib.sha256(b"a2c console sessions\0" + operator.token).digest()
    return hmac.new(key, text.encode(), "sha256").hexdigest()


_BRAND = "A2C Server"

_address: ContextVar[str | None] = ContextVar("address", default=None)
_operator: ContextVar[Principal | None] = ContextVar("operator", default=None)
"""The sender of a form that was not refused."""


class OperatorConsole:
    """With `has_form`, operators sign in with their admin keys; otherwise only by a link."""

    def __init__(
        self, operations: Operations, access: AdminAccess, *, has_form: bool = True, idle: float = 1800
    ) -> None:
        self._access = access
        self._has_form = has_form
        self.state = OperatorState(operations)
        self.sessions = SignedSessions(
            access.keys,
            operations,
            idle=idle,
            on_change=lambda action, operator: operations.report(action, _who(operator)),
        )
        operations.sessions = self.sessions
        overview, calls = OverviewPage(self.state), OperatorCallsPages(self.state)
        offices, keys = OfficesPages(self.state, _who), KeysPage(self.state, _who)
        freezing = FreezeParts(self.state, _who)
        red = {"freeze": freezing.button}
        pages = [
            replace(overview.page, regions={**red, **overview.page.regions}),
            offices.page,
            offices.members_page,
            calls.page,
            calls.refusals_page,
            keys.page,
            keys.new_page,
            replace(offices.office_page, regions={**red, **offices.office_page.regions}),
            Page(ACCOUNT_PATH, "Your account", {"account": _account}, frozenset()),
        ]
        actions = {**offices.actions, **keys.actions, **freezing.actions}
        self._app = ConsoleApp(
            _BRAND,
            list(map(freezing.with_banner, pages)),
            {path: self._refused_to_viewers(action) for path, action in actions.items()},
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
            if session := await self.sessions.find(header(scope, SESSION_HEADER.encode())):
                assert session.operator
                with self.state.operations.view.hub.visit(session.operator, partial(self.sessions.end, session)):
                    await self._app(scope, receive, send)
                return
        place.set(_place_of(scope))
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
            wrong = tag(
                "p", words("That is no admin key of this Server, or it has expired."), class_="note bad", role="alert"
            )
        note = tag("p", words("Your own, or the one that the Server was started with. An API key does not do."))
        button = tag("button", words("Sign in"), type="submit", class_="main")
        form = tag("form", field, button, method="post", action=view.link("/sign-in"))
        return joined(wrong, note, form)

    async def _sign_in(self, view: View, form: Form) -> Response:
        try:
            operator = await self._access.check_key(form.get("key", [""])[0], _address.get())
        except NotAuthenticated:
            return leads_to(view.link("/", wrong="1"))
        self.state.operations.view.hub.uses.note(operator.credential)
        return self._app.let_in(view, operator)

    def _refused_to_viewers(self, action: Action) -> Action:
        async def checked(view: View, form: Form) -> Response | None:
            assert view.session
            assert view.session.operator
            await self._access.check_change(view.session.operator, _address.get())
            _operator.set(view.session.operator)
            return await action(view, form)

        return checked


def _who(operator: Principal | None = None) -> Who:
    operator = operator or _operator.get()
    return Who(_address.get(), operator.id if operator else None, is_console=True)


def _account(view: View) -> Html:
    words, session = view.words, view.session
    assert session
    assert session.operator
    key, since = session.operator, session.ends - _LONGEST
    account = {
        "Name": key.id,
        "Role": f"{words(session.role)}: {words(_RIGHTS[session.role])}",
        "Key": key.credential,
        "Expires (UTC)": words("never") if key.expires is None else date_time(key.expires),
        "Signed in (UTC)": date_time(since),
    }
    pairs = [joined(tag("dt", words(name)), tag("dd", fact)) for name, fact in account.items()]
    return tag("dl", *pairs, class_="values")


_RIGHTS = {"viewer": "sees all, and changes nothing", "operator": "sees all, and may change it"}


def _place_of(scope: Scope) -> str:
    """The URL of this Server as the operator's browser knows it: our script sends all requests from our pages."""
    page = urlsplit(header(scope, b"referer"))
    scheme, host = page.scheme or scope["scheme"], page.netloc or header(scope, b"host")
    if (host.partition(":")[0]).endswith(".localhost"):
        host = f"127.0.0.1:{host.rpartition(':')[2]}"  # a name for browsers (`under_new_name`)
    return f"{scheme}://{host}"
