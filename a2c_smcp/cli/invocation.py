"""How this program was started, for lines that are to be pasted: a virtual environment is seldom on the PATH."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

__all__ = ["invocation", "invocation_anywhere"]

_NAME = "a2c-smcp"


def invocation() -> list[str]:
    """The words that start it again from this folder: the bare name only where the PATH leads here."""
    started = Path(sys.argv[0])
    if started.name == "__main__.py":
        return [sys.executable, "-m", "a2c_smcp"]
    if not started.exists() or _is_on_path(started):
        return [_NAME]
    return [sys.argv[0]]


def invocation_anywhere() -> list[str]:
    """The same for another terminal: in another folder, and without the virtual environment that is active here."""
    first, *others = invocation()
    if first == _NAME:
        found, environment = shutil.which(_NAME), os.environ.get("VIRTUAL_ENV")
        return [found] if found and environment and Path(found).is_relative_to(environment) else [_NAME]
    return [str(Path(first).absolute()), *others]


def _is_on_path(program: Path) -> bool:
    found = shutil.which(_NAME)
    return found is not None and Path(found).samefile(program)
