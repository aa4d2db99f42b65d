"""Authentication: who a client is, and which offices, roles and names are theirs.

A client is admitted only by a clear yes of the provider in time; every other answer, and every failure, is a no.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qs

from a2c_smcp.errors import NotAuthenticated, NotAuthorised
from a2c_smcp.types import Role

__all__ = [
    "ANYBODY",
    "MAX_CREDENTIAL",
    "AllowAll",
    "AuthenticationProvider",
    "Handshake",
    "Principal",
    "admit",
    "credentials",
]

MAX_CREDENTIAL = 16_384
"""The longest credential that is read, in characters."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Principal:
    """A client that was authenticated. `None` means any; offices and names are shell-style patterns.

    `expires` is in epoch seconds. `device` is the fingerprint of the device that has to be proved. `credential`
    identifies the credential that was used, and does not reveal it; `token` is its SHA-256, for that proof.
    """

    id: str
    offices: frozenset[str] | None = None
    roles: frozenset[str] | None = None
    names: frozenset[str] | None = None
    expires: float | None = None
    credential: str = field(default="", compare=False)
    device: str | None = None
    token: bytes = field(default=b"", compare=False, repr=False)

    @property
    def expired(self) -> bool:
        return self.expires is not None and not time.time() < self.expires

    def allows(self, role: Role, name: str, office_id: str) -> bool:
        """Whether the client may use this role, name and office."""
        try:
            self.check(role, name, office_id)
        except NotAuthorised:
            return False
        return True

    def allows_name(self, name: str) -> bool:
        """Whether the client may use this name, in any office and role."""
        return _matches(name, self.names)

    def check(self, role: Role, name: str, office_id: str) -> None:
        """Raises `NotAuthorised` unless the client may use this role, name and office."""
        if self.roles is not None and role not in self.roles:
            raise NotAuthorised(f"{self.id!r} may not use role {role!r}", field="role")
        if not self.allows_name(name):
            raise NotAuthorised(f"{self.id!r} may not use name {name!r}", field="name")
        if not _matches(office_id, self.offices):
            raise NotAuthorised(f"{self.id!r} may not use office {office_id!r}", field="office_id")


ANYBODY = Principal("anonymous")


class AuthenticationProvider(ABC):
    """Says who a client is. Write one of your own if you have accounts of your own."""

    @abstractmethod
    async def authenticate(
        self, sio: Any, environ: dict[str, Any], auth: object, headers: Mapping[str, str]
    ) -> bool | Principal:
        """Returns a `Principal`, `True` for a client that may do anything, or `False` to refuse.

        `auth` is the object of CONNECT, and `headers` have lower-case names. `sio` is the user's own
        `socketio.AsyncServer` under `SMCPNamespace`, and `None` otherwise.
        """

    def valid(self, principal: Principal) -> bool:
        """Whether a client that was admitted earlier may stay. It is called after a reload."""
        return True

    def current(self, principal: Principal) -> Principal | None:
        """A client that was admitted earlier, as it may stay: its credential may expire at another time now.

        `None` if it may not stay. It is called after a reload.
        """
        return principal if self.valid(principal) else None

    def reload(self) -> None:
        """Reads the credentials again. It is called on SIGHUP."""
        return


async def admit(
    provider: AuthenticationProvider,
    sio: Any,
    environ: dict[str, Any],
    auth: object,
    headers: Mapping[str, str],
    timeout: float = 5.0,
) -> Principal:
    """Asks the provider who a client is. Raises `NotAuthenticated` for everything but a clear yes in time."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout
    try:
        async with asyncio.timeout_at(deadline):
            answer: object = await provider.authenticate(sio, environ, auth, headers)
        return _judge(answer, late=clock() > deadline)
    except (asyncio.CancelledError, NotAuthenticated):
        raise
    except BaseException as error:  # a panic in native code, or a sys.exit() of the provider, is a no too
        logger.error("authentication failed\n%s", _trace(error))  # noqa: TRY400
        raise NotAuthenticated("authentication is not working") from None


def credentials(auth: object, headers: Mapping[str, str], field: str = "token") -> list[str]:
    """All credentials of a client, in the order of WIRE §1. Empty, repeated and oversized ones are left out."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    presented = (
        auth.get(field) if isinstance(auth, dict) else None,
        bearer.strip() if scheme.lower() == "bearer" else None,
        headers.get("x-api-key"),
        headers.get("access_token"),
    )
    return list(dict.fromkeys(key for key in presented if isinstance(key, str) and 0 < len(key) <= MAX_CREDENTIAL))


class AllowAll(AuthenticationProvider):
    """Admits every client."""

    async def authenticate(self, sio: Any, environ: Any, auth: object, headers: Any) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Handshake:
    """The HTTP request that opened a connection, as authentication sees it.

    `headers` have lower-case names, and the last value of a repeated one. `client` is the peer's address. `sio` is the
    user's own Socket.IO server under `SMCPNamespace`, and `own` the environment that it gave.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    client: str | None = None
    scheme: str = "http"
    path: str = "/socket.io/"
    sio: Any = None
    own: dict[str, Any] | None = None

    @property
    def version(self) -> str | None:
        """The `a2c_version` that the client claims."""
        claimed: list[str | None] = [*parse_qs(self.query, keep_blank_values=True).get("a2c_version", [])]
        return claimed[0] if claimed else None

    @property
    def environ(self) -> dict[str, Any]:
        """The request in the shape that python-socketio gives to its users: that of WSGI, with the ASGI scope in it."""
        if self.own is not None:
            return self.own
        scope = {
            "type": "http",
            "method": "GET",
            "scheme": self.scheme,
            "path": self.path,
            "query_string": self.query.encode("latin-1", "replace"),
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self.headers.items()],
            "client": (self.client, 0) if self.client else None,
        }
        return {
            "REQUEST_METHOD": "GET",
            "SCRIPT_NAME": "",
            "PATH_INFO": self.path,
            "QUERY_STRING": self.query,
            "RAW_URI": f"{self.path}?{self.query}" if self.query else self.path,
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": self.client or "",
            "wsgi.url_scheme": self.scheme,
            "asgi.scope": scope,
            **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in self.headers.items()},
        }


def _trace(error: BaseException) -> str:
    """The traceback without the message of the exception, which may quote a credential."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"Traceback (most recent call last):\n{frames}{type(error).__qualname__}"


def _judge(answer: object, *, late: bool) -> Principal:
    if late:
        raise TimeoutError
    if answer is True:
        return ANYBODY
    if answer is False:
        raise NotAuthenticated
    if not isinstance(answer, Principal):
        logger.error("authentication answered with %s, neither a bool nor a Principal", type(answer).__qualname__)
        raise NotAuthenticated("authentication is not working")
    if answer.expired:
        raise NotAuthenticated("the credential has expired")
    return answer


def _matches(name: str, patterns: frozenset[str] | None) -> bool:
    return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)
