"""Puts the token of an account on the requests of a session, and tries again with a new one after a refusal.

The SDK's own provider holds a lock until the response of a request has begun, so one slow call would hold up all
others of its server. Here a request with a usable token waits for nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import httpx2

from a2c_smcp.mcp_host.sign_in.account import Account
from a2c_smcp.mcp_host.sign_in.challenge import Challenge
from a2c_smcp.mcp_host.sign_in.flow import ProviderUnreachable

__all__ = ["SessionAuth"]

_MOST_ATTEMPTS = 3  # a token that has expired, one that lacks a scope, and one that is good


class SessionAuth(httpx2.Auth):
    """For the HTTP client of one session."""

    def __init__(self, account: Account) -> None:
        self._account = account

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        account = self._account
        token = await account.token()
        for _ in range(_MOST_ATTEMPTS):
            if token is not None:
                request.headers["Authorization"] = f"Bearer {token}"
            response = yield request
            challenge = Challenge.of(request, response)
            if challenge is None:
                account.accepted(token)
                return
            if request.method == "DELETE":  # the session ends: nothing is worth waiting for
                return
            await response.aread()
            try:
                token = await account.answer(challenge, token)
            except ProviderUnreachable as failure:  # the session is lost, and opened again later
                raise httpx2.ConnectError(failure.reason) from None
            if token is None:
                return
