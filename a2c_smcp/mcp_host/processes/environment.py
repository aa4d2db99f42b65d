"""The environment of a child process: the variables it may see, none of them a secret, and where its command is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

_ON_WINDOWS = os.name == "nt"
_SAFE = frozenset({"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "TMPDIR"})
_SAFE_ON_WINDOWS = frozenset(
    {
        "ALLUSERSPROFILE",
        "APPDATA",
        "COMMONPROGRAMFILES",
        "COMSPEC",
        "HOMEDRIVE",
        "HOMEPATH",
        "LOCALAPPDATA",
        "NUMBER_OF_PROCESSORS",
        "OS",
        "PATH",
        "PATHEXT",
        "PROCESSOR_ARCHITECTURE",
        "PROGRAMDATA",
        "PROGRAMFILES",
        "PROGRAMFILES(X86)",
        "SYSTEMDRIVE",
        "SYSTEMROOT",
        "TEMP",
        "TMP",
        "USERNAME",
        "USERPROFILE",
        "WINDIR",
    }
)
"""Without these, hardly a program starts on Windows."""
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
    safe = _SAFE_ON_WINDOWS if _ON_WINDOWS else _SAFE
    inherited = {
        name: value
        for name, value in own.items()
        if (name in safe or name.startswith("LC_") or name.upper() in _PROXIES | _CERTIFICATES)
        and not value.startswith("()")
    }
    return inherited | {name.upper() if _ON_WINDOWS else name: value for name, value in (configured or {}).items()}


def proxies(own: Mapping[str, str]) -> list[str]:
    """Return the addresses of proxies, which a child sees. They may hold a password."""
    return [value for name, value in own.items() if name.upper() in _PROXIES]


def find_command(command: str, cwd: str, environment: Mapping[str, str]) -> str | None:
    """Return the absolute path of a program; `None` if it is not there or not executable.

    A command with a folder in it is relative to `cwd`; any other is searched on the PATH of the environment.
    """
    name = os.path.join(cwd, command) if _has_folder(command) else command  # noqa: PTH118
    if _ON_WINDOWS:
        return _find_on_windows(name, environment)
    path = shutil.which(name, path=environment.get("PATH", os.defpath))
    return os.path.abspath(path) if path else None  # noqa: PTH100


def _find_on_windows(name: str, environment: Mapping[str, str]) -> str | None:
    """Return a file with an ending of PATHEXT, such as `npx.cmd`. `shutil.which` would prefer the current folder."""
    endings = environment.get("PATHEXT", ".com;.exe;.bat;.cmd").lower().split(";")
    names = [name] if name.lower().endswith(tuple(endings)) else [name + ending for ending in endings]
    listed = [folder.strip('"') for folder in environment.get("PATH", "").split(os.pathsep)]
    folders = [""] if _has_folder(name) else filter(os.path.isabs, listed)
    paths = (os.path.join(folder, each) for folder in folders for each in names)  # noqa: PTH118
    return next(filter(os.path.isfile, paths), None)


def why_not_found(command: str) -> str:
    """Return the end of a sentence that begins with the command."""
    return "does not exist or is not executable" if _has_folder(command) else "is not on PATH"


def _has_folder(command: str) -> bool:
    return bool(os.path.dirname(command))  # noqa: PTH120  # pathlib takes "./x" for "x"
