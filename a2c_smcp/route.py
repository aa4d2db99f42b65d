"""How to get to a Server: its URL, what is shown at its door, the HTTP session, and why it could not be reached."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp

from a2c_smcp.errors import ConfigError
from a2c_smcp.protocol import PROTOCOL_VERSION
from a2c_smcp.wire import OnPacket, WiredClient

__all__ = ["Credentials", "Route", "cause_of", "dialling", "is_proxy"]

_REQUEST = 10.0  # longer than a dial waits for the first answer, so that it is the dial that times out
_LARGEST = 16 * 1024 * 1024
_SECRET_PARTS = re.compile(r"(?<=//)[^\s/]*@|\?[^\s'\"]*")
_PROXIES = ("http", "https")
_SCHEMES = ("http", "https", "ws", "wss")


@dataclass(frozen=True, slots=True)
class Credentials:
    """What is shown to a Server at its door: the CONNECT `auth` object, and headers."""

    auth: Mapping[str, Any] | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of_key(cls, api_key: str | None) -> Credentials:
        return cls({"token": api_key}) if api_key else cls()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
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

    @property
    def versioned(self) -> str:
        """The URL with the version of the protocol that is spoken here."""
        return f"{self.url}{'&' if '?' in self.url else '?'}{urlencode({'a2c_version': PROTOCOL_VERSION})}"

    @property
    def socket_path(self) -> str:
        """Where Socket.IO is: below the path of the URL, for a Server that is mounted in another application."""
        return f"{urlsplit(self.url).path.rstrip('/').removesuffix('/socket.io')}/socket.io"


def cause_of(error: BaseException) -> str:
    """In the words of the system where it has some, which are shorter than those of the libraries above it.

    Those may hold a URL, and with it the password of a proxy.
    """
    cause: BaseException | None = error
    while cause:
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno) if cause.errno > 0 else str(cause.strerror)
        cause = getattr(cause, "os_error", None) or cause.__cause__ or cause.__context__
    return _reason_in(_SECRET_PARTS.sub("", str(error)))


def _reason_in(text: str) -> str:
    """python-engineio keeps of an error only its text, which names the host again: "Cannot connect to … [reason]"."""
    found = re.search(r" \[(.+)\]$", text, re.DOTALL)
    reason = found[1] if found else text
    return "nobody answers there" if reason.startswith("Connect call failed") else reason


def is_proxy(url: str) -> bool:
    return _is_url(url, _PROXIES)


def _is_url(url: str, schemes: Sequence[str] = _SCHEMES) -> bool:
    """Whether it has a scheme we speak, a host that can be looked up, and a port that there is."""
    try:
        parts = urlsplit(url)
        return parts.scheme in schemes and bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:
        return False


class _OnlyFailures(logging.Filter):
    """Of what the library logs, only exceptions of handlers: that a connection ended is told by whoever used it."""

    def filter(self, record: logging.LogRecord) -> bool:
        return bool(record.exc_info)


_library = logging.getLogger(f"{__name__}.library")  # given a logger, the library adds no handler of its own
_library.setLevel(logging.ERROR)
_library.addFilter(_OnlyFailures())


@asynccontextmanager
async def dialling(
    route: Route, on_packet: OnPacket, on_end: Callable[[], None], on_answer: Callable[[], None]
) -> AsyncIterator[WiredClient]:
    """A Socket.IO client, with an HTTP session that ends with it. `on_answer` is called for each HTTP answer.

    The library drops some answers unread: a websocket whose upgrade was not finished, or whose peer went silent.
    aiohttp reports them as "Unclosed connection" when they are collected, so they are closed here.
    """
    answers: set[aiohttp.ClientResponse] = set()

    async def answered(session: object, context: object, request: aiohttp.TraceRequestEndParams) -> None:
        answers.difference_update([each for each in answers if each.closed])
        answers.add(request.response)
        on_answer()

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(answered)
    connector = aiohttp.TCPConnector(ssl=route.ssl) if route.ssl else None
    extra: dict[str, Any] = {"max_msg_size": _LARGEST, **({"ssl": route.ssl} if route.ssl else {})}
    async with aiohttp.ClientSession(
        connector=connector, trust_env=not route.is_local, proxy=route.proxy, trace_configs=[trace]
    ) as http:
        try:
            yield WiredClient(
                on_packet,
                on_end,
                reconnection=False,
                handle_sigint=False,
                http_session=http,
                request_timeout=_REQUEST,
                websocket_extra_options=extra,
                logger=_library,
                engineio_logger=_library,
            )
        finally:
            for answer in answers:
                answer.close()
