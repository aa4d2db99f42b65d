"""Runs MCP's conformance suite against `client.py`, for each revision, and prints a table: `make conformance`.

What a revision requires must pass, but for the lines of `expected-failures.yaml`. So must all else that the table of
features says is carried; the suite also runs extensions that are not. Each scenario must be in that table.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from a2c_smcp.protocol.mcp_features import FEATURES

HERE = Path(__file__).resolve().parent
SUITE = HERE.parent.parent / ".cache" / "conformance" / "node_modules"
TIMEOUT = "120000"  # milliseconds for a scenario: all are started at once
LISTED = {scenario: feature.carried for feature in FEATURES for scenario in feature.scenarios}
RUNS = {
    "2026-07-28": ("--requirements", "2026-07-28"),
    "2025-11-25": ("--requirements", "2025-11-25"),
    "2025-03-26": ("--suite", "backcompat"),
}

_RESULT = re.compile(r"^([✓✗]) (\S+): \d+ passed", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[\d+m")


@dataclass(frozen=True, slots=True)
class Run:
    """The outcome of the suite for one revision. `said` is all that the suite printed."""

    revision: str
    passed: frozenset[str]
    failed: frozenset[str]
    required: frozenset[str]
    is_as_expected: bool
    said: str

    @property
    def row(self) -> str:
        beyond = (self.passed | self.failed) - self.required
        others = ", ".join(sorted(self.failed & beyond)) or "-"
        return (
            f"{self.revision}  {len(self.passed & self.required):3} of {len(self.required):<3}"
            f"  {len(self.passed & beyond):3} of {len(beyond):<3}  {others}"
        )

    @property
    def faults(self) -> list[str]:
        """Why this run is not good. The suite knows whether failures of required scenarios are expected."""
        beyond = sorted(self.failed - self.required)
        faults = [] if self.is_as_expected and self.passed else [", ".join(sorted(self.failed)) or self.said[-2000:]]
        faults += [f"{each} failed" for each in beyond if LISTED.get(each, "no") != "no"]
        return faults + [
            f"{each} is not in the table of features" for each in sorted((self.passed | self.failed) - LISTED.keys())
        ]


def suite(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [SUITE / ".bin" / "node", SUITE / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"]
    return subprocess.run([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")


def required(revision: str) -> frozenset[str]:
    """The client scenarios that a revision requires; the suite has such lists for two of them."""
    listed = suite("list", "--requirements", revision).stdout
    found = re.search(r"^Client scenarios.*\n((?:  - .*\n)+)", listed, re.MULTILINE)
    return frozenset(line.removeprefix("  - ") for line in found[1].splitlines()) if found else frozenset()


def run(revision: str, results: Path) -> Run:
    # The suite hands the command to a shell, so a path may have blanks.
    client = shlex.join([sys.executable, str(HERE / "client.py")])
    files = ["--expected-failures", str(HERE / "expected-failures.yaml"), "--output-dir", str(results / revision)]
    done = suite("client", "--command", client, "--timeout", TIMEOUT, *files, *RUNS[revision])
    said = _COLOUR.sub("", done.stdout)
    marks = {scenario: mark for mark, scenario in _RESULT.findall(said)}
    passed = frozenset(scenario for scenario, mark in marks.items() if mark == "✓")
    failed = frozenset(marks) - passed
    return Run(revision, passed, failed, required(revision) or frozenset(marks), done.returncode == 0, said)


def main() -> int:
    results = Path(tempfile.mkdtemp(prefix="conformance-"))
    print("revision    required     others       others that failed", flush=True)
    is_good = True
    for revision in RUNS:
        outcome = run(revision, results)
        print(outcome.row, flush=True)
        for fault in outcome.faults:
            is_good = False
            print(f"  FAILED: {fault}", flush=True)
    if is_good:
        shutil.rmtree(results)
    else:
        print(f"the checks of each scenario, and what the client printed: {results}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
