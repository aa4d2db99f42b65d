"""Programs that are measured, each in a process of its own that ends with the benchmark."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from benchmarks.machine import pin

__all__ = ["OURS", "PATIENCE", "PROGRAM", "ROOT", "Running", "hub", "interpreter", "running"]

ROOT = Path(__file__).parent.parent
OURS = ROOT / ".venv" / "bin" / "python"
PROGRAM = OURS.with_name("a2c-smcp")
PATIENCE = 15.0
"""A bound against hanging, nothing that is measured."""

_TAIL = 2000


class Running:
    """A process, and what /proc knows of it; `None` where there is no /proc."""

    def __init__(self, process: Process, said: str) -> None:
        self.said = said
        self._process = process
        self._folder = Path(f"/proc/{process.pid}")

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    @property
    def rss(self) -> int | None:
        """Resident bytes."""
        status = self._read("status")
        return next((int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:")), None)

    @property
    def cpu(self) -> float | None:
        """Seconds of CPU so far, of all its threads; its children are not counted."""
        ran = [self._read(f"task/{thread}/schedstat") for thread in self._threads()]
        return sum(int(lines[0].split()[0]) for lines in ran if lines) * 1e-9 if any(ran) else None

    def cpu_since(self, before: float | None) -> float | None:
        now = self.cpu
        return None if now is None or before is None else now - before

    def pin(self, core: int | None) -> None:
        """Keeps it on one core: every thread that it has, and so those that these start."""
        if core is None:
            return
        for thread in self._threads():
            pin(int(thread), core)

    def _threads(self) -> list[str]:
        try:
            return [path.name for path in (self._folder / "task").iterdir()]
        except OSError:
            return []

    def _read(self, name: str) -> list[str]:
        try:
            return (self._folder / name).read_text().splitlines()
        except OSError:
            return []


@asynccontextmanager
async def running(
    *command: str | Path,
    says: str | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> AsyncIterator[Running]:
    """Starts a program and stops it, with all that it started. `says` is how the line begins that it is ready with."""
    signal.signal(signal.SIGTERM, _interrupt)
    with tempfile.TemporaryFile() as complaints:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=DEVNULL,
            stdout=PIPE if says else DEVNULL,
            stderr=complaints,
            env={**os.environ, **(environment or {})},
            cwd=folder,
            start_new_session=True,
        )
        try:
            yield Running(process, await _line(process, says) if says else "")
        except BaseException:
            complaints.seek(max(complaints.seek(0, os.SEEK_END) - _TAIL, 0))
            print(f"{command[0]}: {complaints.read().decode(errors='replace')}", file=sys.stderr)
            raise
        finally:
            await _stop(process)


@asynccontextmanager
async def hub(environment: Mapping[str, str] | None = None) -> AsyncIterator[tuple[str, Running]]:
    """Our Server on a free port, and where it listens."""
    listening = "listening on "
    command = (PROGRAM, "server", "--port", "0", "--log-level", "error")
    async with running(*command, says=listening, environment=environment) as server:
        yield server.said.removeprefix(listening), server


def interpreter(peers: str) -> Path:
    """The Python of the virtual environment that has these peers."""
    home = ROOT / ".cache" / "peers" / peers
    if not (home / ".ready").exists():
        sys.exit(f"{home.relative_to(ROOT)} is missing: run `make bench-peers`")
    return home / "bin" / "python"


def _interrupt(*_: object) -> None:
    """Who is told to end stops what it has started first, as after Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


async def _line(process: Process, beginning: str) -> str:
    assert process.stdout
    async with asyncio.timeout(PATIENCE):
        while line := (await process.stdout.readline()).decode().strip():
            if line.startswith(beginning):
                return line
    raise ChildProcessError("ended before it was ready")


async def _stop(process: Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), PATIENCE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
