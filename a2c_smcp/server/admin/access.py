"""Who may use the operator's interface: holders of the admin key, which opens nothing else, and other nodes."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from a2c_smcp.errors import NotAuthenticated, SMCPError
from a2c_smcp.server.auth.authentication import AuthenticationProvider, Principal, credentials

__all__ = ["AdminAccess", "AdminKeyRefused", "Slowed"]

Slowed = Callable[[Awaitable[None], str], Awaitable[None]]
"""Waits for a check; if it fails too often for one address, the failure comes late (WIRE §6)."""

_WRONG = "this is not the admin key of this Server; a client's API key is not accepted here"
_HOW = "send the admin key of this Server as `Authorization: Bearer KEY`; a client's API key is not accepted here"
_BEARER = "bearer "


class AdminAccess:
    """Compares with the admin key in constant time. Refusals are reported to `refused`, and slowed down."""

    def __init__(self, key: str, slowed: Slowed, refused: Callable[[str | None, SMCPError], None]) -> None:
        self._digest = _digest(key)
        self._slowed = slowed
        self._refused = refused

    async def check_header(self, authorization: str, address: str | None) -> None:
        """Raises `NotAuthenticated`."""
        is_bearer = authorization[: len(_BEARER)].lower() == _BEARER
        key = authorization[len(_BEARER) :].strip() if is_bearer else ""
        await self._slowed(self._check(key, address, _HOW), address or "")

    async def check_key(self, key: str, address: str | None) -> None:
        """Raises `NotAuthenticated`."""
        await self._slowed(self._check(key, address, _WRONG), address or "")

    async def _check(self, key: str, address: str | None, why: str) -> None:
        if not hmac.compare_digest(_digest(key), self._digest):
            error = NotAuthenticated(why)
            self._refused(address, error)
            raise error


class AdminKeyRefused(AuthenticationProvider):
    """Refuses clients that present the admin key, and leaves all others to another provider."""

    def __init__(self, provider: AuthenticationProvider, key: str) -> None:
        self._provider = provider
        self._digest = _digest(key)

    async def authenticate(
        self, sio: Any, environ: dict[str, Any], auth: object, headers: Mapping[str, str]
    ) -> bool | Principal:
        presented = [hmac.compare_digest(_digest(key), self._digest) for key in credentials(auth, headers)]
        return False if any(presented) else await self._provider.authenticate(sio, environ, auth, headers)

    def valid(self, principal: Principal) -> bool:
        return self._provider.valid(principal)

    def current(self, principal: Principal) -> Principal | None:
        return self._provider.current(principal)

    def reload(self) -> None:
        self._provider.reload()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
