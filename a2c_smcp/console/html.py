"""HTML that is safe by construction: everything that is not `Html` is escaped, and only `tag` makes `Html`.

Text may come from any peer. Its markup is escaped, and so are characters that cannot be seen or that turn the writing
direction (`protocol/escaping.py`). Scripts and styles can only be files of ours: `tag` refuses elements and attributes
that would hold code, and addresses that a browser would run.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib import resources
from typing import TypeAlias
from urllib.parse import parse_qs, parse_qsl, urlsplit

from a2c_smcp.errors import BadRequest, TooLarge
from a2c_smcp.protocol.codec import dumps
from a2c_smcp.protocol.escaping import escaped
from a2c_smcp.web import Receive, Scope, Send, host_name, is_loopback


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | int | Iterable[Child] | None"
"""The content of an element. `None` is nothing."""
Attribute: TypeAlias = str | int | bool | None
"""`True` is an attribute without a value; with `False` and `None` there is no attribute."""

_EMPTY = frozenset({"br", "hr", "img", "input", "link", "meta"})
_CODE = frozenset({"script", "style", "iframe", "object", "embed", "base"})
_ADDRESSES = frozenset({"href", "src", "action", "formaction"})
SHOWN = "\n\t"
"""Characters that are kept although they are controls."""


def text(value: object) -> Html:
    """Return text as HTML: nothing of it is markup, and nothing of it is invisible."""
    return value if isinstance(value, Html) else Html(escape(escaped(str(value), keep=SHOWN)))


def joined(*children: Child) -> Html:
    """Return the children one after the other."""
    return Html("".join(_flat(children)))


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Html:
    """Return an element. `class_` is the attribute `class`, and `aria_label` is `aria-label`.

    Raises `ValueError` for what could run code: that is a mistake in a page.
    """
    if name in _CODE and not (name == "script" and set(attributes) == {"src", "type"} and not children):
        raise ValueError(f"<{name}> is not made here")
    start = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    return Html(start if name in _EMPTY else f"{start}{joined(*children)}</{name}>")


def _flat(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if isinstance(child, str | int):
            yield text(child)
        elif child is not None:
            yield from _flat(child)


def _attribute(key: str, value: Attribute) -> str:
    name = key.rstrip("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if name.startswith("on") or name in ("style", "srcdoc"):
        raise ValueError(f"the attribute {name} holds code")
    if name in _ADDRESSES and not _is_address(str(value)):
        raise ValueError(f"{name} is no address of a page")
    return f" {name}" if value is True else f' {name}="{text(value)}"'


def _is_address(value: str) -> bool:
    """True for a path here, or a web page. Browsers ignore blanks and controls in addresses, so there may be none."""
    if escaped(value) != value or any(char.isspace() for char in value):
        return False
    if value.startswith(("/", "#", "?")):
        return not value.startswith(("//", "/\\"))
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


# HTTP for the pages: requests as ASGI brings them, which of them are refused, and answers with their headers.

_YEAR = 365 * 86400
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
        return cls(scope["method"], path or "/", query, headers)

    def header(self, name: str) -> str:
        return self.headers.get(name, "")

    def preference(self, name: str) -> str:
        """Return how pages are to look, from a cookie. Cookies of other programs of this host may be malformed."""
        cookies = (cookie.strip().partition("=") for cookie in self.header("cookie").split(";"))
        return next((value for key, _, value in cookies if key == f"a2c_{name}"), "")


@dataclass(slots=True)
class Response:
    """An answer. Pages are never kept by a browser or a proxy."""

    status: int = 200
    body: str | bytes = ""
    kind: str = "text/html; charset=utf-8"
    headers: list[tuple[str, str]] = field(default_factory=list)
    is_kept: bool = False

    def keep_preference(self, name: str, value: str, *, path: str) -> None:
        """Keep it in a cookie, which is nothing secret: browsers send cookies to all ports of a host."""
        kept = f"a2c_{name}={value}; Path={path}; Max-Age={_YEAR}; HttpOnly; SameSite=Strict"
        self.headers.append(("set-cookie", kept))


def leads_to(address: str, **more: str) -> Response:
    """Return the answer to a form: its script goes on to this address. Raises `BadRequest` if it is no address."""
    if not _is_address(address):
        raise BadRequest("that is no web address, and it is not opened")
    return Response(200, dumps({"goes_to": address, **more}), "application/json")


async def send_response(
    response: Response, send: Send, *, has_body: bool = True, safety: Sequence[tuple[str, str]] = SAFETY
) -> None:
    body = response.body.encode() if isinstance(response.body, str) else response.body
    kept = f"private, max-age={_YEAR}, immutable" if response.is_kept else "no-store"
    headers = [("content-type", response.kind), ("content-length", str(len(body))), ("cache-control", kept)]
    await send(
        {
            "type": "http.response.start",
            "status": response.status,
            "headers": encoded([*headers, *safety, *response.headers]),
        }
    )
    await send({"type": "http.response.body", "body": body if has_body else b""})


def encoded(headers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


async def read_form(receive: Receive) -> dict[str, list[str]]:
    """Return the fields of a form. Raises `BadRequest` or `TooLarge`."""
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
    """True if a request is for this program: a web page can point a name of its own at this machine (DNS rebinding)."""
    name = host_name(request.header("host"))
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
    """Return a file of ours. Its address changes with its content (`version_of`), so browsers may keep it."""
    content = _files().get(name)
    if content is None:
        return Response(404, "there is no such file", "text/plain")
    return Response(200, content, _KINDS[name.rpartition(".")[2]], is_kept=True)


def version_of(name: str) -> str:
    """Return the version of a file of ours, which changes with its content."""
    return hashlib.sha256(_files()[name]).hexdigest()[:12]


@cache
def _files() -> dict[str, bytes]:
    """All files of the folder. What is asked for is only looked up in it: nothing is read or cached by its name."""
    folder = resources.files("a2c_smcp.console") / "static"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name.rpartition(".")[2] in _KINDS}
