"""Commands of a page, a machine to run them on, and whether what they print is what the page shows."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

from tests.computer.pseudo_terminal import OnTerminal, on_a_terminal
from tests.program import PROGRAM, folder_of_program

__all__ = ["Machine", "Step", "is_printed", "steps", "texts"]

_FOR_A_SHELL = re.compile(r"[$`~*?|&;<>(){}]")


class Step(NamedTuple):
    """A command of the page, and the output that the page shows."""

    command: str
    prints: str


def steps(page: Path) -> Iterator[Step]:
    """Every command that is followed by its output."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    for (language, text), (following, output) in zip(found, [*found[1:], ("", "")], strict=True):
        if language == "sh":
            yield Step(text.strip(), output if following == "text" else "")


def texts(page: Path, beginning: str) -> list[str]:
    """The shown outputs that begin like this."""
    found = re.findall(r"^```text\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [text for text in found if text.startswith(beginning)]


def is_printed(wanted: str, screen: str) -> bool:
    """`…` matches anything in a line; a line `…` matches any lines. Runs of spaces are equal to one."""
    lines = []
    for line in wanted.splitlines():
        pieces = map(re.escape, re.sub(" +", " ", line).split("…"))
        lines.append(r"(?:.*\n)*?" if line == "…" else ".*".join(pieces) + r" *(?:\n|\Z)")
    return re.search("^" + "".join(lines), re.sub(" +", " ", screen), re.MULTILINE) is not None


class Machine:
    """A home folder, and terminals in one of its folders. It has no keyring."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self.home, self.folder, self._stack = folder / "home", folder / "work", stack
        for each in (self.home, self.folder):
            each.mkdir()
        path = f"{PROGRAM.parent}{os.pathsep}{os.environ['PATH']}"
        keyring = {"PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring"}
        self.env = {"HOME": str(self.home), "PATH": path, "TERM": "xterm-256color", **keyring}

    def put(self, name: str, configuration: Any) -> None:
        """Write a JSON file, below the home folder."""
        file = self.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(configuration), "utf-8")

    async def starts(self, command: str, **environ: str) -> OnTerminal:
        """Plain words that start our program start a forked one. A shell does the rest, and forks it, too.

        It is an alias there, because the program looks for itself on the PATH.
        """
        name, *words = shlex.split(command)
        is_ours = name == PROGRAM.name and not _FOR_A_SHELL.search(command)
        alias = f"alias {PROGRAM.name}={shlex.quote(str(folder_of_program() / PROGRAM.name))}"
        line = [str(PROGRAM), *words] if is_ours else ["sh", "-c", f"{alias}\n{command}"]
        return await self._stack.enter_async_context(
            on_a_terminal(*line, env=self.env | environ, lines=60, columns=250, cwd=self.folder)
        )

    async def runs(self, command: str, typed: str = "", **environ: str) -> str:
        """Everything that the command printed."""
        program = await self.starts(command, **environ)
        if typed:
            await program.shows("[Y/n]")
            program.types(typed)
        assert await program.ends() == 0, program.screen.text
        return program.screen.text
