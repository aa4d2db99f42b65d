"""Questions to the owner on the terminal: values of inputs, and whether to run a command or apply a change."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from getpass import getpass
from typing import TypeVar

from a2c_smcp.cli.terminal import Terminal, printable
from a2c_smcp.computer.inputs.definitions import Input, default_of, is_secret
from a2c_smcp.loops import in_thread
from a2c_smcp.mcp_host.config.servers import CommandInput, PickStringInput

__all__ = ["Questions"]

T = TypeVar("T")
Accept = Callable[[str], T]
"""Converts an answer, or raises `ValueError` with a message for the owner, who is then asked again."""
Read = Callable[[str, bool], Awaitable[str]]
"""Shows a text and reads a line, hidden or not. Raises `EOFError`."""


class Questions:
    """Asks one question at a time. Ctrl-D gives no answer (`None`), which is not an error."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._editor: Read | None = None
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def asked_by(self, editor: Read) -> AsyncIterator[None]:
        """Read answers through the editor of the prompt, after an open question has been answered."""
        async with self._turn:
            self._editor = editor
        try:
            yield
        finally:
            self._editor = None

    async def value(self, definition: Input) -> str | None:
        """Ask for the value of an input, again if the answer is not valid."""
        text, default, hidden = definition.description or definition.id, default_of(definition), is_secret(definition)
        if isinstance(definition, PickStringInput):
            lines = [f"  {number}. {option.label}" for number, option in enumerate(definition.options, 1)]
            text = "\n".join([*lines, text])
        accept = _options(definition) if isinstance(definition, PickStringInput) else _something
        shown = f" [{default}]" if default is not None and not hidden else ""
        return await self.ask(f"{text}{shown}: ", lambda answer: accept(answer or default or ""), hidden=hidden)

    async def command(self, definition: CommandInput, argv: tuple[str, ...]) -> bool:
        """Ask whether the command of an input may run."""
        return bool(await self.ask(f"input {definition.id!r} runs {shlex.join(argv)}: let it? [y/N]: ", _yes_or_no))

    async def consent(self, differences: Sequence[object]) -> bool:
        """Ask whether a change of the configuration files may be applied."""
        lines = [f"  {each}" for each in differences]
        text = "\n".join(["the configuration has changed, and this needs your yes:", *lines, "apply it? [y/N]: "])
        return bool(await self.ask(text, _yes_or_no))

    async def ask(self, text: str, accept: Accept[T], *, hidden: bool = False) -> T | None:
        """Ask, and return the converted answer; `None` if there is none."""
        async with self._turn:
            if self._editor:
                return await _accepted(self._editor, printable(text), accept, hidden, self._terminal.show)
            with self._terminal.asking():
                return await _accepted(_read_line, printable(text), accept, hidden, _tell)


async def _accepted(read: Read, text: str, accept: Accept[T], hidden: bool, tell: Callable[[str], object]) -> T | None:
    while True:
        try:
            return accept(await read(text, hidden))
        except ValueError as problem:
            tell(str(problem))
        except EOFError:
            return None


async def _read_line(text: str, hidden: bool) -> str:
    try:
        line: str = await in_thread(getpass if hidden else _read, text)
    except EOFError:
        _tell("")
        raise
    return line


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _read(text: str) -> str:
    """Read a line of stdin. `input` would lock stdin, and a program that ends meanwhile would crash on the lock."""
    sys.stderr.write(text)
    sys.stderr.flush()
    line = os.read(sys.stdin.fileno(), 65536)
    if not line:
        raise EOFError
    return line.decode(errors="replace").rstrip("\r\n")


def _something(answer: str) -> str:
    if not answer:
        raise ValueError("an answer is needed; Ctrl-D gives none")
    return answer


def _yes_or_no(answer: str) -> bool:
    known = {"y": True, "yes": True, "n": False, "no": False, "": False}
    word = answer.strip().lower()
    if word not in known:
        raise ValueError("answer y or n")
    return known[word]


def _options(definition: PickStringInput) -> Accept[str]:
    """An option may be chosen by its number, its label or its value."""
    known = {str(number): option.value for number, option in enumerate(definition.options, 1)}
    known |= {option.label: option.value for option in definition.options}
    known |= {option.value: option.value for option in definition.options}

    def accept(answer: str) -> str:
        if answer.strip() not in known:
            raise ValueError(f"choose a number from 1 to {len(definition.options)}")
        return known[answer.strip()]

    return accept
