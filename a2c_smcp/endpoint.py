"""How to get to a Server: its URL, what is shown at its door, and why it could not be reached."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ssl import SSLContext, SSLError
from typing import Any
from urllib.parse import urlencode, urlsplit

from a2c_smcp.errors import ConfigError
from a2c_smcp.protocol import PROTOCOL_VERSION

__all__ = ["Credentials", "Endpoint", "cause_of", "is_proxy"]

_SECRET_PARTS = re.compile(r"(?<=//)[^\s/]*@|\?[^\s'\"]*")
_PROXIES = ("http", "https")
_SCHEMES = ("http", "https", "ws", "wss")
_HTTP = {"ws": "http", "wss": "https"}


@dataclass(frozen=True, slots=True)
class Credentials:
    """What is shown to a Server at its door: the CONNECT `auth` object, and headers."""

    auth: Mapping[str, Any] | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of_key(cls, api_key: str | None) -> Credentials:
        return cls({"token": api_key}) if api_key else cls()


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """How to get to a Server. `credentials` are asked for anew each time."""

    url: str = field(repr=False)
    credentials: Callable[[], Credentials | Awaitable[Credentials]] = Credentials
    ssl: SSLContext | None = None
    proxy: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not _is_url(self.url):
            shown = self.url.rpartition("@")[2].partition("?")[0]
            raise ConfigError(f"{shown!r} is not the URL of a Server, which looks like http://127.0.0.1:7000")
        if self.proxy is not None and not is_proxy(self.proxy):
            raise ConfigError("the proxy is not the URL of an HTTP proxy, which looks like http://127.0.0.1:3128")

    @property
    def place(self) -> str:
        """The URL as it may be shown: without what could be secret in it."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.scheme else parts.path

    @property
    def is_local(self) -> bool:
        """On this machine, where no proxy of the environment is asked."""
        host = urlsplit(self.url).hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")

    def socketio_url(self, transport: str) -> str:
        """Where Socket.IO is: below the path of the URL, for a Server that is mounted in another application.

        The query says which version of the protocol is spoken here.
        """
        parts = urlsplit(self.url)
        path = f"{parts.path.rstrip('/').removesuffix('/socket.io')}/socket.io/"
        spoken = urlencode({"a2c_version": PROTOCOL_VERSION, "transport": transport, "EIO": 4})
        query = f"{parts.query}&{spoken}" if parts.query else spoken
        scheme = _HTTP.get(parts.scheme, parts.scheme)
        return parts._replace(scheme=scheme, path=path, query=query, fragment="").geturl()


def cause_of(error: BaseException) -> str:
    """In the words of the system where it has some, which are shorter than those of the libraries above it.

    Those may hold a URL, and with it the password of a proxy.
    """
    cause: BaseException | None = error
    while cause:
        below = getattr(cause, "certificate_error", None) or getattr(cause, "os_error", None)
        if below is None and isinstance(cause, OSError) and cause.errno:
            return _words_of(cause, cause.errno)
        cause = below or cause.__cause__ or cause.__context__
    return _SECRET_PARTS.sub("", str(error))


def _words_of(error: OSError, number: int) -> str:
    if number == errno.ECONNREFUSED:
        return "nobody answers there"
    is_of_system = number > 0 and not isinstance(error, SSLError)
    return os.strerror(number) if is_of_system else str(error.strerror)


def is_proxy(url: str) -> bool:
    return _is_url(url, _PROXIES)


def _is_url(url: str, schemes: Sequence[str] = _SCHEMES) -> bool:
    """Whether it has a scheme we speak, a host that can be looked up, and a port that there is."""
    try:
        parts = urlsplit(url)
        return parts.scheme in schemes and bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        return False
