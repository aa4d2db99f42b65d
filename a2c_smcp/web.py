"""The types of ASGI, and how a message is read."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from secrets import token_hex
from typing import Any, TypeAlias
from urllib.parse import urlsplit, urlunsplit

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


def header(message: Mapping[str, Any], name: bytes) -> str:
    """The first value of a header of a request, or of the start of a response; an empty string if there is none."""
    return next((value.decode("latin-1") for field, value in message["headers"] if field == name), "")


async def until_disconnect(receive: Receive) -> None:
    """Returns when the client of an HTTP request is gone. What is left of the body is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass


# The names and addresses under which a machine reaches itself.

LOOPBACK_NAMES = ("127.0.0.1", "::1", "localhost")
"""The usual ones, as `urlsplit` gives them."""

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""The same as they are written in a URL."""


_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::[0-9]*)?")


def host_name(host: str) -> str:
    """The name or address in a `Host` header, in lower case; an empty string if it is malformed."""
    found = _HOST.fullmatch(host.lower())
    return (found[1] or found[2]) if found else ""


def is_loopback(host: str) -> bool:
    """True if this name or address always means the machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_this_machine(host: str) -> bool:
    """As `is_loopback`, and for names below `localhost`. A resolver may ask the network for those (RFC 6761)."""
    return is_loopback(host) or host.lower().endswith(".localhost")


def under_new_name(url: str) -> str:
    """An `http` URL of this machine, under a name that no program has had: browsers keep what they were served at one.

    A service worker of a program that had the port earlier would read the link that opens a console. Browsers know
    that names below `localhost` mean this machine, and ask nobody for them.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not is_loopback(parts.hostname or ""):
        return url
    return urlunsplit(parts._replace(netloc=f"console-{token_hex(6)}.localhost:{parts.port or 80}"))


# Addresses that peers name.

_GLOBAL_UNICAST, _NAT64 = IPv6Network("2000::/3"), IPv6Network("64:ff9b::/96")


def deciding_address(address: str) -> IPv4Address | IPv6Address:
    """Return the address that decides: of IPv4 in IPv6 the inner one."""
    read = ipaddress.ip_address(address)
    if isinstance(read, IPv4Address):
        return read
    in_nat64 = IPv4Address(int(read) & 0xFFFFFFFF) if read in _NAT64 else None
    return read.ipv4_mapped or read.sixtofour or in_nat64 or read


def is_public(address: str) -> bool:
    """True if this IP address belongs to no private network, and to no single machine or network link."""
    read = deciding_address(address)
    is_usual = isinstance(read, IPv4Address) or (read in _GLOBAL_UNICAST and read.teredo is None)
    return is_usual and read.is_global and not read.is_multicast
