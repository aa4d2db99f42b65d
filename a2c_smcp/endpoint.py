"""The way to a Server: URL, credentials, TLS, proxy, pauses between dials, and the reason why a dial failed."""

from __future__ import annotations

import errno
import os
import random
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ssl import SSLContext, SSLError
from typing import Any
from urllib.parse import urlencode, urlsplit

from a2c_smcp.devices.proving import Prover
from a2c_smcp.errors import ConfigError, NotAuthenticated
from a2c_smcp.protocol.names import PROTOCOL_VERSION
from a2c_smcp.web import is_loopback

_SECRET_PARTS = re.compile(r"(?<=//)[^\s/]*@|\?[^\s'\"]*")
_PROXIES = ("http", "https")
_SCHEMES = ("http", "https", "ws", "wss")
_HTTP = {"ws": "http", "wss": "https"}
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of a client: the CONNECT `auth` object, and HTTP headers."""

    auth: Mapping[str, Any] | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def token(self) -> str:
        """The key or token that a proof of this device is for: the first that a Server reads (WIRE §1)."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        found = (
            (self.auth or {}).get("token"),
            bearer.strip() if scheme.lower() == "bearer" else None,
            headers.get("x-api-key"),
            headers.get("access_token"),
        )
        return next((token for token in found if isinstance(token, str) and token), "")

    @classmethod
    def of_key(cls, api_key: str | None) -> Credentials:
        return cls({"token": api_key}) if api_key else cls()


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A Server as a client dials it. `credentials` is called on every dial, `prover` proves a device to it.

    Raises `ConfigError` for a URL or a proxy that cannot be used.
    """

    url: str = field(repr=False)
    credentials: Callable[[], Credentials | Awaitable[Credentials]] = Credentials
    ssl: SSLContext | None = None
    proxy: str | None = field(default=None, repr=False)
    prover: Prover | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not _is_url(self.url):
            shown = self.url.rpartition("@")[2].partition("?")[0]
            raise ConfigError(f"{shown!r} is not the URL of a Server, which looks like http://127.0.0.1:7000")
        if self.proxy is not None and not is_proxy(self.proxy):
            raise ConfigError("the proxy is not the URL of an HTTP proxy, which looks like http://127.0.0.1:3128")

    @property
    def shown_url(self) -> str:
        """The URL without the parts that may be secret, for messages and logs."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.scheme else parts.path

    @property
    def origin(self) -> str:
        """Scheme, host and port in lower case, without the port that the scheme has by default."""
        parts = urlsplit(self.url)
        scheme, host = _HTTP.get(parts.scheme, parts.scheme), parts.hostname or ""
        host = f"[{host}]" if ":" in host else host
        port = f":{parts.port}" if parts.port and parts.port != _PORTS[scheme] else ""
        return f"{scheme}://{host}{port}"

    @property
    def may_sign(self) -> bool:
        """True if the identity of this device may be proved there: over TLS, or without leaving this machine."""
        return self.origin.startswith("https:") or (self.proxy is None and self.is_local)

    async def connect_auth(self, credentials: Credentials, sid: str) -> dict[str, Any] | None:
        """The `auth` of a CONNECT in the session `sid`. Nothing is signed over plain http to another machine."""
        if self.prover and self.may_sign:
            return await self.prover.prove(credentials.auth, credentials.token, origin=self.origin, sid=sid)
        return None if credentials.auth is None else dict(credentials.auth)

    def retries_after(self, refusal: NotAuthenticated) -> bool:
        """True if another CONNECT may succeed, with another proof. Raises `NotAuthenticated` if none may be made."""
        if refusal.details.get("device") is True and not self.may_sign:
            raise NotAuthenticated("this key is bound to a device, which is proved over https only: change the URL")
        return self.prover is not None and self.prover.learns_from(refusal)

    @property
    def is_local(self) -> bool:
        """True if the Server is on this machine; proxies of the environment are not used then."""
        return is_loopback(urlsplit(self.url).hostname or "")

    def socketio_url(self, transport: str) -> str:
        """The URL of Socket.IO: below the path of the Server's URL, which may be mounted in another application.

        The query names the version of the protocol.
        """
        parts = urlsplit(self.url)
        path = f"{parts.path.rstrip('/').removesuffix('/socket.io')}/socket.io/"
        version = urlencode({"a2c_version": PROTOCOL_VERSION, "transport": transport, "EIO": 4})
        query = f"{parts.query}&{version}" if parts.query else version
        scheme = _HTTP.get(parts.scheme, parts.scheme)
        return parts._replace(scheme=scheme, path=path, query=query, fragment="").geturl()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconnect:
    """When to dial again: seconds from the start of one attempt to the start of the next, doubling, with jitter.

    Attempts are never more than 5 s apart, so that all clients are back within 10 s after an outage of any length
    (WIRE §5). The jitter spreads clients that were lost at the same moment.
    """

    first: float = 0.5
    longest: float = 4.0

    def delay(self, attempt: int) -> float:
        longest: float = min(self.first * 2 ** min(attempt, 30), self.longest)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311, not a secret

    def pause(self, attempt: int, spent: float) -> float:
        """Seconds to wait after an attempt that took `spent` seconds; 0 if it took longer than the delay."""
        return max(0.0, self.delay(attempt) - spent)


def cause_of(error: BaseException) -> str:
    """Why a connection failed: the words of the operating system if there are any, else those of the library.

    A library's words may contain a URL with the password of a proxy, which is removed.
    """
    cause: BaseException | None = error
    while cause:
        below = getattr(cause, "certificate_error", None) or getattr(cause, "os_error", None)
        if below is None and isinstance(cause, OSError) and cause.errno:
            if cause.errno == errno.ECONNREFUSED:
                return "nothing listens there"
            is_of_system = cause.errno > 0 and not isinstance(cause, SSLError)
            return os.strerror(cause.errno) if is_of_system else str(cause.strerror)
        cause = below or cause.__cause__ or cause.__context__
    return _SECRET_PARTS.sub("", str(error))


def is_proxy(url: str) -> bool:
    return _is_url(url, _PROXIES)


def _is_url(url: str, schemes: Sequence[str] = _SCHEMES) -> bool:
    """True if a URL has one of these schemes, a valid host and a valid port."""
    try:
        parts = urlsplit(url)
        return parts.scheme in schemes and bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        return False
