"""A machine that boots: systemd as process 1 of namespaces of its own, which `make test-service` starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import PIPE
from uuid import uuid4

import pytest
import pytest_asyncio

from tests.program import PROGRAM
from tests.waiting import until

TIME = 120.0
"""A bound against hanging."""


class Machine:
    """Runs commands in the machine, as root or as its user `ann`."""

    def __init__(self, booting: subprocess.Popen[str]) -> None:
        self._booting = booting

    async def boot(self) -> None:
        """Boot, the first time or again, and wait until all of it is started."""
        assert self._booting.stdin
        print(file=self._booting.stdin, flush=True)
        self._says("boots")
        await until(lambda: self._first() and self.run("systemctl", "is-system-running").stdout == "running\n", TIME)

    def shut_down(self) -> None:
        self.run("systemctl", "reboot")
        self._says("down")

    def run(self, *words: str | Path, user: str = "") -> subprocess.CompletedProcess[str]:
        there = ["nsenter", f"--target={self._first()}", "--all", "--root", "--wdns=/"]
        if user:
            there += ["runuser", "-u", user, "--", "env", f"--chdir=/home/{user}", f"HOME=/home/{user}"]
            there += [f"XDG_RUNTIME_DIR=/run/user/{self.number(user)}"]
        return subprocess.run([*there, *words], capture_output=True, text=True, timeout=TIME)

    def a2c(self, *words: str | Path, user: str = "ann", fails: bool = False, **variables: str) -> str:
        """What `a2c-smcp WORD…` prints. It succeeds, or may fail."""
        given = [f"{name}={value}" for name, value in variables.items()]
        done = self.run("env", *given, PROGRAM, *words, user=user)
        assert fails or done.returncode == 0, done
        return done.stdout + done.stderr

    def _says(self, word: str) -> None:
        assert self._booting.stdout
        assert self._booting.stdout.readline() == f"{word}\n"

    def number(self, user: str) -> str:
        return self.run("id", "-u", user).stdout.strip()

    def _first(self) -> int | None:
        """Process 1 of the machine, as it is numbered here."""
        found = [str(self._booting.pid)]
        for _ in range(2):  # unshare, and its child
            if not (found := Path(f"/proc/{found[0]}/task/{found[0]}/children").read_text().split()):
                return None
        return int(found[0])


def _new_group() -> Path:
    """A control group below which the machine has its own."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    group = next(Path(each[1]) for each in mounts if each[2] == "cgroup2") / f"a2c-{uuid4().hex}"
    group.mkdir()
    return group


def _is_empty(group: Path) -> bool:
    return "populated 0" in (group / "cgroup.events").read_text()


def _start(folder: Path, group: Path) -> subprocess.Popen[str]:
    words = ["unshare", "--mount", Path(__file__).with_name("boot.sh"), folder, group]
    return subprocess.Popen([*words, Path(sys.executable).resolve(), PROGRAM], stdin=PIPE, stdout=PIPE, text=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def machine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Machine]:
    group = _new_group()
    try:
        with _start(tmp_path_factory.mktemp("booted"), group) as booting:
            try:
                machine = Machine(booting)
                await machine.boot()
                yield machine
            finally:
                booting.kill()  # and so all of its namespaces
                await until(lambda: _is_empty(group), TIME)
    finally:
        for below in [*sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True), group]:
            below.rmdir()
