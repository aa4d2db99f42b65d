"""What of the Computer's own environment its MCP servers may see: nothing that could be a secret."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["child_environment", "proxies"]

_SAFE = frozenset({"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "TMPDIR"})
_PROXIES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})


def child_environment(own: Mapping[str, str], configured: Mapping[str, str] | None) -> dict[str, str]:
    inherited = {name: value for name, value in own.items() if _is_safe(name) and not value.startswith("()")}
    return inherited | dict(configured or {})


def proxies(own: Mapping[str, str]) -> list[str]:
    """The addresses of proxies, which servers are given. There may be a password in them."""
    return [value for name, value in own.items() if name.upper() in _PROXIES]


def _is_safe(name: str) -> bool:
    return name in _SAFE or name.startswith("LC_") or name.upper() in _PROXIES
