"""Which addresses of an authorization server may be used. They come from the MCP server, and may be hostile."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlsplit

from a2c_smcp.mcp_host.failures import SignInFailed
from a2c_smcp.protocol.visible import one_line

__all__ = ["check_address", "check_metadata", "is_loopback"]

_ENDPOINTS = ("issuer", "authorization_endpoint", "token_endpoint", "registration_endpoint", "revocation_endpoint")
_UNSAFE = re.compile(r"[^!-~]|[\"'<>\\^`{|}]")  # not printable ASCII, or not allowed in a URL
_LOOPBACK = re.compile(r"localhost|.*\.localhost|127(?:\.\d{1,3}){3}|::1")
_SHOWN = 200
_LONGEST = 16 * 1024


def is_loopback(url: str) -> bool:
    return _LOOPBACK.fullmatch((urlsplit(url).hostname or "").lower()) is not None


def check_address(url: str, what: str, server: str) -> None:
    """Raise `SignInFailed` unless it is https, or plain http on this machine, or as plain as the MCP server itself."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or _UNSAFE.search(url) or len(url) > _LONGEST:
        raise SignInFailed(f"{what} is not a web address, and is not opened: {one_line(url, _SHOWN)}")
    if parts.username is not None or parts.password is not None:
        raise SignInFailed(f"{what} holds a user name, and is not opened: {one_line(parts.hostname, _SHOWN)}")
    if parts.scheme == "http" and not is_loopback(url) and urlsplit(server).scheme != "http":
        raise SignInFailed(f"{what} is not encrypted (http, not https), and is not used: {one_line(url, _SHOWN)}")


def check_metadata(body: bytes, server: str) -> None:
    """Raise `SignInFailed` if a discovery document names an address that may not be used.

    The SDK would skip such a document without a word, and guess addresses on the MCP server.
    """
    try:
        document: Any = json.loads(body)
    except (ValueError, RecursionError):
        return
    if not isinstance(document, dict):
        return
    for name in _ENDPOINTS:
        if document.get(name) is not None:
            check_address(str(document[name]), f"the {name} of its authorization server", server)
