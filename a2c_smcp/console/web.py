"""HTTP for the pages: requests as ASGI brings them, which of them are refused, and answers with their headers."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from urllib.parse import parse_qs, parse_qsl

from a2c_smcp.console.html import Html
from a2c_smcp.errors import BadRequest, TooLarge
from a2c_smcp.http.asgi import Receive, Scope, Send
from a2c_smcp.http.loopback import is_loopback

__all__ = [
    "SAFETY",
    "Request",
    "Response",
    "as_page",
    "check_page_of_ours",
    "encoded",
    "is_own_host",
    "read_form",
    "redirect",
    "send_response",
    "static_file",
    "version_of",
]

_KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_LARGEST_FORM = 1024 * 1024
_FORM_TIME = 15.0
_MOST_FIELDS = 2000
_MOST_IN_QUERY = 50

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
SAFETY = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)
"""Of every answer. With the referrer policy `no-referrer`, browsers would send forms with the origin `null`."""


@dataclass(frozen=True, slots=True)
class Request:
    """`path` is the one below the prefix of the pages, and begins with a slash."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    scheme: str = "http"

    @classmethod
    def of(cls, scope: Scope, prefix: str) -> Request:
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
        try:
            query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), max_num_fields=_MOST_IN_QUERY))
        except ValueError:
            query = {}  # no page has an address with so many fields
        path = str(scope["path"]).removeprefix(prefix)
        return cls(scope["method"], path or "/", query, headers, scope.get("scheme", "http"))

    @property
    def is_secure(self) -> bool:
        """Whether the browser uses https, also through a proxy."""
        return (self.header("x-forwarded-proto").partition(",")[0].strip() or self.scheme) == "https"

    def header(self, name: str) -> str:
        return self.headers.get(name, "")

    def cookie(self, name: str) -> str:
        """A cookie of ours. Other programs of this host may have set any others, which need not follow any grammar."""
        for each in self.header("cookie").split(";"):
            key, _, value = each.strip().partition("=")
            if key == name:
                return value
        return ""


@dataclass(slots=True)
class Response:
    """An answer. Pages are never kept by a browser or a proxy."""

    status: int = 200
    body: str | bytes = ""
    kind: str = "text/html; charset=utf-8"
    headers: list[tuple[str, str]] = field(default_factory=list)
    is_kept: bool = False

    def set_cookie(self, name: str, value: str, *, path: str, seconds: int | None, secure: bool) -> None:
        """Scripts cannot read it, and other sites cannot make the browser send it. Without `value` it is deleted."""
        lasts = "; Max-Age=0" if not value else "" if seconds is None else f"; Max-Age={seconds}"
        protected = "; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")
        self.headers.append(("set-cookie", f"{name}={value}; Path={path or '/'}{lasts}{protected}"))


def redirect(path: str) -> Response:
    """The answer to a form: the browser goes on to this page."""
    return Response(303, headers=[("location", path)])


async def send_response(response: Response, send: Send, *, has_body: bool = True) -> None:
    body = response.body.encode() if isinstance(response.body, str) else response.body
    kept = "private, max-age=31536000, immutable" if response.is_kept else "no-store"
    headers = [("content-type", response.kind), ("content-length", str(len(body))), ("cache-control", kept)]
    await send(
        {
            "type": "http.response.start",
            "status": response.status,
            "headers": encoded([*headers, *SAFETY, *response.headers]),
        }
    )
    await send({"type": "http.response.body", "body": body if has_body else b""})


def encoded(headers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


async def read_form(receive: Receive) -> dict[str, list[str]]:
    """The fields of a form. Raises `BadRequest` or `TooLarge`."""
    body = b""
    try:
        async with asyncio.timeout(_FORM_TIME):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise BadRequest("the form did not come")
                body += message.get("body", b"")
                if len(body) > _LARGEST_FORM:
                    raise TooLarge("the form is too large", limit=_LARGEST_FORM)
                if not message.get("more_body"):
                    break
    except TimeoutError:
        raise BadRequest("the form did not come") from None
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise BadRequest("that is no form of these pages") from None


# Checks


def is_own_host(request: Request, names: Collection[str]) -> bool:
    """Whether a request is for this program: a web page can point a name of its own at this machine (DNS rebinding)."""
    host = request.header("host").lower()
    name = host.removeprefix("[").partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name in names or is_loopback(name)


def check_page_of_ours(request: Request) -> None:
    """Raise `BadRequest` unless a form was sent by a page of this very address."""
    scheme, _, host = request.header("origin").lower().partition("://")
    is_same = scheme in ("http", "https") and host == request.header("host").lower()
    if not is_same or request.header("sec-fetch-site") not in ("", "same-origin"):
        raise BadRequest("only pages of this console may send this")


# Answers


def as_page(document: Html, status: int = 200) -> Response:
    return Response(status, f"<!doctype html>\n{document}")


def static_file(name: str) -> Response:
    """A file of ours. Its address changes with its content (`version_of`), so browsers may keep it."""
    kind = _KINDS.get(name.rpartition(".")[2])
    content = _content_of(name) if kind and name.isascii() and "/" not in name else None
    if kind is None or content is None:
        return Response(404, "there is no such file", "text/plain")
    return Response(200, content, kind, is_kept=True)


def version_of(name: str) -> str:
    """Changes with the content of a file of ours."""
    return hashlib.sha256(_content_of(name) or b"").hexdigest()[:12]


@cache
def _content_of(name: str) -> bytes | None:
    try:
        return (resources.files("a2c_smcp.console") / "static" / name).read_bytes()
    except OSError:
        return None
