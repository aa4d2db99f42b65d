"""The certificates that MCP servers and authorization servers are checked with: those of this machine."""

from __future__ import annotations

import ssl
from functools import cache

import httpx2

__all__ = ["certificates"]


@cache
def certificates() -> ssl.SSLContext:
    """Read once: that takes some 20 ms, in which nothing else happens, and each HTTP client would do it again."""
    return httpx2.create_ssl_context()
