"""Files and folders that only their owner may change: others who can write to them decide what runs here."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from a2c_smcp.errors import NotPrivate

__all__ = ["check_private", "remedy_for"]


def check_private(*paths: Path) -> None:
    """Raises `NotPrivate` if others on this machine may write to one of them. What is not there is fine."""
    for path in paths:
        if remedy := remedy_for(path):
            raise NotPrivate(f"{path} can be changed by others on this machine, and is not used; run: {remedy}")


def remedy_for(path: Path) -> str | None:
    """What makes it private; `None` where it is, or where there are no such rights."""
    if os.name != "posix":
        return None
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    return f"chmod go-w {shlex.quote(str(path))}" if mode & (stat.S_IWGRP | stat.S_IWOTH) else None
