"""The environment of a child process: the variables it may see, none of them a secret, and where its command is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

__all__ = ["child_environment", "find_command", "proxies", "why_not_found"]

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
"""Paths of certificates of trusted authorities. Behind a company's proxy nothing works without them."""


def child_environment(own: Mapping[str, str], configured: Mapping[str, str] | None) -> dict[str, str]:
    """Return the harmless variables of our own environment, and those that are configured for the child."""
    inherited = {name: value for name, value in own.items() if _is_safe(name) and not value.startswith("()")}
    return inherited | dict(configured or {})


def proxies(own: Mapping[str, str]) -> list[str]:
    """Return the addresses of proxies, which a child sees. They may hold a password."""
    return [value for name, value in own.items() if name.upper() in _PROXIES]


def find_command(command: str, cwd: str, environment: Mapping[str, str]) -> str | None:
    """Return the absolute path of a program; `None` if it is not there or not executable.

    A command with a folder in it is relative to `cwd`; any other is searched on the PATH of the environment.
    """
    name = os.path.join(cwd, command) if _has_folder(command) else command  # noqa: PTH118
    path = shutil.which(name, path=environment.get("PATH", os.defpath))
    return os.path.abspath(path) if path else None  # noqa: PTH100


def why_not_found(command: str) -> str:
    """Return the end of a sentence that begins with the command."""
    return "does not exist or is not executable" if _has_folder(command) else "is not on PATH"


def _has_folder(command: str) -> bool:
    return bool(os.path.dirname(command))  # noqa: PTH120  # pathlib takes "./x" for "x"


def _is_safe(name: str) -> bool:
    return name in _SAFE or name.startswith("LC_") or name.upper() in _PROXIES | _CERTIFICATES
