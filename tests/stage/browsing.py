"""Pages to sign in on, opened as a browser opens them."""

from __future__ import annotations

from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, ProxyHandler, build_opener


class _Stays(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def visit(page: str) -> None:
    """Open a page, and follow its redirects."""
    with build_opener(ProxyHandler({})).open(page, timeout=60) as answer:
        answer.read()


def redirect_of(page: str) -> str:
    """The address to which the page sends a browser on another machine, which cannot open it."""
    try:
        build_opener(ProxyHandler({}), _Stays).open(page, timeout=60)
    except HTTPError as answer:
        return str(answer.headers["Location"])
    raise AssertionError("it does not redirect")
