"""What is settled in HTTP, before Socket.IO hears of a connection: its address, its protocol version, health."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs

from a2c_smcp.errors import BadRequest, SMCPError, Unavailable, VersionMismatch
from a2c_smcp.protocol import version
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.server.neighbours import Shared
from a2c_smcp.server.wires import Message, Scope, Send

__all__ = ["check_host", "check_newcomer", "is_loopback", "is_welcome", "readiness", "refuse", "respond", "session_in"]

_PAGE_SCHEMES = {"ws": "http", "wss": "https"}


def check_host(scope: Scope, trusted: frozenset[str] | None) -> None:
    """Refuses to be addressed by a foreign name: a web page can point its own name at this machine."""
    if trusted is None:
        return
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
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


def check_newcomer(scope: Scope, required_version: str | None, *, is_draining: bool) -> None:
    """Refuses a new session that comes too late, or speaks no version of ours."""
    if is_draining:
        raise Unavailable("the server is shutting down")
    if _in_query(scope, "EIO") != "4":
        raise BadRequest("EIO: this server speaks Engine.IO 4, that is Socket.IO 3 or later")
    if scope["type"] == "http" and _in_query(scope, "transport") == "websocket":
        raise BadRequest("transport: a websocket begins with an upgrade")
    version.accept(_in_query(scope, "a2c_version", blank=True), required_version)


def is_welcome(allowed: frozenset[str], origin: str | None, environ: Mapping[str, Any]) -> bool:
    """Whether a web page of this origin may connect: one that is allowed, or that this very server is the origin of."""
    scheme = environ["asgi.scope"]["scheme"]
    scheme = _first(environ, "HTTP_X_FORWARDED_PROTO") or _PAGE_SCHEMES.get(scheme, scheme)
    hosts = (_first(environ, name) for name in ("HTTP_HOST", "HTTP_X_FORWARDED_HOST"))
    return bool(allowed & {origin, "*"}) or origin in {f"{scheme}://{host}" for host in hosts if host}


def session_in(scope: Scope) -> str | None:
    """The Engine.IO session that a request belongs to; `None` for one that opens a session."""
    return _in_query(scope, "sid")


def readiness(directory: Shared | None, *, is_draining: bool) -> dict[str, str]:
    """Whether newcomers are welcome here, and which of several nodes this is."""
    if directory is None:
        return {"status": "draining" if is_draining else "ready"}
    status = "draining" if is_draining else "ready" if directory.is_ready else "degraded"
    return {"status": status, "node": directory.node}


async def refuse(scope: Scope, send: Send, error: SMCPError) -> None:
    """An error before there is anything to ack: HTTP, with the error as its body (WIRE §1)."""
    status = 400 if isinstance(error, BadRequest) else error.code
    headers = {"x-a2c-error-code": str(error.code)} if isinstance(error, VersionMismatch) else {}
    body = {"code": error.code, "message": error.message, **error.details}
    await respond(scope, send, status, dumps(body), "application/json", headers)


async def respond(
    scope: Scope, send: Send, status: int, body: str, content_type: str, headers: Mapping[str, str] | None = None
) -> None:
    """One whole response. Towards a websocket it takes the place of the handshake."""
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close"})
        return
    data = body.encode()
    fields = {"content-type": content_type, "content-length": str(len(data)), **(headers or {})}
    prefix = "websocket." if scope["type"] == "websocket" else ""
    start: dict[str, Any] = {
        "type": f"{prefix}http.response.start",
        "status": status,
        "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
    }
    ending: Message = {"type": f"{prefix}http.response.body", "body": data}
    await send(start)
    await send(ending)


def _in_query(scope: Scope, name: str, *, blank: bool = False) -> str | None:
    """A value of the URL's query. The library takes a blank one for none, and so must whoever asks about sessions."""
    return next(iter(parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=blank).get(name, ())), None)


def _first(environ: Mapping[str, Any], name: str) -> str:
    """What the first of several proxies has written into this header."""
    return str(environ.get(name, "")).partition(",")[0].strip()
