"""The line on which the owner types, and the questions that take its place for a while. Nothing tears either."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.application import in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import DummyHistory, History
from prompt_toolkit.input import create_input
from prompt_toolkit.output import create_output
from prompt_toolkit.renderer import CPR_Support
from prompt_toolkit.styles import Style

from a2c_smcp.cli.prompt.language import Candidate

__all__ = ["Editor", "Interrupted", "Lines"]

_FRAME = 0.5
_STYLE = Style.from_dict({"bottom-toolbar": "noreverse"})


class Interrupted(EOFError):
    """Ctrl-C, with what was on the line. Whoever waits for an answer gets none, as with Ctrl-D."""


class Editor:
    """`below` is drawn under the line, as long as there is something; `on_begin` is told when a line is begun."""

    def __init__(
        self,
        name: str,
        lines: Lines,
        complete: Callable[[str], list[Candidate]],
        *,
        below: Callable[[], str],
        on_begin: Callable[[], None],
    ) -> None:
        self._input, self._output = create_input(sys.stdin), create_output(sys.stderr)
        # Whatever is shown above the line, keys that are typed meanwhile are neither echoed nor signals.
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
        self._questions: set[asyncio.Task[str]] = set()
        self._loop = asyncio.get_running_loop()
        self._said: deque[Callable[[], None]] = deque()
        self._saying: asyncio.Task[None] | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Between two lines, too, keys are not echoed, and Ctrl-C is a key."""
        with self._input.raw_mode():
            try:
                yield
            finally:
                self._say_the_rest()

    async def read(self) -> str:
        """A line. Raises `Interrupted`, or `EOFError` for Ctrl-D on an empty one."""
        async with self._turn:
            self._say_the_rest()
        self._has_begun = False
        self.refresh()
        reading = asyncio.create_task(self._session.prompt_async(handle_sigint=False, set_exception_handler=False))
        try:
            await asyncio.wait([reading])
        finally:  # a line that is given up while a question stands in its place would wait for the answer
            await _ended(*([reading, *self._questions] if not reading.done() else []))
        try:
            return reading.result()
        except Interrupted:
            raise Interrupted(self._session.default_buffer.text) from None

    async def ask(self, text: str, hidden: bool) -> str:
        """An answer, which is kept nowhere. Raises `EOFError` where there is none. The line is back afterwards."""
        question = asyncio.create_task(self._ask(text, hidden))
        self._questions.add(question)
        try:
            await asyncio.wait([question])
        finally:
            await _ended(question)
            self._questions.discard(question)
        if question.cancelled():
            raise EOFError
        return question.result()

    async def _ask(self, text: str, hidden: bool) -> str:
        async with self._turn, in_terminal():
            session: PromptSession[str] = PromptSession(
                input=self._input, output=self._output, history=DummyHistory(), interrupt_exception=Interrupted
            )
            return await session.prompt_async(
                text, is_password=hidden, handle_sigint=False, set_exception_handler=False
            )

    def show(self, action: Callable[[], None]) -> None:
        """Does what writes to the terminal, above the line, soon. May be called from any thread."""
        self._said.append(action)
        self._loop.call_soon_threadsafe(self._say_soon)

    def refresh(self) -> None:
        """What is below the line has changed."""
        self._session.bottom_toolbar = self._drawn if self._below() else None
        self._session.app.invalidate()

    @property
    def draws_below(self) -> bool:
        """Not on a terminal that does not say where its cursor is."""
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


async def _ended(*tasks: asyncio.Task[str]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


class _Completer(Completer):
    def __init__(self, complete: Callable[[str], list[Candidate]]) -> None:
        self._complete = complete

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        for each in self._complete(document.text_before_cursor):
            blank = " " if each.is_whole and not document.text_after_cursor else ""
            yield Completion(each.text + blank, -each.typed, display=each.text, display_meta=each.about)


_LOADED = 1000


class Lines(History):
    """A line is kept when its command is done: only then it is known what in it is a secret. Answers never are."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def append_string(self, string: str) -> None:
        """What the editor has just read is not taken yet."""

    def remember(self, line: str) -> None:
        if self.recall(line):
            self.store_string(line)

    def recall(self, line: str) -> bool:
        """A line that meant nothing can be brought back and corrected, and is not kept. Whether it is another one."""
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
        """Where nothing can be kept, the lines last as long as the process."""
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "a", encoding="utf-8", errors="replace") as file:
                file.write(f"{string}\n")
