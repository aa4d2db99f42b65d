"""The line editor of the prompt, on prompt_toolkit: reads lines and answers, and prints above the line.

Other tasks and threads print while the owner types. Their output is queued (`show`) and written above the line, so that
it never interrupts what is typed. A conversation (`converse`) hides the line and brings it back afterwards; `_turn`
makes conversations and new lines wait for each other. A line that is given up while a conversation goes on would wait
for its end: therefore `read` cancels conversations with it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from prompt_toolkit import PromptSession
from prompt_toolkit.application import in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import DummyHistory, History
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.renderer import CPR_Support
from prompt_toolkit.styles import Style

from a2c_smcp.cli.conversation import Interrupted, Read
from a2c_smcp.cli.prompt.language import Candidate

__all__ = ["Editor", "LineHistory", "answer_reader"]

T = TypeVar("T")

_FRAME = 0.5
_STYLE = Style.from_dict({"bottom-toolbar": "noreverse"})


class Editor:
    """`below` returns what is drawn under the line, if anything; `on_begin` is called at the first key of a line."""

    def __init__(
        self,
        name: str,
        lines: LineHistory,
        complete: Callable[[str], list[Candidate]],
        *,
        below: Callable[[], str],
        on_begin: Callable[[], None],
    ) -> None:
        self._input, self._output = create_input(sys.stdin), create_output(sys.stderr)
        # Keys typed while something is printed above the line are neither echoed nor turned into signals.
        self._input.cooked_mode = nullcontext  # type: ignore[method-assign]
        self._below, self._on_begin = below, on_begin
        self._session: PromptSession[str] = PromptSession(
            f"{name}> ",
            history=lines,
            completer=_Completer(complete),
            complete_while_typing=False,
            refresh_interval=_FRAME,
            style=_STYLE,
            input=self._input,
            output=self._output,
            interrupt_exception=Interrupted,
        )
        self._session.default_buffer.on_text_changed += self._changed
        self._has_begun = False
        self._turn = asyncio.Lock()
        self._conversations: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()
        self._said: deque[Callable[[], None]] = deque()
        self._saying: asyncio.Task[None] | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Keep the terminal in raw mode, also between two lines: no echo, and Ctrl-C is a key."""
        with self._input.raw_mode():
            try:
                yield
            finally:
                self._say_the_rest()

    async def read(self) -> str:
        """Read a line. Raises `Interrupted`, or `EOFError` for Ctrl-D on an empty line."""
        async with self._turn:
            self._say_the_rest()
        self._has_begun = False
        self.refresh()
        reading = asyncio.create_task(self._session.prompt_async(handle_sigint=False, set_exception_handler=False))
        try:
            await asyncio.wait([reading])
        finally:
            await _ended(*([reading, *self._conversations] if not reading.done() else []))
        try:
            return reading.result()
        except Interrupted:
            raise Interrupted(self._session.default_buffer.text) from None

    async def converse(self, conversation: Callable[[Read], Awaitable[T]]) -> T:
        """Lend the terminal to a conversation. Its answers are not kept in the history.

        Raises `EOFError` if the line is given up meanwhile.
        """
        talking = asyncio.create_task(self._converse(conversation))
        self._conversations.add(talking)
        try:
            await asyncio.wait([talking])
        finally:
            await _ended(talking)
            self._conversations.discard(talking)
        if talking.cancelled():
            raise EOFError
        return talking.result()

    async def _converse(self, conversation: Callable[[Read], Awaitable[T]]) -> T:
        async with self._turn, in_terminal():
            return await conversation(partial(_read_answer, self._input, self._output))

    def show(self, action: Callable[[], None]) -> None:
        """Run soon what writes to the terminal, above the line. May be called from any thread."""
        self._said.append(action)
        self._loop.call_soon_threadsafe(self._say_soon)

    def refresh(self) -> None:
        """Draw again what is below the line."""
        self._session.bottom_toolbar = self._drawn if self._below() else None
        self._session.app.invalidate()

    @property
    def draws_below(self) -> bool:
        """Whether the terminal can draw below the line: it must report the position of its cursor."""
        return self._session.app.renderer.cpr_support is not CPR_Support.NOT_SUPPORTED

    def _drawn(self) -> ANSI:
        return ANSI(self._below())

    def _changed(self, buffer: Buffer) -> None:
        if buffer.text and not self._has_begun:
            self._on_begin()
        self._has_begun = bool(buffer.text)

    def _say_soon(self) -> None:
        if self._saying is None or self._saying.done():
            self._saying = asyncio.create_task(self._say())

    async def _say(self) -> None:
        while self._said:
            async with in_terminal():
                self._say_the_rest()

    def _say_the_rest(self) -> None:
        while self._said:
            self._said.popleft()()


async def _ended(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def answer_reader() -> Read:
    """Reads answers where there is no prompt, with Ctrl-C as a key."""

    async def read(text: str, hidden: bool) -> str:
        # Not earlier: sys.stderr is another one as long as a display is drawn.
        return await _read_answer(create_input(sys.stdin), create_output(sys.stderr), text, hidden)

    return read


async def _read_answer(source: Input, output: Output, text: str, hidden: bool) -> str:
    session: PromptSession[str] = PromptSession(
        input=source, output=output, history=DummyHistory(), interrupt_exception=Interrupted
    )
    return await session.prompt_async(text, is_password=hidden, handle_sigint=False, set_exception_handler=False)


class _Completer(Completer):
    def __init__(self, complete: Callable[[str], list[Candidate]]) -> None:
        self._complete = complete

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        for each in self._complete(document.text_before_cursor):
            blank = " " if each.is_whole and not document.text_after_cursor else ""
            yield Completion(each.text + blank, -each.typed, display=each.text, display_meta=each.about)


_LOADED = 1000


class LineHistory(History):
    """Lines typed before, in a file that only their owner can read.

    A line is kept after its command has run, when its secrets are known and masked. Answers are never kept.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def append_string(self, string: str) -> None:
        """Called by the editor for each line; `remember` keeps it later."""

    def remember(self, line: str) -> None:
        if self.recall(line):
            self.store_string(line)

    def recall(self, line: str) -> bool:
        """Offer the line again in this process, without keeping it. Returns whether it differs from the last one."""
        is_new = [line] != self._loaded_strings[:1]
        if is_new:
            self._loaded_strings.insert(0, line)
        return is_new

    def load_history_strings(self) -> Iterable[str]:
        try:
            return self._path.read_text("utf-8").splitlines()[: -_LOADED - 1 : -1]
        except (OSError, UnicodeDecodeError):
            return []

    def store_string(self, string: str) -> None:
        """Append the line to the file; if that fails, it is remembered by this process only."""
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "a", encoding="utf-8", errors="replace") as file:
                file.write(f"{string}\n")
