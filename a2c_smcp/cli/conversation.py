"""Conversations with the person at the terminal: one at a time, and no other output until it has ended.

A conversation is a function that is given `Read` and may read any number of answers. What it writes itself goes
straight to stderr; what others write meanwhile is held back by the `Terminal`. While a prompt is open, its editor reads
the answers; otherwise lines are read as the terminal gives them, or by the reader that was given.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from getpass import getpass
from typing import Any, TypeAlias, TypeVar

from a2c_smcp.cli.terminal import Terminal, printable
from a2c_smcp.loops import in_thread

__all__ = ["Accept", "Conversations", "Interrupted", "Read", "read_line", "yes_or_no"]

T = TypeVar("T")
Accept = Callable[[str], T]
"""Converts an answer, or raises `ValueError` with a message for the person, who is then asked again."""
Read: TypeAlias = Callable[[str, bool], Awaitable[str]]
"""Shows a text and reads a line, hidden or not. Raises `EOFError` for Ctrl-D, `Interrupted` where Ctrl-C is a key."""
Converse: TypeAlias = Callable[[Callable[[Read], Awaitable[Any]]], Awaitable[Any]]
"""Lends the terminal to a conversation, and returns what that returns."""


class Interrupted(EOFError):
    """Ctrl-C; its text is what was on the line. A question that gets it has no answer, as with Ctrl-D."""


class Conversations:
    """Holds one conversation at a time. Ctrl-D gives no answer (`None`), which is not an error."""

    def __init__(self, terminal: Terminal, read: Read | None = None) -> None:
        self._terminal = terminal
        self._read = read or read_line
        self._editor: Converse | None = None
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def held_by(self, editor: Converse) -> AsyncIterator[None]:
        """Read answers through the editor of the prompt, after an open conversation has ended."""
        async with self._turn:
            self._editor = editor
        try:
            yield
        finally:
            self._editor = None

    async def converse(self, conversation: Callable[[Read], Awaitable[T]]) -> T:
        """Wait for the conversation's turn, and return what it does. Raises `EOFError` if the prompt's line is left."""
        async with self._turn:
            with self._terminal.asking():
                found: T = await (self._editor(conversation) if self._editor else conversation(self._read))
                return found

    async def ask(self, text: str, accept: Accept[T], *, hidden: bool = False) -> T | None:
        """Ask one question, and return the converted answer; `None` if there is none."""
        try:
            return await self.converse(partial(_accepted, text=printable(text), accept=accept, hidden=hidden))
        except EOFError:
            return None


async def _accepted(read: Read, *, text: str, accept: Accept[T], hidden: bool) -> T:
    while True:
        try:
            return accept(await read(text, hidden))
        except ValueError as problem:
            _tell(str(problem))


async def read_line(text: str, hidden: bool) -> str:
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


def yes_or_no(answer: str) -> bool:
    known = {"y": True, "yes": True, "n": False, "no": False, "": False}
    word = answer.strip().lower()
    if word not in known:
        raise ValueError("answer y or n")
    return known[word]
