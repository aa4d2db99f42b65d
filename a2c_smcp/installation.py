"""How this installation gets another extra. Its name on the package index is another package, so it is never asked for.

pip, uv and pipx write down where a package came from (PEP 610): a clone, a wheel, a repository. The same place is named
again, with the extra, for the Python that runs this.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

__all__ = ["install_command"]

_NAME = "a2c-smcp"


def install_command(extra: str) -> str:
    """A line for a shell. Where nobody knows what this was installed from, it is one for a clone of the repository."""
    return shlex.join([*_installer(), *_source(_origin(), extra)])


def _installer() -> list[str]:
    """What installs into the environment of this Python, whose own programs may not be the first on the PATH."""
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
    place = url2pathname(urlsplit(url).path)
    if not place or not Path(place).exists():
        return [f".[{extra}]"]
    return [*(["-e"] if origin.get("dir_info", {}).get("editable") else []), f"{place}[{extra}]"]


def _origin() -> dict[str, Any]:
    try:
        written = json.loads(distribution(_NAME).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return {}
    return written if isinstance(written, dict) else {}
