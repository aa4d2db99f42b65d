"""An MCP server whose descendants try to outlive it: `leaves.py MARK`. It is `good.py` otherwise."""

from __future__ import annotations

import runpy
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

SLEEPS = "import time; time.sleep(600)"
DETACHED, NEW_GROUP, BREAKAWAY, NEW_CONSOLE = 0x8, 0x200, 0x01000000, 0x10
STREAMS = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)

# One leaves its console, one has its own, one is an orphan at once, and one asks to leave the job, which is refused.
subprocess.Popen([sys.executable, "-c", SLEEPS, sys.argv[1]], creationflags=DETACHED | NEW_GROUP, **STREAMS)
subprocess.Popen([sys.executable, "-c", SLEEPS, sys.argv[1]], creationflags=NEW_CONSOLE, **STREAMS)
orphan = f"import subprocess; subprocess.Popen([{sys.executable!r}, '-c', {SLEEPS!r}, {sys.argv[1]!r}])"
subprocess.run([sys.executable, "-c", orphan], check=True, **STREAMS)
with suppress(OSError):
    subprocess.Popen([sys.executable, "-c", SLEEPS, sys.argv[1]], creationflags=BREAKAWAY, **STREAMS)

runpy.run_path(str(Path(__file__).parents[1] / "computer" / "servers" / "good.py"), run_name="__main__")
