"""Processes of a fault run: started, killed, paused, started again, ended, and what they wrote to stderr."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.waiting import until

__all__ = ["PROGRAM", "Process", "alarms_in"]

PROGRAM = (sys.executable, "-P", "-m", "a2c_smcp")
_ALARMS = re.compile(
    r"Traceback|Unclosed|Task exception|Task was destroyed|never retrieved|never awaited|packet queue is empty"
    r"| (?:ERROR|CRITICAL) "
)
_START = 60.0


class Process:
    """One program that may be started several times. Everything that it writes goes to one file."""

    def __init__(self, name: str, words: Sequence[str], environ: Mapping[str, str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.words = list(words)
        self._environ = dict(environ)
        self._process: asyncio.subprocess.Process | None = None
        self._said_before = 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Starts it in a session of its own, so that a Ctrl-C of the terminal reaches the harness alone."""
        with self.log.open("ab") as log:
            self._said_before = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                *self.words, env=self._environ, stdin=-3, stdout=log, stderr=log, start_new_session=True
            )

    async def says(self, words: str, seconds: float = _START) -> None:
        """Waits until it has said this since its last start."""
        await until(lambda: words in self._said() or not self.is_running, seconds)
        if words not in self._said():
            raise AssertionError(f"{self.name} ended before it said {words!r}, see {self.log}")

    async def kill(self) -> None:
        """As by `kill -9`. Returns when it is gone."""
        if self._process and self.is_running:
            self.signal(signal.SIGKILL)
            await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self._process
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    async def end(self, seconds: float) -> str:
        """Asks it to end. What was wrong with that, if anything was."""
        if not self._process or not self.is_running:
            code = self._process.returncode if self._process else None
            return f"{self.name} had ended by itself with exit code {code}"
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(seconds):
                code = await self._process.wait()
        except TimeoutError:
            await self.kill()
            return f"{self.name} did not end within {seconds:g} s of SIGTERM"
        return f"{self.name} ended with exit code {code}" if code else ""

    def _said(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._said_before)
            return log.read().decode("utf-8", "replace")


def alarms_in(log: Path) -> list[str]:
    """Lines that no fault may bring about."""
    text = log.read_text("utf-8", "replace") if log.exists() else ""
    return [f"{log.name}: {line.strip()[:300]}" for line in text.splitlines() if _ALARMS.search(line)]
