"""Pieces of the guides: their folder, their example servers, and `a2c-smcp up` on a terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from a2c_smcp.cli.commands import demo_servers
from tests.computer.pseudo_terminal import OnTerminal, Screen
from tests.program import forked
from tests.shown_output import Machine, Step, is_printed

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
ENTER, CTRL_C = "\r", "\x03"


def example_server(name: str) -> dict[str, Any]:
    program, *words = forked(ROOT / "examples" / f"{name}_server.py")
    return {"command": program, "args": words}


def abacus() -> dict[str, Any]:
    """The server that the quick start takes over."""
    program, *words = forked(Path(demo_servers.__file__), "abacus")
    return {"command": program, "args": words}


class Up:
    """`a2c-smcp up` on a terminal, and agents in its office."""

    def __init__(self, machine: Machine, program: OnTerminal, url: str) -> None:
        self._machine, self.program, self.url = machine, program, url
        self.shows, self.types = program.shows, program.types

    @classmethod
    async def start(cls, machine: Machine, command: str, **environ: str) -> Up:
        program = await machine.starts(f"{command} --port 0", **environ)
        said = await program.shows("try in another terminal")
        return cls(machine, program, re.findall(r"http://127\.0\.0\.1:\d+", said)[0])

    async def agent(self, command: str) -> OnTerminal:
        return await self._machine.starts(command, A2C_URL=self.url)

    async def shown_by(self, command: str, wanted: str | Callable[[Screen], Any], code: int = 0) -> OnTerminal:
        """Runs a command of an agent, which shows this and ends with this code."""
        program = await self.agent(command)
        await program.shows(wanted)
        assert await program.ends() == code, program.screen.text
        return program

    async def prints(self, step: Step, code: int = 0) -> None:
        """Runs a command of a page, which prints what the page shows."""
        await self.shown_by(step.command, lambda screen: is_printed(step.prints, screen.text), code)

    async def at(self, line: str, typed: str) -> None:
        """Types when this is the line of the cursor."""
        await self.shows(lambda screen: screen.line.rstrip() == line)
        self.types(typed + ENTER)
