"""All benchmarks one after another, then the goals: `python -m benchmarks`, or `--quick`, or with names of some."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.processes import OURS, ROOT, interpreter
from benchmarks.report import FOUND, forget
from benchmarks.table import told

__all__: list[str] = []

PEERS = "bench"
SECTIONS: dict[str, Path | str] = {
    "relay": PEERS,
    "end_to_end": OURS,
    "progress": OURS,
    "transfers": OURS,
    "sealed": OURS,
    "monitored": OURS,
    "operator_console": OURS,
    "computer": OURS,
    "crowds": PEERS,
    "growth": PEERS,
    "pressure": PEERS,
    "agent": OURS,
    "registry": PEERS,
    "nodes": PEERS,
    "bridge": OURS,
    "bridge_catalog": OURS,
    "tool_search": OURS,
    "sandboxed_start": OURS,
    "on_call": OURS,
}
"""Each is a module of its own, and the Python that has what it stands on, or its peers."""

UNHURRIED = {"agent", "monitored", "nodes", "operator_console", "pressure"}
"""What a first impression leaves out, unless it is named."""


def run(module: str, stands_on: Path | str, *arguments: str) -> bool:
    """Runs a module to its end, which is in order when it is interrupted: what it started must not outlive it."""
    start = time.monotonic()
    python = interpreter(stands_on) if isinstance(stands_on, str) else stands_on
    with subprocess.Popen([python, "-m", f"benchmarks.{module}", *arguments], cwd=ROOT) as process:
        try:
            process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise
    told(f"{module}: {time.monotonic() - start:.0f} s")
    return process.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description="All benchmarks, or some, and then the goals.")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a first impression: fewer of everything")
    chosen = parser.parse_args()
    if unknown := set(chosen.sections) - set(SECTIONS):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    if not chosen.sections:
        forget()
    usual = SECTIONS.keys() - UNHURRIED if chosen.quick else SECTIONS.keys()
    some = [name for name in SECTIONS if name in (chosen.sections or usual)]
    failed = [name for name in some if not run(name, SECTIONS[name], *(["--quick"] if chosen.quick else []))]
    is_complete = not (chosen.sections or chosen.quick or failed)
    if is_complete:
        run("report", PEERS)
    else:
        run("report", OURS, "--into", str(FOUND), "--no-chart")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
