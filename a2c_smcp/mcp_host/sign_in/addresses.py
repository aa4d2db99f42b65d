"""Which addresses a sign-in may use: the owner has chosen two of them, peers name all others.

The owner's are that of the MCP server and `issuer` in its configuration. Any other is used only if all that its name
stands for is public, and a request is sent to an address that was checked: nobody looks the name up once more. A page
is opened by a browser, which does that. So no page of this machine is opened for an authorization server that the
configuration does not name, not even one of the MCP server itself: browsers send cookies to all ports of a host.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from functools import cache
from typing import TypeAlias
from urllib.parse import urlsplit

import httpx2

from a2c_smcp.mcp_host.failures import SignInFailed
from a2c_smcp.protocol.escaping import one_line, web_host
from a2c_smcp.web import deciding_address, is_public, is_this_machine

Place: TypeAlias = tuple[str, int]

_UNSAFE = re.compile(r"[^!-~]|[\"'<>\\^`{|}]")  # not printable ASCII, or not allowed in a URL
_IN_SHELLS = re.compile(r"[$();*!]")  # allowed in a URL, but browsers are started by scripts that may be careless
_SHOWN_URL = 200
_LONGEST = 16 * 1024
_LOOK_UP_TIME = 10.0  # seconds
_PORTS = {"http": 80, "https": 443}


class ProviderUnreachable(SignInFailed):
    """The authorization server does not answer, or is out of order. It may be tried again."""


class Addresses:
    """The addresses for the sign-in to one MCP server. `issuer` is the authorization server that its owner named."""

    def __init__(self, server: str, issuer: str | None) -> None:
        self._server, self._is_plain = _place(server), urlsplit(server).scheme == "http"
        self._issuer = _place(issuer) if issuer else None

    def check(self, url: str, what: str) -> None:
        """Raise `SignInFailed` unless it is https, or plain http on this machine, or as plain as the MCP server."""
        host = web_host(url, _LONGEST)
        if not host or _UNSAFE.search(url) or urlsplit(url).port == 0:
            raise SignInFailed(f"{what} is not a web address, and is not opened: {one_line(url, _SHOWN_URL)}")
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise SignInFailed(f"{what} holds a user name, and is not opened: {host}")
        if parts.scheme == "http" and not self._is_plain and not is_this_machine(parts.hostname or ""):
            raise SignInFailed(
                f"{what} is not encrypted (http, not https), and is not used: {one_line(url, _SHOWN_URL)}"
            )

    async def check_page(self, url: str, what: str, issuer: str = "") -> None:
        """Check an address for a page that is opened in a browser, for this authorization server."""
        if _IN_SHELLS.search(url):
            shown = one_line(url, _SHOWN_URL)
            raise SignInFailed(f"{what} has characters that are not usual, and is not opened: {shown}")
        self.check(url, what)
        if (place := _place(url)) == self._issuer:
            return
        found = await _look_up(place)
        if any(map(_is_here, found)) or (place != self._server and not all(map(is_public, found))):
            raise _unnamed(url, what, issuer)

    async def resolve(self, url: str, what: str, issuer: str = "") -> list[str]:
        """Return the IP addresses to send a request to; none if it may go wherever its name leads."""
        self.check(url, what)
        if (place := _place(url)) in (self._issuer, self._server):
            return []
        found = await _look_up(place)
        if not all(map(is_public, found)):
            raise _unnamed(url, what, issuer)
        return found


def _unnamed(url: str, what: str, issuer: str) -> SignInFailed:
    """The owner may trust it all the same: the configuration can say so."""
    parts = urlsplit(url)
    named = one_line(issuer or f"{parts.scheme}://{parts.netloc}", _SHOWN_URL)
    return SignInFailed(
        f"{what} is on this machine or its own network, at {parts.netloc}, and is used only if its configuration names "
        f'it: "auth": {{"issuer": {named}}}',
        cause="issuer",
    )


def _place(url: str) -> Place:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)


async def _look_up(place: Place) -> list[str]:
    host, port = place
    try:
        async with asyncio.timeout(_LOOK_UP_TIME):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # TimeoutError too
        raise ProviderUnreachable(f"{host} cannot be reached: its address cannot be looked up") from None
    return [str(address[0]) for *_, address in found]


def _is_here(text: str) -> bool:
    address = deciding_address(text)
    return address.is_loopback or address.is_unspecified


@cache
def certificates() -> ssl.SSLContext:
    """Return the certificates of this machine, for all connections over HTTP.

    They are read once: that takes some 20 ms and blocks the event loop.
    """
    return httpx2.create_ssl_context()
