"""The names and addresses under which a machine reaches itself."""

from __future__ import annotations

import ipaddress

__all__ = ["LOOPBACK_HOSTS", "LOOPBACK_NAMES", "is_loopback", "is_this_machine"]

LOOPBACK_NAMES = ("127.0.0.1", "::1", "localhost")
"""The usual ones, as `urlsplit` gives them."""

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
"""The same as they are written in a URL."""


def is_loopback(host: str) -> bool:
    """Whether this name or address always means the machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_this_machine(host: str) -> bool:
    """As `is_loopback`, and for names below `localhost`. A resolver may ask the network for those (RFC 6761)."""
    return is_loopback(host) or host.lower().endswith(".localhost")
