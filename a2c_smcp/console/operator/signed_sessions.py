"""Sessions of operators on all nodes of a Server.

A session lives in the memory of the nodes that have seen it. Its cookie is signed with a key that is made from the
admin key, so that no node asks the others about cookies that were invented. A node that meets a signed cookie for the
first time asks the others: one of them must know the session. It asks again when the session seems to have been idle,
since it may have been in use elsewhere, and every `_CHECKED_EVERY` seconds.

- Signing out ends a session here at once, and on all nodes that can be reached. A node that could not be reached hears
  of it at its next check. A node that was started later knows nothing, and asks: so an old cookie opens nothing there.
- Every page that is open and every request is use, on whichever node. Nodes tell one another for how long a session was
  idle, not when it was used: their clocks may differ.
- When the last node that knows a session ends, the session ends with it. So a Server alone ends all of them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from a2c_smcp.console.sessions import ConsoleSession, ConsoleSessions
from a2c_smcp.server.admin.rows import SessionSeen

__all__ = ["OtherSessions", "SignedSessions"]

_CHECKED_EVERY = 30.0
_MOST_ENDED = 1000


class OtherSessions(Protocol):
    """What the other nodes know of a session, by its id."""

    async def session_elsewhere(self, session: str) -> SessionSeen: ...

    async def end_session_elsewhere(self, session: str) -> None: ...


class _Claim(NamedTuple):
    """What a signed cookie says."""

    session: str
    ends: float
    token: str


class SignedSessions(ConsoleSessions):
    """The sessions that this node knows, and which it admits after it has asked the others."""

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
        """`on_change` is told that an operator signs in or out here."""
        super().__init__(idle=idle, longest=longest, clock=clock)
        self._secret = hashlib.sha256(b"a2c console sessions\0" + admin_key.encode("utf-8", "surrogatepass")).digest()
        self._others, self._on_change = others, on_change
        self._ended: dict[str, float] = {}
        self._checked: dict[str, float] = {}

    def open(self, who: str = "") -> str:
        now = self._clock()
        begins = f"{secrets.token_urlsafe(18)}.{now + self.longest:.0f}"
        cookie = f"{begins}.{self._sign(begins)}"
        claim = self._claim(cookie)
        assert claim
        self._begin(cookie, claim, now)
        self._on_change("console sign-in")
        return cookie

    async def find(self, cookie: str) -> ConsoleSession | None:
        claim = self._claim(cookie)
        if claim is None or claim.session in self._ended:
            return None
        known, now = self.known(cookie), self._clock()
        is_checked = now < self._checked.get(claim.session, 0.0) + _CHECKED_EVERY
        if known is None or self.is_idle(known) or not is_checked:
            seen = await self._others.session_elsewhere(claim.session)
            if seen.is_ended:
                self.end_here(claim.session, claim.ends)
            if claim.session in self._ended:
                return None
            used = None if seen.idle is None else now - seen.idle
            if known := self.known(cookie):
                known.last_used = max(known.last_used, used or 0.0)
                self._checked[claim.session] = now
            elif used is not None:
                self._begin(cookie, claim, used)
        return await super().find(cookie)

    async def sign_out(self, session: ConsoleSession) -> None:
        self.end(session)
        self._on_change("console sign-out")
        await self._others.end_session_elsewhere(session.id)

    def end(self, session: ConsoleSession) -> None:
        self._note_end(session.id, session.ends)
        super().end(session)

    # For other nodes

    def seen(self, session: str) -> SessionSeen:
        """What this node knows of a session."""
        known = self._by_id(session)
        if known is None:
            return SessionSeen(session in self._ended)
        return SessionSeen(idle=0.0 if known.streams else max(self._clock() - known.last_used, 0.0))

    def end_here(self, session: str, ends: float | None = None) -> None:
        """A session has ended on another node."""
        if known := self._by_id(session):
            self.end(known)
        else:
            self._note_end(session, ends or self._clock() + self.longest)

    def _note_end(self, session: str, ends: float) -> None:
        """Keeps the newest ends, for as long as a cookie could open the session again."""
        self._ended[session] = ends
        self._checked.pop(session, None)
        newest, now = [*self._ended.items()][-_MOST_ENDED:], self._clock()
        self._ended = {each: until for each, until in newest if until > now}

    def _by_id(self, session: str) -> ConsoleSession | None:
        return next((each for each in self._sessions.values() if each.id == session), None)

    def _begin(self, cookie: str, claim: _Claim, used: float) -> None:
        self._checked[claim.session] = self._clock()
        self.add(cookie, ConsoleSession(claim.token, claim.ends, "operator", used, id=claim.session))

    def _claim(self, cookie: str) -> _Claim | None:
        """What a cookie says; `None` if it was not signed with this admin key, or is over."""
        begins, _, signature = cookie.rpartition(".")
        if not (begins.count(".") == 1 and hmac.compare_digest(self._sign(begins).encode(), signature.encode())):
            return None
        session, _, ends = begins.partition(".")
        claim = _Claim(session, float(ends), self._sign(f"token {begins}"))
        return claim if claim.ends > self._clock() else None

    def _sign(self, text: str) -> str:
        return hmac.new(self._secret, text.encode(), "sha256").hexdigest()
