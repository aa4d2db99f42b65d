"""What the owner is asked on the terminal: the values of inputs, and whether a command may run."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from getpass import getpass
from typing import TypeVar

from a2c_smcp.cli.terminal import Terminal, printable
from a2c_smcp.computer.inputs.asking import in_thread
from a2c_smcp.computer.inputs.definitions import Input, default_of, is_secret
from a2c_smcp.computer.mcp_clients.model import CommandInput, PickStringInput

__all__ = ["Questions"]

T = TypeVar("T")
Accept = Callable[[str], T]
"""Makes something of an answer, or raises `ValueError` with a sentence for the owner, who is asked again."""


class Questions:
    """Whoever ends the input (Ctrl-D) gives no answer; that is not a fault."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    async def value(self, definition: Input) -> str | None:
        """Asks for a value. One that cannot be taken is asked for again."""
        text, default, hidden = definition.description or definition.id, default_of(definition), is_secret(definition)
        if isinstance(definition, PickStringInput):
            lines = [f"  {number}. {option.label}" for number, option in enumerate(definition.options, 1)]
            text = "\n".join([*lines, text])
        accept = _options(definition) if isinstance(definition, PickStringInput) else _something
        shown = f" [{default}]" if default is not None and not hidden else ""
        return await self._ask(f"{text}{shown}: ", lambda answer: accept(answer or default or ""), hidden=hidden)

    async def command(self, definition: CommandInput, argv: tuple[str, ...]) -> bool:
        """Asks whether the command of an input may run."""
        return bool(await self._ask(f"input {definition.id!r} runs {shlex.join(argv)}: let it? [y/N]: ", _yes_or_no))

    async def _ask(self, text: str, accept: Accept[T], *, hidden: bool = False) -> T | None:
        read = getpass if hidden else _read
        with self._terminal.asking():
            while True:
                try:
                    return accept(await in_thread(read, printable(text)))
                except ValueError as problem:
                    sys.stderr.write(f"{problem}\n")
                except EOFError:
                    sys.stderr.write("\n")
                    return None


def _read(text: str) -> str:
    """A line of stdin. `input` would lock it, and a program that ends while nobody answers would crash on that."""
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
