"""What of the Computer's own environment its MCP servers may see: nothing that could be a secret."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["child_environment", "proxies"]

_SAFE = frozenset({"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "TMPDIR"})
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})
_CERTIFICATES = frozenset(
    {
        "AWS_CA_BUNDLE",
        "CARGO_HTTP_CAINFO",
        "CURL_CA_BUNDLE",
        "DENO_CERT",
        "GIT_SSL_CAINFO",
        "NIX_SSL_CERT_FILE",
        "NODE_EXTRA_CA_CERTS",
        "NODE_USE_SYSTEM_CA",
        "NPM_CONFIG_CAFILE",
        "PIP_CERT",
        "REQUESTS_CA_BUNDLE",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "UV_NATIVE_TLS",
        "UV_SYSTEM_CERTS",
    }
)
"""Where the certificates of trusted authorities are. Behind a company's proxy nothing works without them."""


def child_environment(own: Mapping[str, str], configured: Mapping[str, str] | None) -> dict[str, str]:
    inherited = {name: value for name, value in own.items() if _is_safe(name) and not value.startswith("()")}
    return inherited | dict(configured or {})


def proxies(own: Mapping[str, str]) -> list[str]:
    """The addresses of proxies, which servers are given. There may be a password in them."""
    return [value for name, value in own.items() if name.upper() in _PROXIES]


def _is_safe(name: str) -> bool:
    return name in _SAFE or name.startswith("LC_") or name.upper() in _PROXIES | _CERTIFICATES
