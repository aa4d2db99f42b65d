"""The prompt of `a2c-smcp computer` and `up`: read lines, run commands, clean up at the end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

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

from a2c_smcp.cli.prompt import views
from a2c_smcp.cli.prompt.approval_commands import APPROVAL_COMMANDS, LIVE_COMMANDS
from a2c_smcp.cli.prompt.computer_commands import CALL_COMMANDS, SERVER_COMMANDS, STATUS_COMMANDS, schema_of
from a2c_smcp.cli.prompt.console import Console
from a2c_smcp.cli.prompt.language import (
    BadLine,
    Candidate,
    Command,
    CompletionSource,
    find_command,
    proposals,
    split_words,
)
from a2c_smcp.cli.terminal import Interrupted, Read, Terminal, printable
from a2c_smcp.loops import handle_signal, stop_on_signals
from a2c_smcp.mcp_host.sessions.server_info import LogLevel

logger = logging.getLogger(__name__)

# The line editor of the prompt, on prompt_toolkit: reads lines and answers, and prints above the line.
#
# Other tasks and threads print while the owner types. Their output is queued (`show`) and written above the line, so
# that it never interrupts the typing. A conversation (`converse`) hides the line and brings it back afterwards;
# `_turn` makes conversations and new lines wait for each other. A line that is given up while a conversation goes on
# would wait for its end: therefore `read` cancels conversations with it.

T = TypeVar("T")

_FRAME = 0.5
_STYLE = Style.from_dict({"bottom-toolbar": "noreverse"})


class Editor:
    """`below` returns the text under the line, if any; `on_begin` is called at the first key of a line."""

    def __init__(
        self,
        name: str,
        lines: LineHistory,
        propose: Callable[[str], list[Candidate]],
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
            completer=_Completer(propose),
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

        async def talk() -> T:
            async with self._turn, in_terminal():
                return await conversation(partial(_read_answer, self._input, self._output))

        talking = asyncio.create_task(talk())
        self._conversations.add(talking)
        try:
            await asyncio.wait([talking])
        finally:
            await _ended(talking)
            self._conversations.discard(talking)
        if talking.cancelled():
            raise EOFError
        return talking.result()

    def show(self, action: Callable[[], None]) -> None:
        """Run an action soon that writes above the line. May be called from any thread."""
        self._said.append(action)
        self._loop.call_soon_threadsafe(self._say_soon)

    def refresh(self) -> None:
        """Draw again what is below the line."""
        self._session.bottom_toolbar = (lambda: ANSI(self._below())) if self._below() else None
        self._session.app.invalidate()

    @property
    def draws_below(self) -> bool:
        """True if the terminal can draw below the line: it must report the position of its cursor."""
        return self._session.app.renderer.cpr_support is not CPR_Support.NOT_SUPPORTED

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
    """Return a function that reads answers without a prompt, with Ctrl-C as a key."""

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
    def __init__(self, propose: Callable[[str], list[Candidate]]) -> None:
        self._propose = propose

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        for option in self._propose(document.text_before_cursor):
            blank = " " if option.is_whole and not document.text_after_cursor else ""
            yield Completion(option.text + blank, -option.typed, display=option.text, display_meta=option.about)


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
        """Offer the line again in this process, without keeping it. True if it differs from the last one."""
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


async def run_prompt(console: Console, terminal: Terminal, lines: LineHistory) -> None:
    """Run what the owner types, until the owner quits."""
    editor = Editor(
        printable(console.computer.name),
        lines,
        partial(proposals, known=_completion_source(console)),
        below=console.below,
        on_begin=console.requests.remember_oldest,
    )
    console.refresh, console.draws_below = editor.refresh, lambda: editor.draws_below
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(console.questions.held_by(editor.converse))
        stack.push_async_callback(console.jobs.close)
        stack.enter_context(terminal.lent(editor.show))
        stack.enter_context(editor.opened())
        stack.callback(_on_interrupt(console))
        await _Prompt(console, editor, lines).run()


class Quit(Exception):
    """The owner wants to end the program."""


class _Prompt:
    def __init__(self, console: Console, editor: Editor, lines: LineHistory) -> None:
        self._console, self._editor, self._lines = console, editor, lines

    async def run(self) -> None:
        while True:
            try:
                await self._do(await self._editor.read())
            except Interrupted as dropped:
                if not str(dropped) and not self._console.interrupt():
                    return
            except (EOFError, Quit):
                return

    async def _do(self, line: str) -> None:
        """Run one line; show its errors."""
        self._console.live = None
        try:
            words = split_words(line)
            if not words:
                return
            command, arguments = find_command(words, COMMANDS)
            job = await command.run(self._console, arguments)
        except Quit:
            raise
        except Exception as problem:  # an unexpected error does not end the prompt
            self._lines.recall(line.strip())
            if not self._console.show_failure(problem):
                logger.exception("the command failed")
        else:

            def remember() -> None:
                if command.kept:  # the command has run, so the secrets in its line are known and masked
                    self._lines.remember(self._console.computer.mask.logged(line.strip()))

            if job:
                self._console.jobs.start(job, remember)
            else:
                remember()


def _on_interrupt(console: Console) -> Callable[[], object]:
    """Handle SIGINT like Ctrl-C on an empty line. Returns a function that restores the previous handler."""
    prompting = asyncio.current_task()
    assert prompting

    def on_signal() -> None:
        if not console.interrupt():
            prompting.cancel()

    handle_signal(signal.SIGINT, on_signal)
    return stop_on_signals


async def _help(console: Console, arguments: list[str]) -> None:
    console.draw(views.help_on(COMMANDS))
    console.say("Tab completes; Ctrl-C clears the line, ends a running command, or stops this program, as Ctrl-D does")


async def _quit(console: Console, arguments: list[str]) -> None:
    raise Quit


COMMANDS: tuple[Command[Console], ...] = (
    *STATUS_COMMANDS,
    *CALL_COMMANDS,
    *SERVER_COMMANDS,
    *LIVE_COMMANDS,
    *APPROVAL_COMMANDS,
    Command("quit", "", "Stop the servers and leave, as Ctrl-D does.", _quit),
    Command("help", "", "Show this list.", _help),
)


def _completion_source(console: Console) -> CompletionSource:
    """Return the source of completion at this console."""
    computer = console.computer

    def schema(tool: str) -> Mapping[str, Any]:
        try:
            return schema_of(console, tool)
        except BadLine:
            return {}

    return CompletionSource(
        commands=COMMANDS,
        names={
            "SERVER": lambda: {name: server.state for name, server in computer.status().items()},
            "TOOL": lambda: {tool["name"]: tool["mcp_server"] for tool in computer.get_tools()},
            "INPUT": lambda: {known.id: known.definition.description or "" for known in computer.inputs.list()},
            "AGENT": lambda: {grant.who: "" for grant in console.grants},
            "REQUEST": lambda: {f"#{pending.number}": pending.request.name for pending in console.requests},
            "QUESTION": lambda: {f"#{pending.number}": pending.question.server for pending in console.asked},
            "--level": lambda: {"--level": "the least level of log messages"},
            "LEVEL": lambda: dict.fromkeys(get_args(LogLevel), ""),
            "--again": lambda: {"--again": "although already signed in"},
            "keep": lambda: {"keep": "beyond the end of this program"},
        },
        schema=schema,
    )
