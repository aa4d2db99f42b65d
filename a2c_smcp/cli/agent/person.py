"""The person who runs `a2c-smcp agent call`: answers the questions of the tool, as forms on the terminal."""

from __future__ import annotations

import sys
from functools import cached_property

from a2c_smcp.agent import Answer, Question
from a2c_smcp.cli.conversation import Conversations
from a2c_smcp.cli.terminal import Terminal, printable

__all__ = ["PersonAtTerminal"]


class PersonAtTerminal:
    """The `on_question` of a call. Several questions are asked one after the other."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    @property
    def is_there(self) -> bool:
        return self._terminal.can_ask and self._terminal.console is not None

    async def __call__(self, question: Question) -> Answer:
        """Ask until there is an answer. A cancel ends the form: the question is withdrawn."""
        from a2c_smcp.cli.browser import open_page
        from a2c_smcp.cli.forms.form import Form

        server = f"the MCP server {printable(question.server)}" if question.server else "an MCP server"
        form = Form(
            question,
            self._terminal,
            who=printable(f"{question.tool or 'The tool'} on {question.computer}"),
            goes_to=f"Your answer goes to {server} of {printable(question.computer)}.",
            open_page=open_page,
        )
        _drop_typed_keys()
        return await self._talks.converse(form.fill)

    @cached_property
    def _talks(self) -> Conversations:
        from a2c_smcp.cli.prompt.editor import answer_reader

        return Conversations(self._terminal, answer_reader())


def _drop_typed_keys() -> None:
    """Forget keys that were typed before the form could be seen: they answer nothing in it."""
    try:
        import termios
    except ModuleNotFoundError:  # Windows
        return
    termios.tcflush(sys.stdin, termios.TCIFLUSH)
