"""Sessions of browsers: opened by a link that works once, or by a form; ended by time, or by the person.

A session ends some time after its last page was closed, and at the latest after `longest`. A page that is open holds a
stream, which counts as use: an owner who waits for requests need not touch it. Only digests of cookies and links are
kept. Each session has a token of its own, without which nothing is changed (CSRF).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["ConsoleSession", "ConsoleSessions"]

_LINK_LASTS = 600.0
_MOST_LINKS, _MOST_SESSIONS = 8, 64


@dataclass(eq=False, slots=True)
class ConsoleSession:
    """A browser that was let in. `who` is what it was let in as. `ends` is in seconds since the epoch.

    `id` names the session, and opens nothing.
    """

    token: str
    ends: float
    who: str = ""
    last_used: float = 0.0
    streams: int = 0
    on_end: list[Callable[[], None]] = field(default_factory=list)
    id: str = ""


class ConsoleSessions:
    """`idle` and `longest` are seconds; `clock` gives seconds since the epoch."""

    def __init__(
        self, *, idle: float = 30 * 60, longest: float = 12 * 3600, clock: Callable[[], float] = time.time
    ) -> None:
        self.idle, self.longest = idle, longest
        self._clock = clock
        self._sessions: dict[str, ConsoleSession] = {}
        self._links: dict[str, float] = {}

    def new_link(self) -> str:
        """The secret of a link that opens one session, within ten minutes. Only the newest few can be used."""
        secret = secrets.token_urlsafe(32)
        self._links[_digest(secret)] = self._clock() + _LINK_LASTS
        while len(self._links) > _MOST_LINKS:
            del self._links[next(iter(self._links))]
        return secret

    def use_link(self, secret: str) -> str | None:
        """The cookie of a new session; `None` if the link is unknown, over, or was used."""
        until = self._links.pop(_digest(secret), 0.0)
        return self.open() if until > self._clock() else None

    def open(self, who: str = "") -> str:
        """The cookie of a new session."""
        cookie, now = secrets.token_urlsafe(32), self._clock()
        self.add(cookie, ConsoleSession(secrets.token_urlsafe(32), now + self.longest, who, now))
        return cookie

    def add(self, cookie: str, session: ConsoleSession) -> None:
        """Begins a session for this cookie. The oldest one ends if there are too many."""
        self._sessions[_digest(cookie)] = session
        while len(self._sessions) > _MOST_SESSIONS:
            self.end(next(iter(self._sessions.values())))

    def known(self, cookie: str) -> ConsoleSession | None:
        """The session of a cookie, whether or not it is over."""
        return self._sessions.get(_digest(cookie)) if cookie else None

    async def find(self, cookie: str) -> ConsoleSession | None:
        """The session of a cookie, which is used now."""
        session = self.known(cookie)
        if session is None or self.is_over(session):
            return None
        session.last_used = self._clock()
        return session

    def is_over(self, session: ConsoleSession) -> bool:
        """Whether a session has ended, now at the latest."""
        if self._clock() >= session.ends or self.is_idle(session):
            self.end(session)
        return session not in self._sessions.values()

    def is_idle(self, session: ConsoleSession) -> bool:
        """Whether it was not used for too long."""
        return not session.streams and self._clock() >= session.last_used + self.idle

    def seconds_left(self, session: ConsoleSession) -> float:
        return max(session.ends - self._clock(), 0.0)

    def stream_began(self, session: ConsoleSession) -> None:
        session.streams += 1

    def stream_ended(self, session: ConsoleSession) -> None:
        session.streams -= 1
        session.last_used = self._clock()

    def end(self, session: ConsoleSession) -> None:
        """End a session, and its streams."""
        self._sessions = {key: each for key, each in self._sessions.items() if each is not session}
        for tell in [*session.on_end]:
            tell()

    async def sign_out(self, session: ConsoleSession) -> None:
        """The person ends a session."""
        self.end(session)

    def is_token(self, session: ConsoleSession, given: str) -> bool:
        """Whether a request was made by a page of this session."""
        return hmac.compare_digest(session.token.encode(), given.encode())


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
