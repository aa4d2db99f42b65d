"""Runs MCP's conformance suite for each revision and prints a table: `make conformance`.

It has five legs: `client.py`, a Computer that uses the suite's servers; `server.py`, a registry that serves the suite;
`bridge.py`, which serves the same through an office, behind a Computer, a Server and a bridge; the same signed in; and
`authorization.py`, a Server where people sign in MCP clients, all of whose scenarios must pass. What a
revision requires must pass, but for the lines of `expected-failures.yaml`. So must all else that is carried: for the
client leg, the table of features says that, and each scenario must be in it; for the others it is everything but the
extensions in `NOT_SERVED`.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from reference.features import FEATURES
from tests.ports import free_port
from tests.stage.signing_in import Person, send

HERE = Path(__file__).resolve().parent
SUITE = HERE.parent.parent / ".cache" / "conformance" / "node_modules"
TIMEOUT = "120000"  # milliseconds for a scenario: all of the client leg are started at once
LISTED = {scenario: feature.carried for feature in FEATURES for scenario in feature.scenarios}
NOT_SERVED = ("tasks-",)
"""How the names of scenarios begin that a served registry does not try to pass: the tasks extension."""

Leg = Literal["client", "server", "bridge", "signed-in"]
ROLES: dict[Leg, str] = {"client": "client", "server": "server", "bridge": "server", "signed-in": "server"}
"""What the suite calls the program that it tests."""
RUNS: dict[tuple[Leg, str], tuple[str, ...]] = {
    **{(leg, revision): ("--requirements", revision) for leg in ROLES for revision in ("2026-07-28", "2025-11-25")},
    ("client", "2025-03-26"): ("--suite", "backcompat"),
}

_COMMAND = [SUITE / ".bin" / "node", SUITE / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"]
_RESULT = re.compile(r"^([✓✗]) (\S+): \d+ passed", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[\d+m")


@dataclass(frozen=True, slots=True)
class Run:
    """The outcome of the suite for one leg and one revision. `said` is all that the suite printed."""

    leg: Leg
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
            f"{self.leg}  {self.revision}  {len(self.passed & self.required):3} of {len(self.required):<3}"
            f"  {len(self.passed & beyond):3} of {len(beyond):<3}  {others}"
        )

    @property
    def faults(self) -> list[str]:
        """Why this run is not good. The suite knows whether failures of required scenarios are expected."""
        faults = [] if self.is_as_expected and self.passed else [", ".join(sorted(self.failed)) or self.said[-2000:]]
        faults += [f"{each} failed" for each in sorted(self.failed - self.required) if self._is_carried(each)]
        if self.leg != "client":
            return faults
        return faults + [
            f"{each} is not in the table of features" for each in sorted((self.passed | self.failed) - LISTED.keys())
        ]

    def _is_carried(self, scenario: str) -> bool:
        return LISTED.get(scenario, "no") != "no" if self.leg == "client" else not scenario.startswith(NOT_SERVED)


def suite(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*_COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")


def required(leg: Leg, revision: str) -> frozenset[str]:
    """The scenarios that a revision requires; the suite has such lists for two of them."""
    listed = suite("list", "--requirements", revision).stdout
    found = re.search(rf"^{ROLES[leg].capitalize()} scenarios.*\n((?:  - .*\n)+)", listed, re.MULTILINE)
    return frozenset(line.removeprefix("  - ") for line in found[1].splitlines()) if found else frozenset()


@contextmanager
def subject(leg: Leg, results: Path) -> Iterator[tuple[str, ...]]:
    """What the suite is told of the program that it tests."""
    if leg == "client":
        # The suite hands the command to a shell, so a path may have blanks.
        yield "--command", shlex.join([sys.executable, str(HERE / "client.py")])
        return
    log = results / f"{leg}.log"
    with running("server.py", log=log) as url:
        if leg == "server":
            yield "--url", url
            return
        port = free_port()
        is_signed_in = leg == "signed-in"
        more, path = (["--signed-in"], "/mcp/conformance") if is_signed_in else ([], "/mcp")
        with running("bridge.py", "--port", str(port), "--upstream", url, *more, log=log):
            yield "--url", f"http://127.0.0.1:{port}{path}"


@contextmanager
def running(program: str, *words: str, log: Path) -> Iterator[str]:
    """Runs a program of this folder meanwhile. Yields its first line, which it prints when it can be used."""
    command = [sys.executable, str(HERE / program), *words]
    with (
        log.open("a", encoding="utf-8") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, encoding="utf-8") as process,
    ):
        assert process.stdout
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


def run(leg: Leg, revision: str, results: Path) -> Run:
    files = ["--expected-failures", str(HERE / "expected-failures.yaml"), "--output-dir", str(results / leg / revision)]
    with subject(leg, results) as tested:
        done = suite(ROLES[leg], *tested, "--timeout", TIMEOUT, *files, *RUNS[leg, revision])
    said = _COLOUR.sub("", done.stdout)
    marks = {scenario: mark for mark, scenario in _RESULT.findall(said)}
    passed = frozenset(scenario for scenario, mark in marks.items() if mark == "✓")
    needed = required(leg, revision) or frozenset(marks)
    return Run(leg, revision, passed, frozenset(marks) - passed, needed, done.returncode == 0, said)


def authorization_faults(results: Path) -> list[str]:
    """Runs the scenarios for authorization servers. The suite waits for a person, who signs in with a key."""
    output, port = results / "authorization", free_port()
    with running("authorization.py", log=results / "authorization.log") as line:
        told = json.loads(line)
        words = ["--url", told["url"], "--client-id", told["client"], "--resource", f"{told['url']}/mcp/conformance"]
        command = [*_COMMAND, "authorization", *words, "--port", str(port), "--output-dir", str(output)]
        said = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8") as process:
            assert process.stdout
            for text in process.stdout:
                said.append(text)
                if text.startswith(f"{told['url']}/sign-in/authorize?"):
                    asyncio.run(sign_in(told["url"], text.strip(), told["key"]))
    checks = [check for file in output.rglob("checks.json") for check in json.loads(file.read_bytes())]
    passed = [check["id"] for check in checks if check["status"] == "SUCCESS"]
    print(f"authorization            {len(passed):3} of {len(checks):<3}", flush=True)
    faults = [f"{check['id']}: {check.get('errorMessage')}" for check in checks if check["status"] != "SUCCESS"]
    return faults if {"authorization-code-grant", "authorization-server-metadata"} <= {*passed} else [*faults, *said]


async def sign_in(url: str, page: str, key: str) -> None:
    answer = await Person(url).sign_in(page, key)
    await send("GET", answer.headers["Location"])


def main() -> int:
    results = Path(tempfile.mkdtemp(prefix="conformance-"))
    print("leg     revision    required     others       others that failed", flush=True)
    is_good = True
    for leg, revision in RUNS:
        outcome = run(leg, revision, results)
        print(outcome.row, flush=True)
        for fault in outcome.faults:
            is_good = False
            print(f"  FAILED: {fault}", flush=True)
    for fault in authorization_faults(results):
        is_good = False
        print(f"  FAILED: {fault}", flush=True)
    if is_good:
        shutil.rmtree(results)
    else:
        print(f"the checks of each scenario, and what the programs printed: {results}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
