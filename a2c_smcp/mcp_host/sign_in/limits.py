"""How often a person may be asked to sign in without a request of the owner: servers and agents cause it."""

from __future__ import annotations

import time
from collections import deque

import httpx2

from a2c_smcp.mcp_host.sign_in.challenge import Challenge
from a2c_smcp.mcp_host.sign_in.record import SignInRecord

__all__ = ["AskingLimits"]

_MOST, _WITHIN = 3, 600.0  # sign-ins, in so many seconds


class AskingLimits:
    """Nobody is asked twice for a scope, nor again before a token of the last sign-in was accepted (`has_worked`)."""

    def __init__(self) -> None:
        self.has_worked = False
        self._times: deque[float] = deque()
        self._scopes: set[str] = set()

    def allow(self, challenge: Challenge | None, record: SignInRecord | None) -> bool:
        if self._is_too_often():
            return False
        if challenge is not None and challenge.lacks_scope:
            asked = record.scope if record else None
            return not self._scopes.union((asked or "").split()).issuperset(challenge.scopes or ())
        is_for_token = challenge is None or challenge.status == httpx2.codes.UNAUTHORIZED
        return is_for_token and (record is None or self.has_worked or not self._times)

    def _is_too_often(self) -> bool:
        while self._times and self._times[0] < time.monotonic() - _WITHIN:
            self._times.popleft()
        return len(self._times) >= _MOST

    def count(self, challenge: Challenge | None) -> None:
        """A person is being asked."""
        self._times.append(time.monotonic())
        if challenge is not None and challenge.lacks_scope:
            self._scopes |= set(challenge.scopes or ())

    def signed_in(self) -> None:
        self.has_worked = False
        self._scopes.clear()
