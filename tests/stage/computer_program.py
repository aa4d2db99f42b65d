"""The computer as a program: its surroundings, and MCP servers for it."""

from __future__ import annotations

import os
from pathlib import Path

GOOD = Path(__file__).parents[1] / "computer" / "servers" / "good.py"


def surroundings(folder: Path) -> dict[str, str]:
    theirs = ("A2C_", "NO_COLOR", "COLUMNS", "LINES")
    known = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    return {**known, "XDG_STATE_HOME": str(folder)}


HANGS = ["-c", "import time; time.sleep(600)"]
