"""How this program was started, for lines that are to be pasted: a virtual environment is seldom on the PATH."""

from __future__ import annotations

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
    """The same for a terminal in another folder."""
    first, *others = invocation()
    return [first if first == _NAME else str(Path(first).absolute()), *others]


def _is_on_path(program: Path) -> bool:
    found = shutil.which(_NAME)
    return found is not None and Path(found).samefile(program)
