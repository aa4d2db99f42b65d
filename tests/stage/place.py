"""The real `a2c-smcp`, run in a folder of the test's own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from tests.computer.hosted import pids_with
from tests.computer.pseudo_terminal import on_a_terminal
from tests.computer.supervised import SERVERS
from tests.program import PROGRAM, folder_of_program, run_program, start_program
from tests.stage.program import Program
from tests.waiting import until

__all__ = ["PATIENCE", "PROGRAM", "Ended", "Place", "assert_it_can_be_left", "good", "place_in"]

PATIENCE = 60.0
"""A bound against hanging, nothing that is measured."""
_OURS = ("A2C_", "VIRTUAL_ENV", "NO_COLOR", "COLUMNS", "LINES", "HTTP_PROXY", "http_proxy")


def good(marker: str = "", **more: Any) -> dict[str, Any]:
    """A server whose tools may run; its process has the marker in its environment."""
    script = {"command": sys.executable, "args": [str(SERVERS / "good.py")], "env": {"MARKER": marker}}
    return {**script, "default_tool_meta": {"auto_apply": True}, **more}


class Ended(NamedTuple):
    """What became of a run."""

    code: int
    out: str
    err: str

    def refused(self, code: int, *words: str) -> str:
        """Its stderr, which has all these words; the run has ended with this code and printed nothing else."""
        missing = [each for each in words if each not in self.err]
        assert (self.code, self.out, missing) == (code, "", []), self
        return self.err


class Place:
    """A folder with a configuration, a state folder, and the programs that were started there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.state = folder / "state"
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(_OURS)},
            "XDG_STATE_HOME": str(self.state),
            "XDG_DATA_HOME": str(folder / "data"),
            "PATH": f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONUNBUFFERED": "1",
            "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
        }
        self.started: list[Program] = []

    def write(self, servers: dict[str, Any], name: str = "mcp.json", **more: Any) -> Path:
        """A configuration file, whole at once."""
        path, draft = self.folder / name, self.folder / f".{name}"
        draft.write_text(json.dumps({"mcpServers": servers, **more}), "utf-8")
        return draft.replace(path)

    async def start(self, *words: str, stderr: int = PIPE, **environ: str) -> Program:
        process = await start_program(*words, cwd=self.folder, env=self.environ | environ, stderr=stderr)
        self.started.append(Program(process))
        return self.started[-1]

    async def run(self, *words: str, **environ: str) -> Ended:
        done = await asyncio.to_thread(run_program, *words, cwd=self.folder, env=self.environ | environ)
        return Ended(done.returncode, done.stdout, done.stderr)

    async def run_anew(self, *words: str, **environ: str) -> Ended:
        """In a process that imports everything itself."""
        return await self._ended(str(PROGRAM), *words, **environ)

    async def paste(self, line: str) -> Ended:
        """Into a shell, as a person would."""
        path = f"{folder_of_program()}{os.pathsep}{self.environ['PATH']}"
        return await self._ended("sh", "-c", line, PATH=path)

    async def end(self) -> None:
        for program in self.started:
            await program.kill()

    async def _ended(self, *words: str, **environ: str) -> Ended:
        process = await asyncio.create_subprocess_exec(
            *words, cwd=self.folder, env=self.environ | environ, stdin=-3, stdout=-1, stderr=-1
        )
        try:
            async with asyncio.timeout(PATIENCE):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert b"Traceback" not in err, err.decode()
        return Ended(process.returncode or 0, out.decode(), err.decode())


@asynccontextmanager
async def place_in(folder: Path) -> AsyncIterator[Place]:
    """A folder, which is made, until all that was started there has ended."""
    place = Place(folder)
    yield place
    await place.end()


async def assert_it_can_be_left(*command: str, at: str) -> None:
    """By Ctrl-C, once it has said this: quietly, and with everything that it has started. It has no colours there."""
    marker = uuid4().hex
    environ = {**os.environ, "MARKER": marker, "TERM": "xterm-256color", "NO_COLOR": "1"}
    async with on_a_terminal(*command, env=environ, lines=60, columns=200) as program:
        await program.shows(at)
        program.types("\x03")
        assert await program.ends() == 1
        assert "Traceback" not in program.screen.text
        assert not program.screen.colours
    await until(lambda: not pids_with(marker))
