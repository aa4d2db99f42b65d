"""Programs that a test writes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

__all__ = ["executable"]


def executable(path: Path, code: str) -> Path:
    """Makes a program of Python code. A shell starts it, since `#!` cannot name a path with a space."""
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(code)} "$@"\n')
    path.chmod(0o700)
    return path
