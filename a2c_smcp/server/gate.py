"""What is settled in HTTP, before a session hears of a request: its address, its protocol version, its web page."""

from __future__ import annotations

import ipaddress

from a2c_smcp.errors import BadRequest, SMCPError, TooLarge, Unavailable, VersionMismatch
from a2c_smcp.protocol import version
from a2c_smcp.server.cluster.peer_nodes import Shared
from a2c_smcp.server.http_requests import Fields, Request, Response, json_response

__all__ = ["check_host", "check_newcomer", "check_page", "is_loopback", "readiness", "refusal"]

_MAX_HEAD = 32 * 1024  # a session keeps its headers; web servers that it is mounted in may take more


def check_host(request: Request, trusted: frozenset[str] | None) -> None:
    """Refuses to be addressed by a foreign name: a web page can point its own name at this machine."""
    if trusted is None:
        return
    host = request.header(b"host")
    name = host.removeprefix("[").partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower() not in trusted and not is_loopback(name):
        raise BadRequest(
            f"a server without authentication is not to be reached as {name[:128]!r}, "
            "use its loopback address or give it an API key"
        )


def is_loopback(host: str) -> bool:
    """Whether this names the machine itself, whoever asks."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def check_newcomer(request: Request, required_version: str | None, *, is_draining: bool) -> None:
    """Refuses a new session that comes too late, or speaks no version of ours."""
    if is_draining:
        raise Unavailable("the server is shutting down")
    if sum(len(name) + len(value) for name, value in request.headers) > _MAX_HEAD:
        raise TooLarge(f"at most {_MAX_HEAD} bytes of headers are kept", limit=_MAX_HEAD)
    if request.parameter("EIO") != "4":
        raise BadRequest("EIO: this server speaks Engine.IO 4, that is Socket.IO 3 or later")
    if request.parameter("transport") == "websocket" and not request.is_upgrade:
        raise BadRequest("transport: a websocket begins with an upgrade")
    version.accept(request.parameter("a2c_version", blank=True), required_version)


def check_page(request: Request, allowed: frozenset[str]) -> Fields:
    """Whether a web page may ask this, and what its browser is told. Raises `BadRequest`.

    It may if its origin is allowed, or if it comes from this very server.
    """
    if not (origin := request.header(b"origin")):
        return ()
    scheme = _first(request, b"x-forwarded-proto") or request.scheme
    hosts = (_first(request, name) for name in (b"host", b"x-forwarded-host"))
    if not (allowed & {origin, "*"} or origin in {f"{scheme}://{host}" for host in hosts if host}):
        raise BadRequest("this server does not serve pages of this origin")
    told = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-credentials", b"true"),
        (b"vary", b"origin"),
    ]
    if request.method == "OPTIONS":
        told.append((b"access-control-allow-methods", b"OPTIONS, GET, POST"))
        if wanted := request.header(b"access-control-request-headers"):
            told.append((b"access-control-allow-headers", wanted.encode("latin-1")))
    return told


def readiness(directory: Shared | None, *, is_draining: bool) -> dict[str, str]:
    """Whether newcomers are welcome here, and which of several nodes this is."""
    if directory is None:
        return {"status": "draining" if is_draining else "ready"}
    status = "draining" if is_draining else "ready" if directory.is_ready else "degraded"
    return {"status": status, "node": directory.node}


def refusal(error: SMCPError) -> Response:
    """An error before there is anything to ack: HTTP, with the error as its body (WIRE §1)."""
    status = 400 if isinstance(error, BadRequest) else error.code
    headers = ((b"x-a2c-error-code", b"%d" % error.code),) if isinstance(error, VersionMismatch) else ()
    return json_response(status, {"code": error.code, "message": error.message, **error.details}, headers)


def _first(request: Request, name: bytes) -> str:
    """What the first of several proxies has written into this header."""
    return request.header(name).partition(",")[0].strip()
