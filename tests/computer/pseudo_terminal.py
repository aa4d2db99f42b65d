"""A program on a pseudo-terminal: what a person would see on the screen, and what he types."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from tests.program import PROGRAM, Running, start_program

__all__ = ["Screen", "on_a_terminal"]

PATIENCE = 60.0
"""A bound against hanging, nothing that is measured."""
_LAST = b"\0"  # written after all that a program has written

_PIECES = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b[=>]|([\r\n\b\a])|([^\x1b\r\n\b\a]+)")
_COLOUR = re.compile(r"\x1b\[([0-9;]*)m")
_UNFINISHED = re.compile(r"\x1b(?:\[[?\d;]*)?$")


class Screen:
    """The few movements of the cursor that rich and prompt_toolkit make, over as many lines as are written."""

    def __init__(self, width: int, height: int = 24) -> None:
        self.lines = [""]
        self.raw = ""
        self._width, self._height = width, height
        self._row = self._column = 0
        self._wraps = True
        self._unfinished = ""
        self._commands: dict[str, Callable[[int], None]] = {
            "A": lambda number: self._go(self._row - number, self._column),
            "B": lambda number: self._go(self._row + number, self._column),
            "C": lambda number: self._go(self._row, self._column + number),
            "D": lambda number: self._go(self._row, self._column - number),
        }

    def feed(self, text: str) -> str:
        """Shows it, and returns what a terminal answers to it."""
        self.raw += text
        text, answer = self._unfinished + text, ""
        found = _UNFINISHED.search(text)
        self._unfinished = found[0] if found else ""
        for number, command, control, plain in _PIECES.findall(text.removesuffix(self._unfinished)):
            if plain:
                self._put(plain)
            elif control:
                self._move(control)
            elif command in self._commands:
                self._commands[command](int(number or 1))
            elif command in ("J", "K"):
                self._erase(command, number)
            elif number == "?7":
                self._wraps = command == "h"
            elif (number, command) == ("6", "n"):
                top = max(0, len(self.lines) - self._height)
                answer += f"\x1b[{self._row - top + 1};{self._column + 1}R"
        return answer

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def line(self) -> str:
        """The one that the cursor is in."""
        return self.lines[self._row]

    @property
    def colours(self) -> set[str]:
        """The colours that were asked for; bold and dim are none, and neither is the way back."""
        codes = {code for found in _COLOUR.findall(self.raw) for code in found.split(";") if code}
        return {code for code in codes if 30 <= int(code) <= 49 or 90 <= int(code) <= 107}

    def _put(self, plain: str) -> None:
        for char in plain:
            if self._column == self._width and self._wraps:
                self._move("\n")
                self._column = 0
            self._column = min(self._column, self._width - 1)
            line = self.lines[self._row].ljust(self._column)
            self.lines[self._row] = line[: self._column] + char + line[self._column + 1 :]
            self._column += 1

    def _go(self, row: int, column: int) -> None:
        self._row, self._column = min(max(row, 0), len(self.lines) - 1), min(max(column, 0), self._width - 1)

    def _move(self, control: str) -> None:
        if control == "\n":
            self._row += 1
            if self._row == len(self.lines):
                self.lines.append("")
        elif control in "\r\b":
            self._column = 0 if control == "\r" else max(0, self._column - 1)

    def _erase(self, command: str, number: str) -> None:
        self.lines[self._row] = "" if number == "2" else self.lines[self._row][: self._column]
        if command == "J":
            self.lines[self._row + 1 :] = [""] * (len(self.lines) - self._row - 1)


class OnTerminal:
    """One run of a program, with its screen."""

    def __init__(
        self, process: asyncio.subprocess.Process | Running, master: int, slave: int, width: int, height: int
    ) -> None:
        self.process = process
        self.screen = Screen(width, height)
        self._master, self._slave = master, slave
        self._news = asyncio.Event()
        self._all_shown = asyncio.Event()
        self._decoder = getincrementaldecoder("utf-8")("replace")
        asyncio.get_running_loop().add_reader(master, self._read)

    async def shows(self, wanted: str | Callable[[Screen], Any]) -> str:
        """Waits until the screen is like that, and returns its text."""
        is_so = wanted if callable(wanted) else lambda screen: wanted in screen.text
        try:
            async with asyncio.timeout(PATIENCE):
                while not is_so(self.screen):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"never seen: {wanted}\n{self.screen.text}") from None
        return self.screen.text

    def types(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    @property
    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)

    async def ends(self) -> int:
        """Its exit code, when all that it has written is on the screen."""
        try:
            async with asyncio.timeout(PATIENCE):
                code = await self.process.wait()
                os.write(self._slave, _LAST)
                await self._all_shown.wait()
                return code
        except TimeoutError:
            raise AssertionError(f"it has not ended\n{self.screen.text}") from None
        except OSError:  # the terminal was hung up: there is no more to come
            return code

    def _read(self) -> None:
        try:
            data = os.read(self._master, 65536)
        except OSError:  # nobody has the other side open any more
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._master)
        if _LAST in data or not data:
            data = data.replace(_LAST, b"")
            self._all_shown.set()
        if answer := self.screen.feed(self._decoder.decode(data)):
            self.types(answer)
        self._news.set()


async def _started(command: Sequence[str], env: Mapping[str, str], slave: int, options: Mapping[str, Any]) -> Any:
    """In a session of its own, whose terminal this is. Our program and scripts are forked."""
    if command[0] == str(PROGRAM):
        return await start_program(*command[1:], env=env, session=True, **options)
    if command[0] == sys.executable and command[1].endswith(".py"):
        return await start_program(*command[2:], script=Path(command[1]), env=env, session=True, **options)

    def take_terminal() -> None:
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    return await asyncio.create_subprocess_exec(
        *command, env=dict(env), start_new_session=True, preexec_fn=take_terminal, **options
    )


@asynccontextmanager
async def on_a_terminal(
    *command: str, env: Mapping[str, str], lines: int = 24, columns: int = 100, **options: Any
) -> AsyncIterator[OnTerminal]:
    """Runs it with a terminal of its own, and ends it in the end. Options are other streams and the folder."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    options = {"stdin": slave, "stdout": slave, "stderr": slave, **options}

    process = await _started(command, env, slave, options)
    program = OnTerminal(process, master, slave, columns, lines)
    try:
        yield program
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):  # it ends in this moment
                process.kill()
            await process.wait()
        asyncio.get_running_loop().remove_reader(master)
        os.close(slave)
        os.close(master)
