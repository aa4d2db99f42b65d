"""The prompt of `a2c-smcp computer` and `up`: read lines, run commands, clean up at the end."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any, get_args

from a2c_smcp.cli.conversation import Interrupted
from a2c_smcp.cli.prompt import views
from a2c_smcp.cli.prompt.computer_commands import CALL_COMMANDS, SERVER_COMMANDS, STATUS_COMMANDS, schema_of
from a2c_smcp.cli.prompt.console import Console
from a2c_smcp.cli.prompt.editor import Editor, LineHistory
from a2c_smcp.cli.prompt.language import BadLine, Command, CompletionSource, complete, find_command, split_words
from a2c_smcp.cli.prompt.live_commands import LIVE_COMMANDS
from a2c_smcp.cli.prompt.office_commands import APPROVAL_COMMANDS, CONNECTION_COMMANDS, Quit
from a2c_smcp.cli.terminal import Terminal, printable
from a2c_smcp.loops import stop_on_signals
from a2c_smcp.mcp_host.sessions.logs import LogLevel

__all__ = ["COMMANDS", "run_prompt"]

logger = logging.getLogger(__name__)


async def run_prompt(console: Console, terminal: Terminal, lines: LineHistory) -> None:
    """Run what the owner types, until the owner quits."""
    editor = Editor(
        printable(console.computer.name),
        lines,
        partial(complete, known=_completion_source(console)),
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
            remember = partial(self._remember, line) if command.kept else _nothing
            if job:
                self._console.jobs.start(job, remember)
            else:
                remember()

    def _remember(self, line: str) -> None:
        """Keep the line in the history. Its command has run, so the secrets in it are known and masked."""
        self._lines.remember(self._console.computer.mask.logged(line.strip()))


def _nothing() -> None:
    pass


def _on_interrupt(console: Console) -> Callable[[], object]:
    """Handle SIGINT like Ctrl-C on an empty line. Returns what restores its meaning without a prompt."""
    prompting = asyncio.current_task()
    assert prompting

    def on_signal() -> None:
        if not console.interrupt():
            prompting.cancel()

    with suppress(NotImplementedError):  # Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, on_signal)
    return stop_on_signals


async def _help(console: Console, arguments: list[str]) -> None:
    console.draw(views.help_on(COMMANDS))
    console.say("Tab completes; Ctrl-C clears the line, ends a running command, or stops this program, as Ctrl-D does")


COMMANDS: tuple[Command[Console], ...] = (
    *STATUS_COMMANDS,
    *CALL_COMMANDS,
    *SERVER_COMMANDS,
    *LIVE_COMMANDS,
    *APPROVAL_COMMANDS,
    *CONNECTION_COMMANDS,
    Command("help", "", "Show this list.", _help),
)


def _completion_source(console: Console) -> CompletionSource:
    """What completion proposes at this console."""
    computer = console.computer

    def schema(tool: str) -> Mapping[str, Any]:
        try:
            return schema_of(console, tool)
        except BadLine:
            return {}

    return CompletionSource(
        commands=COMMANDS,
        names={
            "SERVER": lambda: {name: each.state for name, each in computer.status().items()},
            "TOOL": lambda: {each["name"]: each["mcp_server"] for each in computer.get_tools()},
            "INPUT": lambda: {each.id: each.definition.description or "" for each in computer.inputs.list()},
            "AGENT": lambda: {each.who: "" for each in console.grants},
            "REQUEST": lambda: {f"#{each.number}": each.request.name for each in console.requests},
            "QUESTION": lambda: {f"#{each.number}": each.question.server for each in console.asked},
            "--level": lambda: {"--level": "the least level of log messages"},
            "LEVEL": lambda: dict.fromkeys(get_args(LogLevel), ""),
            "--again": lambda: {"--again": "although already signed in"},
            "keep": lambda: {"keep": "beyond the end of this program"},
        },
        schema=schema,
    )
