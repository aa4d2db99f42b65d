"""Which addresses of an authorization server may be used. They come from the MCP server, and may be hostile."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import urlsplit

from a2c_smcp.http.loopback import is_this_machine
from a2c_smcp.mcp_host.failures import SignInFailed
from a2c_smcp.protocol.visible import one_line

__all__ = ["check_address", "check_metadata", "check_page"]

_ENDPOINTS = ("issuer", "authorization_endpoint", "token_endpoint", "registration_endpoint", "revocation_endpoint")
_UNSAFE = re.compile(r"[^!-~]|[\"'<>\\^`{|}]")  # not printable ASCII, or not allowed in a URL
_IN_SHELLS = re.compile(r"[$();*!]")  # allowed in a URL, but browsers are started by scripts that may be careless
_SHOWN = 200
_LONGEST = 16 * 1024


def _is_local(url: str) -> bool:
    return is_this_machine(urlsplit(url).hostname or "")


def check_page(url: str, what: str, server: str) -> None:
    """As `check_address`, for a page that is opened in a browser."""
    if _IN_SHELLS.search(url):
        raise SignInFailed(f"{what} has characters that are not usual, and is not opened: {one_line(url, _SHOWN)}")
    check_address(url, what, server)


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
    if parts.scheme == "http" and not _is_local(url) and urlsplit(server).scheme != "http":
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
            check = check_page if name == "authorization_endpoint" else check_address
            check(str(document[name]), f"the {name} of its authorization server", server)
    methods = document.get("code_challenge_methods_supported")
    if isinstance(methods, list) and "S256" not in methods:
        raise SignInFailed("its authorization server does not support PKCE with S256, which protects the sign-in")
