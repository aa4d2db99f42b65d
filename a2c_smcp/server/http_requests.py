"""HTTP requests before a session hears of them: what a request is, which ones are refused, and how that is answered.

This is the same for every web server that carries them, the program's own and others that it is mounted in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol
from urllib.parse import parse_qs

from a2c_smcp.errors import BadRequest, SMCPError, TooLarge, Unavailable, VersionMismatch
from a2c_smcp.http.loopback import is_loopback
from a2c_smcp.protocol import version
from a2c_smcp.protocol.codec import dumps

__all__ = [
    "MAX_UNAUTHENTICATED",
    "NO_SUCH_PAGE",
    "VERSION_HEADER",
    "Headers",
    "HttpRequest",
    "HttpResponse",
    "RequestBody",
    "check_host",
    "check_new_session",
    "check_origin",
    "json_response",
    "refusal_response",
    "text_response",
]

Headers = Sequence[tuple[bytes, bytes]]

MAX_UNAUTHENTICATED = 64 * 1024
"""Bytes of a body that are read from a client before it is authenticated (WIRE §6)."""

VERSION_HEADER = b"x-a2c-error-code"
"""In a refusal of the version of the protocol: its code, 4008 (WIRE §1)."""

NO_SUCH_PAGE = "this server has /socket.io/, /healthz and /readyz"
"""Also says the interface between nodes to other clients, so that it does not show that it is there."""

_MAX_HEAD = 32 * 1024  # a session keeps its headers; web servers that this is mounted in may accept more


class RequestBody(Protocol):
    """The body of a request. The web server does not wait for a body that is not read."""

    async def read(self, limit: int) -> bytes:
        """All of it. Raises `TooLarge`, `CallTimeout` or `BadRequest`."""

    def trust(self) -> None:
        """Its sender belongs to an authenticated session: it has more time, and does not count as a newcomer."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Names of headers are in lower case. `path` ends without a slash."""

    method: str
    path: str
    query: str
    headers: Headers
    scheme: str
    client: tuple[str, int] | None
    body: RequestBody
    is_upgrade: bool = False

    def header(self, name: bytes) -> str:
        """The first value, or an empty string."""
        return next((value.decode("latin-1") for field, value in self.headers if field == name), "")

    def parameter(self, name: str, *, blank: bool = False) -> str | None:
        """A value of the query. Engine.IO takes a blank one as absent."""
        return next(iter(parse_qs(self.query, keep_blank_values=blank).get(name, ())), None)


class HttpResponse(NamedTuple):
    """`headers` have no content-length: the web server adds it."""

    status: int
    headers: Headers
    body: bytes


def text_response(status: int, body: bytes, headers: Headers = ()) -> HttpResponse:
    return HttpResponse(status, ((b"content-type", b"text/plain; charset=UTF-8"), *headers), body)


def json_response(status: int, body: Mapping[str, object], headers: Headers = ()) -> HttpResponse:
    return HttpResponse(status, ((b"content-type", b"application/json"), *headers), dumps(body).encode())


def refusal_response(error: SMCPError) -> HttpResponse:
    """An error before there is a session: HTTP, with the error as its body (WIRE §1)."""
    status = 400 if isinstance(error, BadRequest) else error.code
    headers = ((VERSION_HEADER, b"%d" % error.code),) if isinstance(error, VersionMismatch) else ()
    return json_response(status, {"code": error.code, "message": error.message, **error.details}, headers)


# Checks


def check_host(request: HttpRequest, trusted: frozenset[str] | None) -> None:
    """Refuses requests to a foreign host name: a web page can point its own name at this machine (DNS rebinding)."""
    if trusted is None:
        return
    host = request.header(b"host")
    name = host.removeprefix("[").partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower() not in trusted and not is_loopback(name):
        raise BadRequest(
            f"a server without authentication is not to be reached as {name[:128]!r}, "
            "use its loopback address or give it an API key"
        )


def check_new_session(request: HttpRequest, required_version: str | None, *, is_draining: bool) -> None:
    """Refuses a new session while the Server shuts down, or if it speaks another protocol or version."""
    if is_draining:
        raise Unavailable("the server is shutting down")
    if sum(len(name) + len(value) for name, value in request.headers) > _MAX_HEAD:
        raise TooLarge(f"at most {_MAX_HEAD} bytes of headers are kept", limit=_MAX_HEAD)
    if request.parameter("EIO") != "4":
        raise BadRequest("EIO: this server speaks Engine.IO 4, that is Socket.IO 3 or later")
    if request.parameter("transport") == "websocket" and not request.is_upgrade:
        raise BadRequest("transport: a websocket begins with an upgrade")
    version.accept(request.parameter("a2c_version", blank=True), required_version)


def check_origin(request: HttpRequest, allowed: frozenset[str]) -> Headers:
    """The CORS headers of the response to a web page. Raises `BadRequest`.

    A page may ask if its origin is allowed, or if it comes from this Server.
    """
    if not (origin := request.header(b"origin")):
        return ()
    scheme = _first(request, b"x-forwarded-proto") or request.scheme
    hosts = (_first(request, name) for name in (b"host", b"x-forwarded-host"))
    if not (allowed & {origin, "*"} or origin in {f"{scheme}://{host}" for host in hosts if host}):
        raise BadRequest("this server does not serve pages of this origin")
    headers = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-credentials", b"true"),
        (b"vary", b"origin"),
    ]
    if request.method == "OPTIONS":
        headers.append((b"access-control-allow-methods", b"OPTIONS, GET, POST, DELETE"))
        if wanted := request.header(b"access-control-request-headers"):
            headers.append((b"access-control-allow-headers", wanted.encode("latin-1")))
    return headers


def _first(request: HttpRequest, name: bytes) -> str:
    """The first of several values in a header: that of the proxy nearest to the client."""
    return request.header(name).partition(",")[0].strip()
