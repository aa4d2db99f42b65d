"""A Server with workers, and the processes that all of them have started."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.computer.hosted import pids_with
from tests.stage.place import Place
from tests.stage.program import Program


class Crew:
    """A parent, its workers, and the processes that all of them have started."""

    def __init__(self, program: Program, url: str, marker: str, folder: Path) -> None:
        self.program, self.url, self._marker, self._folder = program, url, marker, folder

    @classmethod
    async def start(cls, place: Place, *options: str, **environ: Any) -> Crew:
        marker = uuid4().hex
        words = ("server", "--port", "0", "--workers", "2", "--node", "w", *options)
        program = await place.start(*words, MARKER=marker, **environ)
        return cls(program, await program.listens(), marker, place.folder)

    def left(self) -> list[int]:
        return [*pids_with(self._marker), *self.valkeys()]

    def valkeys(self) -> list[int]:
        return valkeys_in(self._folder)

    def workers(self) -> dict[str, int]:
        """Those that serve or are about to, by their names."""
        return {post["node"]: pid for pid in self.left() if (post := worker_settings(pid))}


def valkeys_in(folder: Path) -> list[int]:
    """A Valkey says in the list of processes where its socket is, and nothing of its environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes() if entry.name.isdecimal() else b""
            if b"valkey-server" in words and str(folder).encode() in words:
                found.append(int(entry.name))
    return found


def worker_settings(pid: int) -> dict[str, Any] | None:
    """What a worker was told when it was started."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    told = [each.partition(b"=")[2] for each in variables if each.startswith(b"A2C_WORKER=")]
    return json.loads(told[0]) if told else None
